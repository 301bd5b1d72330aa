"""Tests of the wheels for each Python, and of the content of the agent's wheel."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

import aks_flex_node
from deb.wheels import MACHINES, PYTHONS, own_wheel, package_wheels, requirements

SOURCE = Path(aks_flex_node.__file__).parent
PINNED = SOURCE.parents[1] / "requirements/base.txt"
TEXT = """one==1 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
old==2 ; python_full_version < '3.11' and platform_python_implementation != 'PyPy' \\
    --hash=sha256:cc
windows==3 ; sys_platform == 'win32' \\
    --hash=sha256:dd
"""


def names(archive: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(archive)).namelist()


@pytest.mark.parametrize(("python", "taken"), [("3.10", ["one==1", "old==2"]), ("3.13", ["one==1"])])
def test_environment_markers_are_evaluated_for_target_python(python: str, taken: list[str]) -> None:
    kept = requirements(TEXT, python, "amd64")
    assert [line.split()[0] for line in kept.splitlines() if "==" in line] == taken
    assert ";" not in kept


def test_requirement_keeps_its_hashes() -> None:
    assert requirements(TEXT, "3.13", "arm64") == "one==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"


@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
def test_each_package_is_pinned_once_per_python_and_architecture(python: str, arch: str) -> None:
    pins = [line for line in requirements(PINNED.read_text(), python, arch).splitlines() if "==" in line]
    packages = [pin.partition("==")[0] for pin in pins]
    assert len(packages) == len(set(packages)) > 20


def test_agent_wheel_excludes_lab_and_provider() -> None:
    rooms = {name.split("/")[1] for name in names(own_wheel(SOURCE, "1.2.3", 0))}
    assert {"agent", "host", "azure", "api"} <= rooms
    assert not {"lab", "rp", "__pycache__"} & rooms


def test_agent_wheel_has_package_version() -> None:
    wheel = zipfile.ZipFile(io.BytesIO(own_wheel(SOURCE, "1.2.3", 0)))
    assert b'__version__ = "1.2.3"' in wheel.read("aks_flex_node/__init__.py")


def test_wheel_shared_by_several_pythons_is_included_once(tmp_path: Path) -> None:
    for python in PYTHONS:
        (tmp_path / python).mkdir()
        (tmp_path / python / "pure-1-py3-none-any.whl").write_bytes(b"pure")
    (tmp_path / "3.13" / "native-1-cp313-cp313-x.whl").write_bytes(b"native")

    files = package_wheels(tmp_path, SOURCE, "1.2.3", 0)

    own = "aks_flex_node-1.2.3-py3-none-any.whl"
    assert sorted(files) == sorted(["index.json", "native-1-cp313-cp313-x.whl", "pure-1-py3-none-any.whl", own])
    wheels = json.loads(files["index.json"])["wheels"]
    assert wheels["cp310"] == ["pure-1-py3-none-any.whl", own]
    assert wheels["cp313"] == ["native-1-cp313-cp313-x.whl", "pure-1-py3-none-any.whl", own]


def test_package_build_fails_when_a_python_has_no_wheels(tmp_path: Path) -> None:
    for python in PYTHONS[1:]:
        (tmp_path / python).mkdir()
    with pytest.raises(FileNotFoundError, match=PYTHONS[0]):
        package_wheels(tmp_path, SOURCE, "1.2.3", 0)
