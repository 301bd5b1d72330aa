"""A signed repository with this version and the one before, served by the lab's mirror as the world would see it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_node import __version__
from aks_flex_node.lab.processes import run
from aks_flex_node.lab.tools.artifacts import artifact_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.lab.lab import Lab

SCRIPTS = Path(__file__).parents[2] / "scripts"
PLACE = "github.com/Azure/AKSFlexNode/apt"
BEFORE = "0.0.9"


@dataclass(frozen=True)
class Repository:
    folder: Path
    arch: str
    url: str = f"https://{PLACE}"

    @property
    def source(self) -> str:
        return (self.folder / "aks-flex-node.sources").read_text()

    def package(self, version: str = __version__) -> str:
        """A package's own address."""
        return f"{self.url}/pool/main/aks-flex-node_{version}_{self.arch}.deb"


@pytest.fixture(scope="session")
def repository(lab: Lab) -> Iterator[Repository]:
    arch = lab.toolbox.arch
    made = Repository(artifact_tree(lab.toolbox) / PLACE, arch)
    shutil.rmtree(made.folder, ignore_errors=True)
    try:
        run(SCRIPTS / "deb", "--arch", arch, "--version", BEFORE, made.folder / "pool/main", timeout=600)
        run(SCRIPTS / "apt-repo", "--arch", arch, "--url", made.url, made.folder, timeout=600)
        yield made
    finally:
        shutil.rmtree(made.folder, ignore_errors=True)
