"""Virtual machines of the lab: the same commands as for containers, and a power loss as of a real disk."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.machines.command_channel import PORTS
from tests.agents import differences
from tests.harness import LAB, command
from tests.vm.machines import virtual_machine
from tests.vm.node_lifecycle import SWAP_FILE, swaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def shared(lab: Lab) -> Iterator[EdgeMachine]:
    """Yields one machine for the tests that neither stop it nor change its disk."""
    with virtual_machine(lab, "vm-shared") as machine:
        yield machine


def test_command_passes_input_output_and_exit_code(shared: EdgeMachine) -> None:
    done = shared.run("sh", "-c", "cat; echo problem >&2; exit 7", check=False, input="typed\n" * 20000)

    assert (done.code, done.out, done.err) == (7, "typed\n" * 20000, "problem\n")
    assert shared.run("no-such-program", check=False).code == 127
    assert shared.run("sh", "-c", "kill -9 $$", check=False).code == 137
    assert command(LAB, "machine", "exec", "vm-shared", "--", "hostname").out == "vm-shared\n"


def test_more_commands_than_ports_of_a_machine_run_at_once(shared: EdgeMachine) -> None:
    with ThreadPoolExecutor(2 * PORTS) as many:
        said = list(many.map(lambda number: shared.run("echo", str(number)).out, range(3 * PORTS)))

    assert said == [f"{number}\n" for number in range(3 * PORTS)]


def test_status_shows_the_architecture_of_a_machine(shared: EdgeMachine) -> None:
    status = json.loads(command(LAB, "status", "--json").out)

    found = [(one["name"], one["arch"], one["up"]) for one in status["machines"]]
    assert found == [(shared.name, Architecture.of_host().value, True)]


def test_virtual_machine_is_a_debian_host_with_its_own_kernel(shared: EdgeMachine) -> None:
    assert shared.run("systemctl", "is-system-running").out.strip() == "running"
    assert f"cloud-{Architecture.of_host().value}" in shared.run("uname", "-r").out
    assert shared.run("stat", "-f", "-c", "%T", "/sys/fs/cgroup").out.strip() == "cgroup2fs"
    assert shared.run("cat", "/sys/module/apparmor/parameters/enabled").out.strip() == "Y"
    assert swaps(shared) == [SWAP_FILE]
    assert shared.run("modprobe", "--all", "overlay", "br_netfilter").ok
    assert shared.run("getent", "hosts", "vm-shared").out.split()[0] == shared.record.address


def test_power_loss_loses_what_was_not_flushed(add_virtual: Callable[..., EdgeMachine]) -> None:
    machine = add_virtual("vm-cut")
    machine.run("sh", "-c", "echo kept >/root/kept; sync /root/kept /root; echo lost >/root/lost")

    machine.power_cycle()

    assert machine.run("cat", "/root/kept").out == "kept\n"
    assert not machine.run("cat", "/root/lost", check=False).out


def test_disk_survives_reboot_copy_and_power_off(add_virtual: Callable[..., EdgeMachine], lab: Lab) -> None:
    machine = add_virtual("vm-verbs")
    before = machine.snapshot()
    machine.run("sh", "-c", "echo kept >/root/file; sysctl -qw vm.swappiness=7")
    assert {line.split("key='")[1].split("'")[0] for line in differences(before, machine)} == {
        "/root/file",
        "vm.swappiness",
    }
    boot = machine.run("cat", "/proc/sys/kernel/random/boot_id").out

    machine.reboot()
    assert machine.run("cat", "/proc/sys/kernel/random/boot_id").out != boot
    assert machine.run("cat", "/root/file").out == "kept\n"

    with lab.exclusive():
        other = lab.inventory.copy(machine, "vm-copy")
    assert other.run("hostname").out == "vm-copy\n"
    assert other.run("cat", "/root/file").out == "kept\n"
    assert other.run("cat", "/etc/machine-id").out != machine.run("cat", "/etc/machine-id").out
    assert other.run("ping", "-c1", "-W5", machine.record.address).ok
    with lab.exclusive():
        lab.inventory.remove(other)

    machine.run("rm", "/root/file")
    machine.run("systemctl", "poweroff")
    runner = machine.runner()
    assert runner is None or runner.wait(300)
    assert machine.main_pid() is None
    machine.start()
    assert differences(before, machine) == []
