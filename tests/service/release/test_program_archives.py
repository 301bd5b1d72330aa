"""What is installed or unpacked somewhere else runs there, with nothing of this checkout."""

from __future__ import annotations

import platform
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from aks_flex_lab.processes import CommandResult, run
from aks_flex_node.agent.artifacts.cache import VerifiedFile
from aks_flex_node.agent.artifacts.digest import find_digest, hash_file
from aks_flex_node.agent.artifacts.unpack import unpack
from aks_flex_node.agent.components.artifact_urls import artifact
from aks_flex_node.agent.components.service.release import WANTED
from release import build_steps, program_archives
from release.checkout import HOME, REQUIREMENTS, SOURCES, changed_at, version

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
UV = Path(sys.executable).parent / "uv"


def alone(*words: str | Path) -> CommandResult:
    """A command with an empty environment, somewhere else."""
    return run("env", "-i", *words, cwd=Path("/"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    build_steps.build_wheels(folder)
    [wheel] = folder.glob("aks_flex_node-*.whl")
    return wheel


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    files = {path.relative_to(SOURCES.parent) for path in SOURCES.rglob("*") if path.is_file()}
    assert names == {str(path) for path in files if "__pycache__" not in path.parts}
    assert "aks_flex_rp/dashboard/templates/base.html" in names
    assert "aks_flex_rp/api/openapi.json" in names


@pytest.mark.parametrize(
    ("extra", "commands"),
    [("", [["aks-flex-node", "version"]]), ("[rp]", [["aks-flex-node", "version"], ["aks-flex-rp", "--help"]])],
)
def test_the_wheel_works_in_an_empty_environment(
    wheel: Path, tmp_path: Path, extra: str, commands: list[list[str]]
) -> None:
    run(UV, "venv", "--quiet", tmp_path / "venv")
    words: list[str | Path] = ["--quiet", "--python", tmp_path / "venv", "--constraints", REQUIREMENTS / "lab.txt"]
    run(UV, "pip", "install", *words, f"aks-flex-node{extra} @ file://{wheel}", cwd=tmp_path, timeout=300)
    said = [alone(tmp_path / "venv" / "bin" / command[0], *command[1:]).out for command in commands]
    assert said[0].strip() == version()
    assert all("Usage: aks-flex-rp" in text for text in said[1:])


def test_the_agent_unpacks_its_own_release_as_it_updates_itself(tmp_path: Path) -> None:
    archive = program_archives.build_archive(program_archives.AGENT, version(), ARCH, tmp_path, moment=changed_at())
    digest = find_digest(archive.with_name(f"{archive.name}.sha256").read_text(), archive.name)
    assert digest
    assert hash_file(archive).sha256 == str(digest).removeprefix("sha256:")
    place = tmp_path / "any where"
    place.mkdir()
    wanted = artifact("agent", version(), f"https://example.com/{archive.name}", WANTED, {})
    unpack(wanted, VerifiedFile(archive, archive.stat().st_size, digest, ""), place, lambda: None)
    assert alone(place / "bin" / "aks-flex-node", "version").out.strip() == version()


@pytest.mark.long  # half a minute of compressing; the wheel's own test starts the provider, too
def test_the_provider_runs_from_where_it_is_unpacked(tmp_path: Path) -> None:
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


def test_a_release_that_cannot_be_made_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    done = run(HOME / "scripts" / "release", "99.0.0", "--dry-run", "--dist", tmp_path / "dist", check=False)
    assert not done.ok
    assert f"says {version()}, not 99.0.0" in done.err
    assert "CHANGELOG.md has no section `## 99.0.0`" in done.err
    assert not (tmp_path / "dist").exists()
