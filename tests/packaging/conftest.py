"""Fixtures: the packages, a signed repository and a signed release, served by the lab's mirror."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.processes import run
from aks_flex_lab.tools.artifacts import artifact_tree
from aks_flex_node import __version__
from release.build_steps import write_and_sign_sums, write_install_script
from tests.service.release.publisher import Signer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab

SCRIPTS = Path(__file__).parents[2] / "scripts"
PUBLISHER = "github.com/Azure/AKSFlexNode"
BEFORE = "0.0.9"
ARCHITECTURES = ("amd64", "arm64")


@dataclass(frozen=True)
class Repository:
    folder: Path
    arch: str
    url: str = f"https://{PUBLISHER}/apt"

    @property
    def source(self) -> str:
        return (self.folder / "aks-flex-node.sources").read_text()

    def place(self, version: str = __version__) -> Path:
        return self.folder / "pool/main" / f"aks-flex-node_{version}_{self.arch}.deb"

    def package(self, version: str = __version__) -> str:
        """Returns the URL of a package."""
        return f"{self.url}/pool/main/{self.place(version).name}"


@dataclass(frozen=True)
class Releases:
    """The release from which install.sh installs, of the previous version, and two that it must reject."""

    root: Path

    @property
    def latest(self) -> Path:
        return self.root / "releases/latest/download"

    @property
    def of_another(self) -> Path:
        """A release signed with another key."""
        return self.root / "of-another"

    @property
    def damaged(self) -> Path:
        """A release whose package differs from its signed checksum."""
        return self.root / "damaged"

    def url(self, folder: Path) -> str:
        return f"https://{PUBLISHER}/{folder.relative_to(self.root)}"

    def remove(self) -> None:
        for folder in (self.latest.parent, self.of_another, self.damaged):
            shutil.rmtree(folder, ignore_errors=True)


def build(arch: str, folder: Path, *words: str) -> Path:
    """Builds a package with the build script, which prints the path last."""
    return Path(run(SCRIPTS / "deb", "--arch", arch, *words, folder, timeout=600).out.split()[-1])


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Builds packages of this version for both architectures in parallel."""
    folder = tmp_path_factory.mktemp("packages")
    with ThreadPoolExecutor() as pool:
        return dict(zip(ARCHITECTURES, pool.map(lambda arch: build(arch, folder), ARCHITECTURES), strict=True))


@pytest.fixture(scope="session")
def repository(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """Builds the repository as on a new machine, with an empty cache."""
    arch, cache = lab.toolbox.arch, {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    made = Repository(artifact_tree(lab.toolbox) / PUBLISHER / "apt", arch)
    shutil.rmtree(made.folder, ignore_errors=True)
    try:
        build(arch, made.place().parent, "--version", BEFORE)
        run(SCRIPTS / "apt-repo", "--arch", arch, "--url", made.url, made.folder, env=cache, timeout=600)
        yield made
    finally:
        shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def releases(repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    made = Releases(repository.folder.parent)
    made.remove()
    try:
        sign(made.latest, repository, tmp_path_factory.mktemp("ours") / "gpg")
        sign(made.of_another, repository, tmp_path_factory.mktemp("theirs") / "gpg")
        shutil.copytree(made.latest, made.damaged, copy_function=os.link)
        package = made.damaged / repository.place(BEFORE).name
        package.unlink()
        os.link(repository.place(), package)
        yield made
    finally:
        made.remove()


def sign(folder: Path, repository: Repository, home: Path) -> None:
    """Creates a signed release directory as `scripts/release` does, with one architecture."""
    folder.mkdir(parents=True)
    os.link(repository.place(BEFORE), folder / repository.place(BEFORE).name)
    signer = Signer(home)
    signer.make()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GNUPGHOME", str(home))
        write_install_script(folder, signer.name)
        write_and_sign_sums(folder, signer.name)
    signer.stop()
