"""Tests of the provider's image: reproducible, without root, shell and compiler, and it runs read-only."""

from __future__ import annotations

import json
import os
import re
import tarfile
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import urllib3
from rp_image.image import SBOM_PATH, BuiltImage, ImageInputs, build_image, image_cache, oci_archive
from rp_image.image_packages import PACKAGES, PYTHON, debian_archive

from aks_flex_lab.images.builder import ContainerConfig, LayerFile, make_image, make_layer
from aks_flex_lab.processes import run, spawn
from aks_flex_lab.tools.recipes import machine_arch
from release.checkout import version
from release.program_archives import PROVIDER, fetch_trees
from tests.service.ports import accepts, free_port

# A read-only root, with a volume for the state, as in a container.
CONTAINER = """
mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"
mount -t proc proc "$0/proc"
mount -t tmpfs -o mode=0700,uid=10001,gid=10001 state "$0/var/lib/aks-flex-rp"
exec chroot --userspec=10001:10001 "$0" /opt/aks-flex-rp/bin/aks-flex-rp "$@"
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ImageInputs:
    return ImageInputs.fetch(machine_arch(), image_cache(), tmp_path_factory.mktemp("wheels"), debian_archive())


@pytest.fixture(scope="module")
def built(inputs: ImageInputs) -> BuiltImage:
    return build_image(inputs)


@pytest.fixture(scope="module")
def root(built: BuiltImage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the root file system of the image."""
    folder = tmp_path_factory.mktemp("root")
    folder.parent.chmod(0o755)
    for layer in built.image.layers:
        with tarfile.open(fileobj=BytesIO(layer.data)) as opened:
            opened.extractall(folder, filter="fully_trusted")  # noqa: S202 - we made it ourselves
    folder.chmod(0o755)
    return folder


def members(built: BuiltImage) -> dict[str, tarfile.TarInfo]:
    found: dict[str, tarfile.TarInfo] = {}
    for layer in built.image.layers:
        with tarfile.open(fileobj=BytesIO(layer.data)) as opened:
            found |= {member.name: member for member in opened}
    return found


def test_second_build_gives_the_same_image(inputs: ImageInputs, built: BuiltImage, tmp_path: Path) -> None:
    """Also from another directory, and with the packages in another order."""
    [tree] = fetch_trees(PROVIDER.requirements, inputs.arch, tmp_path, (PYTHON,))

    again = build_image(replace(inputs, tree=tree, packages=inputs.packages[::-1]))

    assert again.image.digest == built.image.digest


def test_image_has_no_shell_compiler_package_manager_or_setuid_file(built: BuiltImage) -> None:
    found = members(built)

    programs = {name for name, each in found.items() if each.isfile() and each.mode & 0o111 and ".so" not in name}
    assert programs == {"usr/bin/python3.13", "opt/aks-flex-rp/bin/aks-flex-rp"}
    assert not [name for name, each in found.items() if each.mode & 0o6000]
    owned = {name for name, each in found.items() if (each.uid, each.gid) != (0, 0)}
    assert owned == {"var/lib/aks-flex-rp"}
    assert {each.mtime for each in found.values()} == {0}


def test_image_runs_as_numeric_user_without_root_account(built: BuiltImage, root: Path) -> None:
    assert json.loads(built.image.config.data)["config"]["User"] == "10001:10001"
    assert [line.split(":")[2] for line in (root / "etc" / "passwd").read_text().splitlines()] == ["10001"]


def test_bill_of_materials_names_all_packages_of_image(built: BuiltImage, root: Path) -> None:
    found = json.loads((root / SBOM_PATH).read_text())

    names = {each["name"] for each in found["components"]}
    assert {*PACKAGES, "uvicorn", "asyncpg", "cryptography"} <= names
    assert {path.name for path in (root / "var/lib/dpkg/status.d").iterdir()} == set(PACKAGES)
    assert all((root / "usr/share/doc" / name / "copyright").exists() for name in PACKAGES)
    assert built.bill == (root / SBOM_PATH).read_text()


def test_every_library_that_a_module_needs_is_in_image(root: Path) -> None:
    libraries = {path.name for path in root.rglob("*.so*")}
    modules = [path for path in root.rglob("*.so*") if path.is_file() and not path.is_symlink()]

    missing = {
        f"{path.name} needs {name}"
        for path in [*modules, root / "usr/bin/python3.13"]
        for name in needed(path)
        if name not in libraries
    }
    assert not missing


def needed(path: Path) -> list[str]:
    """Returns the libraries that a program or module is linked to."""
    lines = run("readelf", "-d", path, env={"LC_ALL": "C"}).out.splitlines()
    return [line.partition("[")[2].rstrip("]") for line in lines if "(NEEDED)" in line]


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_image_serves_without_root_from_read_only_file_system(root: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    words = ("serve", "--state", "/var/lib/aks-flex-rp", "--listen", f"127.0.0.1:{port}")
    process = spawn(
        ("unshare", "--mount", "sh", "-ec", CONTAINER, str(root), *words, "--url", f"https://127.0.0.1:{port}"),
        log=log,
    )
    try:
        end = time.monotonic() + 60
        while not accepts(port):
            assert process.alive, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        [uid] = re.findall(r"^Uid:\s(\d+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        authority = f"/proc/{process.pid}/root/var/lib/aks-flex-rp/tls/ca.crt"  # in its own mount namespace
        with urllib3.HTTPSConnectionPool("127.0.0.1", port, ca_certs=authority, retries=False) as pool:
            answer = pool.request("GET", "/healthz")
    finally:
        process.stop(30)

    assert answer.status == 200
    assert uid == "10001"


def test_archive_is_an_image_layout_with_all_blobs() -> None:
    image = make_image(make_layer([LayerFile("a", b"b")]), ContainerConfig(), "arm64")

    with tarfile.open(fileobj=BytesIO(oci_archive(image, "aks-flex-rp:1"))) as opened:
        names = opened.getnames()
        index = json.load(opened.extractfile("index.json") or BytesIO())
    assert index["manifests"][0]["digest"] == image.digest
    assert {f"blobs/{blob.digest.replace(':', '/')}" for blob in (image.manifest, image.config, *image.layers)} < set(
        names
    )


def test_written_files_are_named_by_version_and_architecture(built: BuiltImage, tmp_path: Path) -> None:
    archive = built.write(tmp_path, machine_arch())

    assert archive.name == f"aks-flex-rp-{version()}-linux-{machine_arch()}.oci.tar"
    assert (tmp_path / f"aks-flex-rp-{version()}-linux-{machine_arch()}-image.cdx.json").exists()
