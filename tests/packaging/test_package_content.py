"""The packages of both architectures, as Debian's own tools and other machines see them."""

from __future__ import annotations

import io
import shutil
import struct
import zipfile
from typing import TYPE_CHECKING

import pytest

from aks_flex_node import __version__
from aks_flex_node.lab.processes import run
from deb.archives import ar_members, read
from tests.packaging.conftest import SCRIPTS

if TYPE_CHECKING:
    from pathlib import Path

MACHINES = {"amd64": 62, "arm64": 183}  # as ELF numbers them


@pytest.fixture(scope="module", params=MACHINES)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    run(SCRIPTS / "deb", "--arch", request.param, folder, timeout=600)
    return folder / f"aks-flex-node_{__version__}_{request.param}.deb"


def libraries(package: Path) -> dict[str, bytes]:
    """All native code in the wheels of a package."""
    files = read(ar_members(package.read_bytes())["data.tar.gz"])
    wheels = [zipfile.ZipFile(io.BytesIO(content)) for path, content in files.items() if path.endswith(".whl")]
    return {name: wheel.read(name) for wheel in wheels for name in wheel.namelist() if name.endswith(".so")}


def test_all_native_code_is_of_the_packages_architecture(package: Path) -> None:
    found = libraries(package)
    assert len(found) >= 12  # of four Pythons
    machine = MACHINES[package.stem.rpartition("_")[2]]
    assert {struct.unpack_from("<H", content, 18)[0] for content in found.values()} == {machine}


def test_dpkg_can_read_it_and_lintian_has_nothing_to_say(package: Path) -> None:
    assert run("dpkg-deb", "--field", package, "Version").out.strip() == __version__
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    said = run("lintian", "--allow-root", "--display-info", "--pedantic", "--fail-on=info", package, check=False)
    assert (said.code, said.out) == (0, "")


def test_a_second_build_gives_the_same_bytes(package: Path, tmp_path: Path) -> None:
    arch = package.stem.rpartition("_")[2]
    run(SCRIPTS / "deb", "--arch", arch, tmp_path, timeout=600)
    assert (tmp_path / package.name).read_bytes() == package.read_bytes()
