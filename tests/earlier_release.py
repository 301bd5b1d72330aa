"""The release before node keys: its agent in a machine, and its provider in the lab. Built from the Git history."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab import node_agent
from aks_flex_lab.lab import Lab
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from aks_flex_lab.components.resource_provider import ResourceProviderComponent
    from aks_flex_lab.machines.machine import EdgeMachine

COMMIT = "828077b6d4fa4b078cb046dee31a097c9dce92de"
CHECKOUT = node_agent.PACKAGE.parents[1]
INSTALLED = f"/{node_agent.INSTALL_DIRECTORY}/{node_agent.PACKAGE.name}"


@dataclass(frozen=True)
class LabOfEarlierProvider(Lab):
    """A lab whose provider is the one of the release. `up` of a plain lab in the same place updates it."""

    source: Path = Path()

    @property
    def provider(self) -> ResourceProviderComponent:
        program = ("env", f"PYTHONPATH={self.source}", sys.executable, "-m", "aks_flex_rp")
        return replace(super().provider, program=program)


@dataclass(frozen=True)
class EarlierRelease:
    source: Path

    @classmethod
    def extract(cls, folder: Path) -> EarlierRelease:
        """Writes the source of the release to a directory. Skips the test in a checkout without its history."""
        git = ("git", "-C", str(CHECKOUT))
        if not run(*git, "cat-file", "-e", f"{COMMIT}^{{commit}}", check=False).ok:
            pytest.skip(f"this checkout has no commit {COMMIT[:8]}, the release before node keys: clone the history")
        archive = folder / "release.tar"
        run(*git, "archive", f"--output={archive}", COMMIT, "src/aks_flex_node", "src/aks_flex_rp")
        run("tar", "--extract", f"--directory={folder}", f"--file={archive}")
        return cls(folder / "src")

    def install_agent(self, machine: EdgeMachine) -> None:
        """Installs the agent of the release. It has the same dependencies as the one of this checkout."""
        node_agent.install(machine)
        machine.run("rm", "-r", INSTALLED)
        machine.copy_in(self.source / node_agent.PACKAGE.name, INSTALLED)
        machine.run("python3", "-m", "compileall", "-q", "-j2", "--invalidation-mode", "unchecked-hash", INSTALLED)
