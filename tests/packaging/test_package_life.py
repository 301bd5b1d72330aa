"""Life cycle of the package: installation, upgrade with a running node, complete removal."""

from __future__ import annotations

import fnmatch
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aks_flex_lab import snapshots
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_node import __version__
from tests.agents import facts, flex
from tests.managed_node import ManagedLabNode
from tests.packaging import install_harness
from tests.packaging.conftest import BEFORE
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.processes import CommandResult
    from tests.packaging.conftest import Releases, Repository

ENVIRONMENTS = "/usr/lib/aks-flex-node/env"
WHEELS = "/usr/lib/aks-flex-node/wheels"
SOURCE = "/etc/apt/sources.list.d/aks-flex-node.sources"
OTHER_KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"
EXAMPLE = "/etc/aks-flex-node/config.yaml.example"
# Records that dpkg and apt write with every operation.
RECORDS = (
    "/var/lib/dpkg*",
    "/var/lib/apt/*",
    "/var/cache/apt*",
    "/var/cache/debconf*",
    "/var/log/dpkg.log",
    "/var/log/apt*",
    "/run/systemd/incoming",  # created by systemd of Debian 13 with the first sandboxed service, until the next boot
)


def apt(
    machine: EdgeMachine, *words: str, check: bool = True, setting: str = "DEBIAN_PRIORITY=critical"
) -> CommandResult:
    environment = ("env", "DEBIAN_FRONTEND=noninteractive", setting)
    done = machine.run(*environment, "apt-get", "-q", "-y", *words, check=False, timeout=600)
    assert done.ok or not check, done.out + done.err
    return done


def configure_repository(machine: EdgeMachine, repository: Repository) -> None:
    """Configures only this repository: the machine cannot reach Debian's."""
    machine.run("sh", "-c", "rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*")
    machine.run("tee", SOURCE, input=repository.source)
    until(lambda: machine.run("getent", "ahosts", "github.com", check=False).ok, "the machine resolves names")


def installed(machine: EdgeMachine) -> str:
    return machine.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "aks-flex-node").out


def environments(machine: EdgeMachine) -> list[str]:
    return machine.run("ls", ENVIRONMENTS).out.split()


def processes(machine: EdgeMachine) -> str:
    words = ("systemctl", "show", "--property=MainPID", "kubelet", "containerd")
    return machine.run(*words).out


def leftovers(before: snapshots.Snapshot, machine: EdgeMachine) -> list[str]:
    differences = [one for one in snapshots.diff(before, machine.snapshot()) if not one.shared]
    return [str(one) for one in differences if not any(fnmatch.fnmatch(one.key, record) for record in RECORDS)]


def test_second_package_build_gives_identical_bytes(packages: dict[str, Path], repository: Repository) -> None:
    """The repository's package was built separately, from freshly downloaded wheels."""
    assert repository.place().read_bytes() == packages[repository.arch].read_bytes()


def test_package_installs_upgrades_and_uninstalls_on_all_debian_releases(
    lab: Lab, add_machine: Callable[..., EdgeMachine], repository: Repository, releases: Releases
) -> None:
    """All releases run in parallel: each waits more than it computes."""
    machines = [add_machine(f"deb-{system.value}", system) for system in DebianRelease]
    with ThreadPoolExecutor() as pool:
        lives = [pool.submit(life, lab, machine, repository, releases) for machine in machines]
    for lived in lives:
        lived.result()


def life(lab: Lab, machine: EdgeMachine, repository: Repository, releases: Releases) -> None:
    configure_repository(machine, repository)
    before = machine.snapshot()

    is_refused_with_another_key(machine, repository)
    install_the_version_before(machine, releases)
    is_made_ready_for_another_python(machine)
    node = join(lab, machine)
    upgrades_under_the_running_node(node)
    refuses_to_go_back(machine)
    refuses_to_leave_a_node_alone(machine)
    if machine.record.system is DebianRelease.TRIXIE:
        is_taken_from_the_node_by_force_and_comes_back(machine)

    flex(machine, "unbootstrap", "--yes")
    install_harness.takes_all_away(machine)
    assert leftovers(before, machine) == []


def is_refused_with_another_key(machine: EdgeMachine, repository: Repository) -> None:
    other = repository.source.partition("Signed-By:")[0] + f"Signed-By: {OTHER_KEY}\n"
    machine.run("tee", SOURCE, input=other)
    assert not apt(machine, "update", check=False).ok
    assert not apt(machine, "install", "aks-flex-node", check=False).ok
    machine.run("tee", SOURCE, input=repository.source)


def install_the_version_before(machine: EdgeMachine, releases: Releases) -> None:
    """Installs the previous version with the script, on a new machine."""
    install_harness.bring(machine, releases)
    install_harness.looks_and_changes_nothing(machine)
    install_harness.refuses_what_is_not_ours(machine, releases)
    install_harness.installs(machine)
    assert machine.run("systemctl", "is-enabled", "aks-flex-node", check=False).code != 0


def is_made_ready_for_another_python(machine: EdgeMachine) -> None:
    """Simulates an environment of another Python: dpkg notifies the package of such a change."""
    present = machine.run("readlink", f"{ENVIRONMENTS}/current").out.strip()
    other = f"{BEFORE}-old-cp39"
    machine.run("sh", "-c", f"cd {ENVIRONMENTS} && mv {present} {other} && ln -sfn {other} current")
    said = flex(machine, "version", check=False)
    assert said.code == 1
    assert "dpkg-reconfigure aks-flex-node" in said.err

    machine.run("dpkg-trigger", "--by-package=python3-minimal", "/usr/bin/python3")
    if machine.record.system is DebianRelease.TRIXIE:
        stops_at_a_wheel_that_was_changed(machine)
        machine.run("mv", f"{ENVIRONMENTS}/{other}", f"{ENVIRONMENTS}/{present}")
        machine.run("dpkg", "--configure", "-a")
    else:
        machine.run("dpkg", "--triggers-only", "--pending")

    assert flex(machine, "version").out.strip() == BEFORE
    assert environments(machine) == [present, "current"]


def stops_at_a_wheel_that_was_changed(machine: EdgeMachine) -> None:
    """The upgrade fails before it changes anything, so that it can be reverted."""
    wheel = machine.run("sh", "-c", f"ls {WHEELS}/pyyaml-*-cp313-*.whl").out.strip()
    machine.run("sh", "-c", f"cp -p {wheel} /root/right.whl && echo >>{wheel}")
    before = environments(machine)
    said = machine.run("dpkg", "--triggers-only", "--pending", check=False)
    assert said.code != 0
    assert f"aks-flex-node: {wheel} was changed" in said.err
    assert "sudo apt install --reinstall aks-flex-node" in said.err
    assert environments(machine) == before
    machine.run("mv", "/root/right.whl", wheel)


def join(lab: Lab, machine: EdgeMachine) -> ManagedLabNode:
    principal = lab.azure.directory.service_principal(machine.name, f"secret-of-{machine.name}")
    node = ManagedLabNode(lab, machine, principal)
    node.join()
    assert lab.cluster.node_ready(machine.name)
    return node


def upgrades_under_the_running_node(node: ManagedLabNode) -> None:
    machine = node.machine
    # As if the previous version had another text: both sides have changed it, and dpkg must choose.
    machine.run("sed", "-i", f"s#^ {EXAMPLE} [0-9a-f]*#&0#;s#^ {EXAMPLE} .# {EXAMPLE} #", "/var/lib/dpkg/status")
    machine.run("sh", "-c", f"echo '# mine' >>{EXAMPLE}")
    running = processes(machine)

    apt(machine, "update")
    apt(machine, "-o", "Dpkg::Options::=--force-confold", "upgrade")

    assert installed(machine) == f"installed {__version__}"
    assert flex(machine, "version").out.strip() == __version__
    assert processes(machine) == running, "neither the kubelet nor containerd was restarted"
    assert len(environments(machine)) == 2, "the new version and the link: the daemon was restarted"
    assert machine.run("tail", "-n1", EXAMPLE).out == "# mine\n"
    assert machine.run("tail", "-n1", f"{EXAMPLE}.dpkg-dist").out != "# mine\n"
    node.wait_until_applied(node.update(nodeConfig={"labels": {"after": "the-upgrade"}}))
    until(lambda: facts(machine, "health", check=False)["healthy"], "the node is healthy")


def refuses_to_go_back(machine: EdgeMachine) -> None:
    said = apt(machine, "install", "--allow-downgrades", f"aks-flex-node={BEFORE}", check=False)
    assert said.code != 0
    assert f"cannot be replaced by the older {BEFORE}" in said.out + said.err
    assert installed(machine) == f"installed {__version__}"


def refuses_to_leave_a_node_alone(machine: EdgeMachine) -> None:
    said = apt(machine, "remove", "aks-flex-node", check=False)
    assert said.code != 0
    assert "sudo aks-flex-node unbootstrap" in said.out + said.err
    assert installed(machine) == f"installed {__version__}"
    assert flex(machine, "version").out.strip() == __version__


def is_taken_from_the_node_by_force_and_comes_back(machine: EdgeMachine) -> None:
    """The node keeps running, and the ledger survives even the purge."""
    node = machine.run("systemctl", "show", "--property=MainPID", "kubelet", "containerd").out
    apt(machine, "remove", "aks-flex-node", setting="AKS_FLEX_NODE_REMOVE=force")
    assert not machine.run("ls", ENVIRONMENTS, check=False).ok
    said = apt(machine, "purge", "aks-flex-node")
    assert "sudo aks-flex-node unbootstrap" in said.out + said.err
    assert not machine.run("ls", "/etc/aks-flex-node", check=False).ok
    assert machine.run("ls", "/var/lib/aks-flex-node").out
    assert machine.run("systemctl", "show", "--property=MainPID", "kubelet", "containerd").out == node
    apt(machine, "install", "aks-flex-node")
    assert flex(machine, "version").out.strip() == __version__
