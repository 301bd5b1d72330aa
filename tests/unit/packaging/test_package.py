"""Tests of the package: control files, content, reproducible build."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from deb.archive_formats import ar_members, control_of, read_tar_gz
from deb.package import PackageBuild, build_package, control_files
from deb.wheels import PYTHONS

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> PackageBuild:
    """Returns a build with only the agent's wheel, which is sufficient for these tests."""
    wheels = tmp_path_factory.mktemp("wheels")
    for python in PYTHONS:
        (wheels / python).mkdir()
    return PackageBuild("1.2.3", "arm64", 1_700_000_000, CHECKOUT, wheels)


@pytest.fixture(scope="module")
def made(build: PackageBuild) -> bytes:
    return build_package(build)


@pytest.fixture(scope="module")
def files(made: bytes) -> dict[str, bytes]:
    return read_tar_gz(ar_members(made)["data.tar.gz"])


@pytest.fixture(scope="module", name="told")
def control_archive(made: bytes) -> dict[str, bytes]:
    return read_tar_gz(ar_members(made)["control.tar.gz"])


def test_package_builds_are_reproducible(build: PackageBuild, made: bytes) -> None:
    assert build_package(build) == made


def test_control_file_has_version_and_architecture(build: PackageBuild, made: bytes) -> None:
    said = control_of(made)
    assert "Version: 1.2.3\n" in said
    assert "Architecture: arm64\n" in said
    assert build.file_name == "aks-flex-node_1.2.3_arm64.deb"


@pytest.mark.parametrize(
    ("version", "ordered"),
    [("1.2.3", "1.2.3"), ("1.3.0rc1", "1.3.0~rc1"), ("1.3.0b2", "1.3.0~b2"), ("1.3.0a1", "1.3.0~a1")],
)
def test_prerelease_version_sorts_before_final_version_in_dpkg(
    build: PackageBuild, version: str, ordered: str
) -> None:
    early = replace(build, version=version)
    told = control_files(early, {})
    assert f"Version: {ordered}\n".encode() in told["control"].content
    assert f'dpkg --compare-versions "{ordered}" lt "$2"'.encode() in told["preinst"].content
    assert early.file_name == f"aks-flex-node_{version}_arm64.deb"


def test_config_example_is_the_only_conffile(files: dict[str, bytes], told: dict[str, bytes]) -> None:
    assert told["conffiles"] == b"/etc/aks-flex-node/config.yaml.example\n"
    assert [path for path in files if path.startswith("etc/")] == ["etc/aks-flex-node/config.yaml.example"]


def test_package_starts_and_enables_no_unit(files: dict[str, bytes], told: dict[str, bytes]) -> None:
    assert [path for path in files if "systemd" in path] == ["usr/lib/systemd/system/aks-flex-node.service"]
    unit = files["usr/lib/systemd/system/aks-flex-node.service"].decode().splitlines()
    assert "ConditionPathExists=/var/lib/aks-flex-node/current-config.json" in unit
    assert "ExecStart=/usr/bin/aks-flex-node daemon" in unit
    scripts = b"".join(told[name] for name in ("preinst", "postinst", "prerm", "postrm"))
    assert not [word for word in (b"deb-systemd", b"systemctl start", b"systemctl enable") if word in scripts]


def test_maintainer_scripts_contain_package_version(told: dict[str, bytes]) -> None:
    assert b'dpkg --compare-versions "1.2.3" lt "$2"' in told["preinst"]
    assert not [name for name, content in told.items() if b"@VERSION@" in content]


def test_every_command_has_a_manual_page(files: dict[str, bytes]) -> None:
    pages = {path.rpartition("/")[2] for path in files if path.startswith("usr/share/man/man1/")}
    assert {"aks-flex-node.1.gz", "aks-flex-node-bootstrap.1.gz", "aks-flex-node-config-init.1.gz"} <= pages
    text = gzip.decompress(files["usr/share/man/man1/aks-flex-node-bootstrap.1.gz"]).decode()
    assert ".B aks\\-flex\\-node bootstrap [OPTIONS]\n" in text
    assert "\\fB\\-\\-dry\\-run\\fR\n" in text


def test_package_contains_troubleshooting_page_named_in_errors(files: dict[str, bytes]) -> None:
    assert b"\n#### preflight-failed\n" in files["usr/share/doc/aks-flex-node/errors.md"]


def test_manual_pages_contain_only_known_roff_requests(files: dict[str, bytes]) -> None:
    known = {".TH", ".SH", ".PP", ".TP", ".B"}
    for path, content in files.items():
        if path.startswith("usr/share/man/"):
            lines = gzip.decompress(content).decode().splitlines()
            assert {line.split()[0] for line in lines if line.startswith((".", "'"))} <= known


@pytest.mark.parametrize(
    "place", ["bash-completion/completions", "zsh/vendor-completions", "fish/vendor_completions.d"]
)
def test_package_contains_completion_for_each_shell(files: dict[str, bytes], place: str) -> None:
    assert [content for path, content in files.items() if place in path and b"_AKS_FLEX_NODE_COMPLETE" in content]
