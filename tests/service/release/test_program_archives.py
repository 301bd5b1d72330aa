"""Tests of the wheels and archives: they run outside of this checkout."""

from __future__ import annotations

import platform
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from aks_flex_lab.processes import CommandResult, run
from aks_flex_node.agent.artifacts.cache import VerifiedFile
from aks_flex_node.agent.artifacts.digest import find_digest, hash_file
from aks_flex_node.agent.artifacts.unpack import unpack
from aks_flex_node.agent.components.artifact_urls import artifact
from aks_flex_node.agent.components.service.release import DESIRED_RELEASE
from release import build_steps, program_archives
from release.checkout import DISTRIBUTIONS, HOME, REQUIREMENTS, SOURCES, changed_at, version

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
UV = Path(sys.executable).parent / "uv"


def alone(*words: str | Path) -> CommandResult:
    """Runs a command with an empty environment, outside of this checkout."""
    return run("env", "-i", *words, cwd=Path("/"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Builds the wheels; returns them by distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    build_steps.build_wheels(folder)
    return {name: next(folder.glob(f"{name.replace('-', '_')}-*.whl")) for name in DISTRIBUTIONS}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_wheel_contains_exactly_the_files_of_its_package(wheels: dict[str, Path], name: str) -> None:
    package = SOURCES.with_name(name.replace("-", "_"))
    with zipfile.ZipFile(wheels[name]) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    files = {path.relative_to(package.parent) for path in package.rglob("*") if path.is_file()}
    assert names == {str(path) for path in files if "__pycache__" not in path.parts}


def test_wheels_contain_data_files(wheels: dict[str, Path]) -> None:
    found = {name: set(zipfile.ZipFile(wheel).namelist()) for name, wheel in wheels.items()}
    assert "aks_flex_node/agent/components/kubelet/kubelet.service" in found["aks-flex-node"]
    assert {"aks_flex_rp/dashboard/templates/base.html", "aks_flex_rp/api/openapi.json"} <= found["aks-flex-rp"]
    assert "aks_flex_lab/baseline/join.sh" in found["aks-flex-lab"]


@pytest.mark.parametrize(
    ("name", "own"), [("aks-flex-node", []), ("aks-flex-rp", ["node"]), ("aks-flex-lab", ["node", "rp"])]
)
def test_wheel_requires_own_packages_in_same_version(wheels: dict[str, Path], name: str, own: list[str]) -> None:
    with zipfile.ZipFile(wheels[name]) as opened:
        text = opened.read(f"{name.replace('-', '_')}-{version()}.dist-info/METADATA").decode()
    lines = HeaderParser().parsestr(text).get_all("Requires-Dist", [])
    assert [line for line in lines if line.startswith("aks-flex-") and "==" in line] == [
        f"aks-flex-{other}=={version()}" for other in own
    ]


@pytest.mark.parametrize(
    ("names", "commands"),
    [
        (["aks-flex-node"], [["aks-flex-node", "version"]]),
        (["aks-flex-node", "aks-flex-rp"], [["aks-flex-node", "version"], ["aks-flex-rp", "--help"]]),
    ],
)
def test_wheels_work_in_empty_environment(
    wheels: dict[str, Path], tmp_path: Path, names: list[str], commands: list[list[str]]
) -> None:
    run(UV, "venv", "--quiet", tmp_path / "venv")
    words: list[str | Path] = ["--quiet", "--python", tmp_path / "venv", "--constraints", REQUIREMENTS / "rp.txt"]
    run(UV, "pip", "install", *words, *(wheels[name] for name in names), cwd=tmp_path, timeout=300)
    said = [alone(tmp_path / "venv" / "bin" / command[0], *command[1:]).out for command in commands]
    assert said[0].strip() == version()
    assert all("Usage: aks-flex-rp" in text for text in said[1:])
    assert {path.name for path in (tmp_path / "venv" / "bin").glob("aks-*")} == set(names)


def test_agent_unpacks_own_release_archive(tmp_path: Path) -> None:
    archive = program_archives.build_archive(program_archives.AGENT, version(), ARCH, tmp_path, moment=changed_at())
    digest = find_digest(archive.with_name(f"{archive.name}.sha256").read_text(), archive.name)
    assert digest
    assert hash_file(archive).sha256 == str(digest).removeprefix("sha256:")
    place = tmp_path / "any where"
    place.mkdir()
    wanted = artifact("agent", version(), f"https://example.com/{archive.name}", DESIRED_RELEASE, {}, "")
    unpack(wanted, VerifiedFile(archive, archive.stat().st_size, digest, ""), place, lambda: None)
    assert alone(place / "bin" / "aks-flex-node", "version").out.strip() == version()


@pytest.mark.long  # 30 seconds of compression; the test of the wheel also starts the provider
def test_provider_archive_runs_from_any_directory(tmp_path: Path) -> None:
    archive = program_archives.build_archive(
        program_archives.PROVIDER, version(), ARCH, tmp_path, moment=changed_at()
    )
    assert run("sha256sum", "--check", f"{archive.name}.sha256", cwd=tmp_path).ok
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "any where", filter="data")
    command = tmp_path / "any where" / "bin" / "aks-flex-rp"
    assert "Usage: aks-flex-rp serve" in alone(command, "serve", "--help").out
    assert alone(command, "init", "--state", tmp_path / "state").ok
    assert (tmp_path / "state" / "flex.db").exists()


def test_release_with_wrong_version_is_refused_before_build(tmp_path: Path) -> None:
    done = run(HOME / "scripts" / "release", "99.0.0", "--dry-run", "--dist", tmp_path / "dist", check=False)
    assert not done.ok
    assert f"is {version()}, not 99.0.0" in done.err
    assert "CHANGELOG.md has no section `## 99.0.0`" in done.err
    assert not (tmp_path / "dist").exists()
