"""Runs install.sh on a machine with curl, with the commands of docs/how-to/install.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.agents import flex
from tests.packaging.conftest import BEFORE

if TYPE_CHECKING:
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.processes import CommandResult
    from tests.packaging.conftest import Releases

SCRIPT = "/root/install.sh"


def install_sh(machine: EdgeMachine, *words: str) -> CommandResult:
    return machine.run("sh", SCRIPT, *words, check=False, timeout=600)


def bring(machine: EdgeMachine, releases: Releases) -> None:
    machine.run("curl", "-fsSL", "-o", SCRIPT, f"{releases.url(releases.latest)}/install.sh")


def absent(machine: EdgeMachine) -> bool:
    return not machine.run("test", "-e", "/usr/bin/aks-flex-node", check=False).ok


def looks_and_changes_nothing(machine: EdgeMachine) -> None:
    said = install_sh(machine, "--dry-run")
    assert said.ok, said.err
    assert f"  - install aks-flex-node {BEFORE} with apt-get\n" in said.out
    assert absent(machine)


def refuses_what_is_not_ours(machine: EdgeMachine, releases: Releases) -> None:
    for folder, words in ((releases.of_another, "SHA256SUMS is invalid."), (releases.damaged, "The checksum of")):
        said = install_sh(machine, "--yes", "--base-url", releases.url(folder))
        assert (said.code, words in said.err) == (1, True), said.err
        assert absent(machine)


def installs(machine: EdgeMachine) -> None:
    """Installs from the URL in the script, and again, when nothing changes."""
    said = install_sh(machine, "--yes")
    assert said.ok, said.out + said.err
    assert flex(machine, "version").out.strip() == BEFORE
    again = install_sh(machine, "--yes")
    assert again.ok, again.err
    assert f"aks-flex-node {BEFORE} is already installed." in again.out


def takes_all_away(machine: EdgeMachine) -> None:
    """Removes the program, then also the configuration."""
    said = install_sh(machine, "--uninstall", "--yes")
    assert said.ok, said.out + said.err
    assert absent(machine)
    assert machine.run("ls", "/etc/aks-flex-node/config.yaml.example").ok
    said = install_sh(machine, "--uninstall", "--purge", "--yes")
    assert said.ok, said.out + said.err
    assert "aks-flex-node is not installed." in install_sh(machine, "--uninstall", "--yes").out
    machine.run("rm", SCRIPT)
