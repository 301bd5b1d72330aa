"""The package on machines: installed, upgraded under a running node, and gone without a trace."""

from __future__ import annotations

import fnmatch
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aks_flex_node import __version__
from aks_flex_node.lab import snapshots
from aks_flex_node.lab.machines.bases import System
from tests.agents import facts, flex
from tests.followed import Followed
from tests.packaging.conftest import BEFORE
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.lab.lab import Lab
    from aks_flex_node.lab.machines.machine import Machine
    from aks_flex_node.lab.processes import Result
    from tests.packaging.conftest import Repository

ENVIRONMENTS = "/usr/lib/aks-flex-node/env"
SOURCE = "/etc/apt/sources.list.d/aks-flex-node.sources"
OTHER_KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"
EXAMPLE = "/etc/aks-flex-node/config.yaml.example"
# What dpkg and apt write down for themselves whenever they do anything.
RECORDS = (
    "/var/lib/dpkg*",
    "/var/lib/apt/*",
    "/var/cache/apt*",
    "/var/cache/debconf*",
    "/var/log/dpkg.log",
    "/var/log/apt*",
    "/run/systemd/incoming",  # made by Debian 13's systemd with the first fenced service, until the next boot
)


def apt(machine: Machine, *words: str, check: bool = True) -> Result:
    done = machine.run(
        "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", *words, check=False, timeout=200
    )
    assert done.ok or not check, done.out + done.err
    return done


def introduce(machine: Machine, repository: Repository) -> None:
    """The machine knows this repository alone: it has no way to Debian's own."""
    machine.run("sh", "-c", "rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*")
    machine.run("tee", SOURCE, input=repository.source)
    until(lambda: machine.run("getent", "ahosts", "github.com", check=False).ok, "the machine resolves names")


def installed(machine: Machine) -> str:
    return machine.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "aks-flex-node").out


def environments(machine: Machine) -> list[str]:
    return machine.run("ls", ENVIRONMENTS).out.split()


def processes(machine: Machine) -> str:
    words = ("systemctl", "show", "--property=MainPID", "aks-flex-node", "kubelet", "containerd")
    return machine.run(*words).out


def leftovers(before: snapshots.Snapshot, machine: Machine) -> list[str]:
    differences = [one for one in snapshots.diff(before, machine.snapshot()) if not one.shared]
    return [str(one) for one in differences if not any(fnmatch.fnmatch(one.key, record) for record in RECORDS)]


def test_the_package_comes_serves_and_goes(
    lab: Lab, add_machine: Callable[..., Machine], repository: Repository
) -> None:
    """On all systems at once: each waits more than it works."""
    machines = [add_machine(f"deb-{system.value}", system) for system in System]
    with ThreadPoolExecutor() as pool:
        lives = [pool.submit(life, lab, machine, repository) for machine in machines]
    for lived in lives:
        lived.result()


def life(lab: Lab, machine: Machine, repository: Repository) -> None:
    introduce(machine, repository)
    before = machine.snapshot()

    is_refused_with_another_key(machine, repository)
    install_the_version_before(machine, repository)
    is_made_ready_for_another_python(machine)
    node = join(lab, machine)
    upgrades_under_the_running_node(node)
    refuses_to_go_back(machine)
    refuses_to_leave_a_node_alone(machine)

    flex(machine, "unbootstrap", "--yes")
    apt(machine, "remove", "aks-flex-node")
    assert machine.run("ls", EXAMPLE).ok, "a file of the administrator stays until the purge"
    assert not machine.run("ls", ENVIRONMENTS, check=False).ok
    apt(machine, "purge", "aks-flex-node")
    assert leftovers(before, machine) == []


def is_refused_with_another_key(machine: Machine, repository: Repository) -> None:
    other = repository.source.partition("Signed-By:")[0] + f"Signed-By: {OTHER_KEY}\n"
    machine.run("tee", SOURCE, input=other)
    assert not apt(machine, "update", check=False).ok
    assert not apt(machine, "install", "aks-flex-node", check=False).ok
    machine.run("tee", SOURCE, input=repository.source)


def install_the_version_before(machine: Machine, repository: Repository) -> None:
    """On one system from a file, on the other from the repository."""
    if machine.record.system is System.BOOKWORM:
        machine.run("curl", "-fsS", "-o", "/root/old.deb", repository.package(BEFORE))
        apt(machine, "install", "/root/old.deb")
        machine.run("rm", "/root/old.deb")
    apt(machine, "update")
    apt(machine, "install", f"aks-flex-node={BEFORE}")
    assert flex(machine, "version").out.strip() == BEFORE
    assert machine.run("systemctl", "is-enabled", "aks-flex-node", check=False).code != 0


def is_made_ready_for_another_python(machine: Machine) -> None:
    """What the machine has was made for another Python; dpkg tells the package when that changes."""
    machine.run(
        "sh", "-c", f"cd {ENVIRONMENTS} && mv {BEFORE}-* {BEFORE}-old-cp39 && ln -sfn {BEFORE}-old-cp39 current"
    )
    said = flex(machine, "version", check=False)
    assert said.code == 1
    assert "dpkg-reconfigure aks-flex-node" in said.err

    machine.run("dpkg-trigger", "--by-package=python3-minimal", "/usr/bin/python3")
    machine.run("dpkg", "--triggers-only", "--pending")

    assert flex(machine, "version").out.strip() == BEFORE
    assert f"{BEFORE}-old-cp39" not in environments(machine)


def join(lab: Lab, machine: Machine) -> Followed:
    principal = lab.azure.directory.service_principal(machine.name, f"secret-of-{machine.name}")
    node = Followed(lab, machine, principal)
    node.join()
    assert lab.cluster.node_ready(machine.name)
    return node


def upgrades_under_the_running_node(node: Followed) -> None:
    machine = node.machine
    machine.run("sh", "-c", f"echo '# mine' >>{EXAMPLE}")
    running = processes(machine)

    said = apt(machine, "upgrade").out

    assert installed(machine) == f"installed {__version__}"
    assert flex(machine, "version").out.strip() == __version__
    assert "sudo systemctl restart aks-flex-node" in said
    assert processes(machine) == running, "nothing of the node was restarted"
    assert len(environments(machine)) == 3, "both versions and the link: the old one is still run from"
    assert machine.run("tail", "-n1", EXAMPLE).out == "# mine\n"
    node.follows(
        node.update(nodeConfig={"labels": {"after": "the-upgrade"}})
    )  # by the old agent, with modules it had not loaded yet

    machine.run("systemctl", "restart", "aks-flex-node")
    machine.run("dpkg-reconfigure", "--frontend=noninteractive", "aks-flex-node")
    assert len(environments(machine)) == 2
    until(lambda: facts(machine, "health", check=False)["healthy"], "the node is healthy")


def refuses_to_go_back(machine: Machine) -> None:
    said = apt(machine, "install", "--allow-downgrades", f"aks-flex-node={BEFORE}", check=False)
    assert said.code != 0
    assert f"cannot be replaced by the older {BEFORE}" in said.out + said.err
    assert installed(machine) == f"installed {__version__}"


def refuses_to_leave_a_node_alone(machine: Machine) -> None:
    said = apt(machine, "remove", "aks-flex-node", check=False)
    assert said.code != 0
    assert "sudo aks-flex-node unbootstrap" in said.out + said.err
    assert installed(machine) == f"installed {__version__}"
    assert flex(machine, "version").out.strip() == __version__
