"""Checks the packages of both architectures with Debian's tools."""

from __future__ import annotations

import io
import shutil
import struct
import zipfile
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.processes import run
from aks_flex_node import __version__
from deb.archive_formats import ar_members, read_tar_gz
from deb.package import MACHINE_FILES, PackageBuild, build_package
from deb.wheels import PYTHONS
from release.checkout import HOME, changed_at
from tests.packaging.conftest import ARCHITECTURES

if TYPE_CHECKING:
    from pathlib import Path

MACHINES = {"amd64": 62, "arm64": 183}  # ELF machine numbers


def libraries(package: Path) -> dict[str, bytes]:
    """Returns all native libraries in the wheels of a package."""
    files = read_tar_gz(ar_members(package.read_bytes())["data.tar.gz"])
    wheels = [zipfile.ZipFile(io.BytesIO(content)) for path, content in files.items() if path.endswith(".whl")]
    return {name: wheel.read(name) for wheel in wheels for name in wheel.namelist() if name.endswith(".so")}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_native_libraries_match_package_architecture(packages: dict[str, Path], arch: str) -> None:
    found = libraries(packages[arch])
    assert len(found) >= 12  # for four Python versions
    assert {struct.unpack_from("<H", content, 18)[0] for content in found.values()} == {MACHINES[arch]}


def test_dpkg_reads_version_and_architecture_of_package(packages: dict[str, Path]) -> None:
    said = [run("dpkg-deb", "--field", packages[arch], "Version", "Architecture").out for arch in ARCHITECTURES]
    assert said == [f"Version: {__version__}\nArchitecture: {arch}\n" for arch in ARCHITECTURES]


def lintian(package: Path) -> None:
    assert shutil.which("lintian"), "lintian is not installed; `make test` installs it."
    words = ("--allow-root", "--display-info", "--pedantic", "--fail-on=info")
    said = run("lintian", *words, package, check=False)
    assert (said.code, said.out) == (0, "")


def test_lintian_passes_for_package_without_third_party_wheels(tmp_path: Path) -> None:
    """The wheels are most of the content, and lintian checks nothing in them."""
    for python in PYTHONS:
        (tmp_path / python).mkdir()
    small = PackageBuild(__version__, "amd64", changed_at(), HOME, tmp_path)
    (tmp_path / small.file_name).write_bytes(build_package(small))
    lintian(tmp_path / small.file_name)


@pytest.mark.long
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_lintian_passes_for_full_package(packages: dict[str, Path], arch: str) -> None:
    lintian(packages[arch])


@pytest.mark.parametrize(
    ("words", "environment", "code"),
    [
        (("upgrade", "1.2.4"), {}, 1),
        (("upgrade", "1.2.4"), {"AKS_FLEX_NODE_DOWNGRADE": "force"}, 0),
        (("upgrade", "1.2.4"), {"AKS_FLEX_NODE_DOWNGRADE": "yes"}, 1),
        (("upgrade", "1.2.3~rc1"), {}, 0),
        (("upgrade", "1.2.2"), {}, 0),
        (("install",), {}, 0),
    ],
)
def test_preinst_refuses_downgrade_unless_forced(
    tmp_path: Path, words: tuple[str, ...], environment: dict[str, str], code: int
) -> None:
    script = tmp_path / "preinst"
    script.write_text((MACHINE_FILES / "preinst").read_text().replace("@VERSION@", "1.2.3"))
    done = run("sh", script, *words, env=environment, check=False)
    assert (done.code, "cannot be replaced by the older 1.2.3" in done.err) == (code, code == 1)
