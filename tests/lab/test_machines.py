"""Tests of edge machines: disk, name and network of each, and snapshots."""

from __future__ import annotations

import gzip
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab import snapshots
from aks_flex_lab.errors import LabError
from aks_flex_lab.machines.base_system import INIT_PATH, DebianRelease
from aks_flex_lab.machines.container import NSPAWN_DIRECTORY
from aks_flex_lab.processes import ProcessHandle, run
from tests.agents import exists
from tests.harness import LAB, command
from tests.remedies.lab_harness import error_name
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]


@pytest.mark.parametrize("system", list(DebianRelease))
def test_machine_runs_systemd_and_its_name_resolves(add_machine: Add, system: DebianRelease) -> None:
    machine = add_machine("alpha", system)

    assert machine.run("systemctl", "is-system-running").out.strip() == "running"
    assert f"VERSION_CODENAME={system.value}" in machine.run("cat", "/etc/os-release").out
    assert machine.run("hostname").out.strip() == "alpha"
    assert machine.run("getent", "hosts", "alpha").out.split()[0] == machine.record.address
    assert machine.run("getent", "hosts", "alpha.site-1.flex.internal").out.split()[0] == machine.record.address


def test_machine_has_no_route_out_of_lab(add_machine: Add) -> None:
    machine = add_machine("alpha")

    for address in outside_addresses():
        assert not machine.run("ping", "-c1", "-W1", address, check=False).ok, address
    assert not machine.run("getent", "hosts", "example.com", check=False).ok
    routes = json.loads(machine.run("ip", "-j", "route").out)
    assert {route.get("dev") for route in routes} == {"eth0"}


def outside_addresses() -> list[str]:
    """Returns the addresses of the host, which is the nearest endpoint outside the lab."""
    links = json.loads(run("ip", "-j", "-4", "addr").out)
    found = [one["local"] for link in links for one in link["addr_info"] if not one["local"].startswith("127.")]
    return found or ["192.0.2.1"]


def test_wan_namespace_has_no_route_out_of_lab(lab: Lab) -> None:
    wide = lab.network.wan
    links = json.loads(run("ip", "-n", wide.name, "-j", "link").out)
    assert {link["ifname"] for link in links} - {"lo", "br0", "cloud"} <= {f"site{n}" for n in range(256)}
    assert not run("ip", "-n", wide.name, "route", "get", "192.0.2.1", check=False).ok


def test_machines_reach_each_other_within_and_across_sites(add_machine: Add) -> None:
    one, near, far = add_machine("one", site="a"), add_machine("near", site="a"), add_machine("far", site="b")

    assert one.record.address.rsplit(".", 1)[0] == near.record.address.rsplit(".", 1)[0]
    assert one.record.address.rsplit(".", 1)[0] != far.record.address.rsplit(".", 1)[0]
    assert one.run("ping", "-c1", "-W2", "near").ok
    assert one.run("ping", "-c1", "-W2", "far").ok


def test_reboot_keeps_disk_and_drops_runtime_state(add_machine: Add) -> None:
    machine = add_machine("alpha")
    machine.run("sh", "-c", "echo kept >/root/file; echo gone >/run/file; iptables -A INPUT -j ACCEPT")
    first = machine.run("cat", "/proc/sys/kernel/random/boot_id").out

    machine.reboot()

    assert machine.run("cat", "/proc/sys/kernel/random/boot_id").out != first
    assert machine.run("cat", "/root/file").out == "kept\n"
    assert not exists(machine, "/run/file")
    assert "-A INPUT" not in machine.run("iptables-save").out


def test_power_cut_kills_processes_without_sigterm_and_keeps_disk(add_machine: Add) -> None:
    machine = add_machine("alpha")
    asked = "trap 'echo asked >/root/asked; exit' TERM; while :; do sleep 0.1; done"
    machine.run("systemd-run", "-q", "--unit=polite", "sh", "-c", asked)
    machine.run("sh", "-c", "echo kept >/root/file")

    machine.power_cycle()

    assert machine.run("cat", "/root/file").out == "kept\n"
    assert not exists(machine, "/root/asked")
    assert not machine.run("systemctl", "is-active", "polite", check=False).ok


def test_reboot_sends_sigterm_to_services(add_machine: Add) -> None:
    machine = add_machine("alpha")
    asked = "trap 'echo asked >/root/asked; exit' TERM; while :; do sleep 0.1; done"
    machine.run("systemd-run", "-q", "--unit=polite", "sh", "-c", asked)

    machine.reboot()

    assert machine.run("cat", "/root/asked").out == "asked\n"


def test_container_init_is_not_mistaken_for_machine_init(add_machine: Add) -> None:
    machine = add_machine("alpha")
    init = machine.main_pid()
    # The first process is PID 1 in its own namespace and has a lower PID on the host than the machine's.
    last = Path("/proc/sys/kernel/ns_last_pid")
    last.write_text("300")
    machine.run("systemd-run", "-q", "--unit=box", "unshare", "--pid", "--fork", "sleep", "1000")

    assert machine.main_pid() == init
    assert machine.run("cat", "/proc/1/comm").out == "systemd\n"
    machine.power_cycle()
    assert machine.main_pid() != init


def test_machine_that_does_not_boot_is_corrected_or_recreated(lab: Lab, add_machine: Add) -> None:
    machine = add_machine("alpha")
    unit = "/etc/systemd/system/hang.service"
    text = "[Service]\\nType=oneshot\\nTimeoutStartSec=infinity\\nExecStart=/bin/sleep infinity\\n[Install]"
    machine.run("sh", "-c", f"printf '{text}\\nWantedBy=multi-user.target\\n' >{unit}; systemctl enable -q hang")
    before = machine.main_pid()
    assert before
    machine.reboot_marker.touch()
    ProcessHandle.of(before).kill(signal.SIGKILL)
    with pytest.raises(LabError) as hangs:
        machine.wait_booted(8, other_than=before)
    assert hangs.value.name == "machine-boot-failed"
    until(lambda: "hang" in machine.run("systemctl", "list-jobs", check=False).out, "the boot hangs", 120)
    machine.run("sh", "-c", "systemctl disable -q hang; systemctl stop hang")
    machine.wait_booted()

    machine.run("rm", f"/{INIT_PATH}")
    machine.stop()
    said = command(LAB, "machine", "start", "alpha", check=False)
    assert error_name(said.err) == "machine-exited"
    for word in ("rm", "add"):
        command(LAB, "machine", word, "alpha")
    assert machine.run("systemctl", "is-system-running").out.strip() == "running"


def test_concurrent_machine_start_boots_machine_once(lab: Lab, add_machine: Add) -> None:
    machine = add_machine("alpha")
    machine.stop()
    with ThreadPoolExecutor() as both:
        said = list(both.map(lambda _: command(LAB, "machine", "start", "alpha", check=False), range(2)))

    assert sorted(one.code for one in said) in ([0, 0], [0, 1])
    runners = machine.cgroups.pids("runner-alpha")
    assert machine.runner()
    assert len(runners) == 1


def test_frozen_machine_can_be_removed(lab: Lab, add_machine: Add) -> None:
    machine = add_machine("alpha")
    frozen = machine.cgroups.frozen(machine.cgroup)
    frozen.__enter__()  # never thawed

    with lab.exclusive():
        lab.inventory.remove(machine)

    assert machine.main_pid() is None


def test_removing_machine_keeps_machine_with_same_name_prefix(lab: Lab, add_machine: Add) -> None:
    longer = add_machine("alpha-10")
    shorter = add_machine("alpha-1")
    before = set(NSPAWN_DIRECTORY.glob("*/*alpha-10"))

    with lab.exclusive():
        lab.inventory.remove(shorter)

    assert set(NSPAWN_DIRECTORY.glob("*/*alpha-10")) == before
    assert longer.run("true").ok


@pytest.mark.parametrize("name", ["api", "etcd", "Upper", "a/b", "-a"])
def test_invalid_machine_name_is_refused(lab: Lab, name: str) -> None:
    said = command(LAB, "machine", "add", "--", name, check=False)

    assert said.code == 2
    assert "lab-machine-name-invalid" in said.err


def test_powered_off_machine_can_be_started(lab: Lab, add_machine: Add) -> None:
    machine = add_machine("alpha")
    runner = machine.runner()
    assert runner
    machine.run("systemctl", "poweroff", check=False)
    assert runner.wait(20)

    said = command(LAB, "machine", "exec", "alpha", "--", "true", check=False)
    assert said.code == 5
    assert error_name(said.err) == "machine-not-running"
    command(LAB, "machine", "start", "alpha")
    assert machine.run("systemctl", "is-system-running").out.strip() == "running"


def test_machine_copy_has_same_disk_and_own_identity(lab: Lab, add_machine: Add) -> None:
    source = add_machine("alpha")
    source.run("sh", "-c", "echo copied >/root/file; echo copied >/usr/local/file")
    with lab.exclusive():
        copy = lab.inventory.copy(source, "beta")
    try:
        assert copy.run("cat", "/root/file", "/usr/local/file").out == "copied\n" * 2
        assert copy.run("hostname").out.strip() == "beta"
        assert copy.record.address != source.record.address
        assert copy.run("cat", "/etc/machine-id").out != source.run("cat", "/etc/machine-id").out
        copy.run("sh", "-c", "echo changed >/usr/local/file")
        assert source.run("cat", "/usr/local/file").out == "copied\n"
    finally:
        with lab.exclusive():
            lab.inventory.remove(copy)


def test_machine_exec_passes_output_and_exit_code(add_machine: Add) -> None:
    add_machine("alpha")

    said = command(LAB, "machine", "exec", "alpha", "--", "sh", "-c", "echo out; echo err >&2; exit 7", check=False)

    assert (said.out, said.err, said.code) == ("out\n", "err\n", 7)


def test_machine_exec_does_not_inherit_caller_environment(add_machine: Add) -> None:
    add_machine("alpha")

    said = command(LAB, "machine", "exec", "alpha", "env", env={"CANARY": "outside"})

    assert "CANARY" not in said.out


def test_removed_machine_is_unknown(lab: Lab) -> None:
    command(LAB, "machine", "add", "brief")
    assert error_name(command(LAB, "machine", "add", "brief", check=False).err) == "machine-exists"
    command(LAB, "machine", "rm", "brief")

    said = command(LAB, "machine", "exec", "brief", "true", check=False)
    assert said.code == 2
    assert error_name(said.err) == "machine-not-found"
    assert "brief" not in command(LAB, "machine", "list").out

    command(LAB, "machine", "add", "brief")  # the name is free again
    assert error_name(command(LAB, "machine", "exec", "bref", "true", check=False).err) == "machine-not-found"
    listed = command(LAB, "machine", "list").out.splitlines()[1].split()[0]
    command(LAB, "machine", "exec", listed, "true")
    command(LAB, "machine", "rm", "brief")


def test_half_created_machine_is_discarded_and_can_be_added_again(lab: Lab, add_machine: Add) -> None:
    machine = add_machine("alpha")
    machine.stop()
    machine.created_marker.unlink()  # as if its creation was interrupted
    (machine.directory / "root" / "etc" / "machine-id").unlink()

    command(LAB, "up")
    assert "alpha" not in command(LAB, "machine", "list").out
    command(LAB, "machine", "add", "alpha")
    assert machine.run("systemctl", "is-system-running").out.strip() == "running"


@pytest.mark.parametrize("system", list(DebianRelease))
def test_untouched_machine_has_no_diff_after_reboot_and_power_cut(add_machine: Add, system: DebianRelease) -> None:
    machine = add_machine("alpha", system)
    before = machine.snapshot()

    assert snapshots.render(machine_changes(before, machine.snapshot())) == []
    machine.reboot()
    assert snapshots.render(machine_changes(before, machine.snapshot())) == []
    machine.power_cycle()
    assert snapshots.render(machine_changes(before, machine.snapshot())) == []


CHANGES = {
    "a mode bit": ("chmod o-x /usr/bin/less", ("file", "/usr/bin/less")),
    "an owner": ("chown 1:1 /etc/hostname", ("file", "/etc/hostname")),
    "content": ("echo x >>/etc/hosts", ("file", "/etc/hosts")),
    "an extended attribute": (
        'python3 -c \'import os; os.setxattr("/etc/hosts", "user.x", b"1")\'',
        ("file", "/etc/hosts"),
    ),
    "a link": ("ln -sf /dev/zero /etc/strange", ("file", "/etc/strange")),
    "a unit": (
        "printf '[Service]\\nExecStart=/bin/true\\n' >/etc/systemd/system/new.service; systemctl daemon-reload",
        ("unit", "new.service"),
    ),
    "a mount": ("mkdir /mnt/left; mount -t tmpfs left /mnt/left", ("mount", "/mnt/left")),
    "a user": ("useradd newcomer", ("user", "newcomer")),
    "a sysctl": ("sysctl -qw net.ipv4.conf.eth0.rp_filter=2", ("sysctl", "net.ipv4.conf.eth0.rp_filter")),
    "a link of the network": ("ip link add left0 type bridge", ("link", "left0")),
    "a route": ("ip route add 198.18.99.0/24 dev eth0", ("route", None)),
    "a firewall rule": ("iptables -A FORWARD -j DROP", ("firewall", None)),
    "a process": ("systemd-run -q sleep 4242", ("process", None)),
    "a control group": (
        "mkdir -p /sys/fs/cgroup/pids/kubepods /sys/fs/cgroup/kubepods 2>/dev/null; true",
        ("cgroup", None),
    ),
}


def test_snapshot_diff_detects_every_kind_of_change(add_machine: Add) -> None:
    machine = add_machine("alpha")
    before = machine.snapshot()
    for what, (change, (section, key)) in CHANGES.items():
        machine.run("sh", "-c", change)
        after = machine.snapshot()
        found = machine_changes(before, after)
        assert [one for one in found if one.section == section and key in {None, one.key}], what
        before = after


def test_machine_diff_needs_snapshot_and_exits_nonzero_on_differences(add_machine: Add) -> None:
    machine = add_machine("alpha")
    file = machine.directory / "snapshot.json.gz"
    python = "/usr/bin/python3"

    def error(word: str) -> str:
        return error_name(command(LAB, "machine", word, "alpha", check=False).err)

    for name in ("snapshot-not-found", "snapshot-unreadable", "snapshot-outdated"):
        if name == "snapshot-unreadable":
            file.write_text("damaged")
        elif name == "snapshot-outdated":
            document = {**json.loads(gzip.decompress(file.read_bytes())), "format": 0}
            file.write_bytes(gzip.compress(json.dumps(document).encode()))
        assert error("diff") == name
        command(LAB, "machine", "snapshot", "alpha")
    target = machine.run("readlink", python).out.strip()
    machine.run("sh", "-c", f"rm {python}; printf '#!/bin/sh\\necho broken >&2; exit 1' >{python}; chmod +x {python}")
    assert error("diff") == "snapshot-failed"
    machine.run("ln", "-sf", target, python)
    assert command(LAB, "machine", "diff", "alpha").out == ""
    machine.run("chmod", "0600", "/etc/hosts")
    said = command(LAB, "machine", "diff", "alpha", check=False)
    assert said.code == 1
    assert said.out.split() == ["file", "/etc/hosts", "changed", "mode", "0644", "->", "0600"]


def machine_changes(before: snapshots.Snapshot, after: snapshots.Snapshot) -> list[snapshots.SnapshotDifference]:
    """Returns the changes of the machine itself: other machines change the shared kernel."""
    return [one for one in snapshots.diff(before, after) if not one.shared]
