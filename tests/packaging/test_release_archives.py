"""The archives of a release on each Debian release: self-update of agents, and the provider."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_node import __version__
from release import program_archives
from release.checkout import changed_at
from tests.agents import flex
from tests.managed_node import ManagedLabNode
from tests.packaging.conftest import BEFORE, PUBLISHER
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.packaging.conftest import Repository

pytestmark = pytest.mark.long  # compression takes a minute
PLACE = f"releases/download/v{__version__}"
PROVIDER = "/opt/aks-flex-rp"


@pytest.fixture
def published(repository: Repository) -> Iterator[Path]:
    """Yields the archives of this version and architecture, at the publisher's URL."""
    folder = repository.folder.parent / PLACE
    folder.mkdir(parents=True)
    try:
        for program in program_archives.PROGRAMS:
            program_archives.build_archive(program, __version__, repository.arch, folder, moment=changed_at())
        yield folder
    finally:
        shutil.rmtree(folder)


def test_release_archives_run_on_all_debian_releases(
    lab: Lab, add_machine: Callable[..., EdgeMachine], repository: Repository, published: Path
) -> None:
    machines = [add_machine(f"tar-{system.value}", system) for system in DebianRelease]
    with ThreadPoolExecutor() as pool:
        done = [pool.submit(use, lab, machine, repository) for machine in machines]
    for used in done:
        used.result()


def use(lab: Lab, machine: EdgeMachine, repository: Repository) -> None:
    until(lambda: machine.run("getent", "ahosts", "github.com", check=False).ok, "the machine resolves names")
    the_provider_is_unpacked_and_runs(machine, repository.arch)
    the_agent_of_the_package_becomes_that_of_the_release(lab, machine, repository)


def the_provider_is_unpacked_and_runs(machine: EdgeMachine, arch: str) -> None:
    """Unpacks and runs the provider with the commands of docs/how-to/install.md."""
    archive = program_archives.PROVIDER.archive(__version__, arch)
    for name in (archive, f"{archive}.sha256"):
        machine.run("curl", "-fsS", "-o", f"/root/{name}", f"https://{PUBLISHER}/{PLACE}/{name}")
    machine.run("sh", "-c", f"cd /root && sha256sum --check {archive}.sha256")
    machine.run("sh", "-c", f"mkdir {PROVIDER} && tar -xzf /root/{archive} -C {PROVIDER}")
    machine.run("python3", "-m", "compileall", "-q", f"{PROVIDER}/lib", check=False)
    machine.run(f"{PROVIDER}/bin/aks-flex-rp", "init", "--state", "/root/state")
    assert machine.run("test", "-s", "/root/state/flex.db").ok


def the_agent_of_the_package_becomes_that_of_the_release(
    lab: Lab, machine: EdgeMachine, repository: Repository
) -> None:
    machine.run("curl", "-fsS", "-o", "/root/old.deb", repository.package(BEFORE))
    machine.run("dpkg", "--install", "/root/old.deb")
    node = ManagedLabNode(
        lab, machine, lab.azure.directory.service_principal(machine.name, f"secret-of-{machine.name}")
    )
    node.join()
    until(lambda: agent(node) == BEFORE, "the package's agent reports itself")
    node.update(versions={"agent": __version__})
    until(lambda: agent(node) == __version__, "the agent of the release reports itself")
    node.wait_until_applied(node.update(nodeConfig={"labels": {"by": "the-release"}}))
    assert flex(machine, "version").out.strip() == BEFORE, "the command stays the package's"
    flex(machine, "unbootstrap", "--yes")


def agent(node: ManagedLabNode) -> str:
    return str(node.provider.get(node.name).get("status", {}).get("agentVersion", ""))
