"""The remedies of errors of the lab's host and of its cleanup are followed on this machine."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.components import gateway
from aks_flex_lab.host_requirements import REQUIRED_PROGRAMS, require_host
from aks_flex_lab.kernel.cgroups import LabCgroups
from aks_flex_lab.kernel.mounts import remove_tree
from aks_flex_lab.kernel.namespaces import NetworkNamespace
from aks_flex_lab.layout import LabLayout
from aks_flex_lab.processes import run, spawn
from tests.remedies.catalogue import advice, command
from tests.remedies.lab_harness import LabPrompt, failure
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAB = "remedy"  # no lab of this name is started; only its kernel objects are used
HIERARCHIES = "from aks_flex_lab.kernel.cgroups import hierarchies; print(len(hierarchies()))"
MAKE = f"from aks_flex_lab.kernel.cgroups import LabCgroups; print(LabCgroups('{LAB}').make('part-x'))"


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[LabLayout]:
    yield LabLayout(LAB, tmp_path / "labs", tmp_path / "cache")
    LabCgroups(LAB).kill()
    LabCgroups(LAB).remove()


def link_programs(room: Path, *without: str) -> Path:
    """Creates a directory with the programs of a prepared host, except some."""
    room.mkdir()
    for program in REQUIRED_PROGRAMS.keys() - set(without):
        found = shutil.which(program, path="/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin")
        assert found, program
        (room / program).symlink_to(found)
    return room


@pytest.mark.remedy("program-not-found")
def test_lab_can_start_after_the_named_package_is_installed(
    layout: LabLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = link_programs(tmp_path / "bin", "busybox")
    monkeypatch.setenv("PATH", str(programs))
    error = failure(require_host, layout)
    assert error.name == "program-not-found"
    assert "`apt-get install --no-install-recommends busybox-static`" in error.hint

    advice("program-not-found", "Run the `apt-get` command of the message, or `make setup` in the checkout.")
    (programs / "busybox").symlink_to("/bin/busybox")  # from the package
    require_host(layout)


@pytest.mark.remedy("program-not-found")
def test_lab_finds_programs_of_a_directory_added_to_path(
    layout: LabLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, system = link_programs(tmp_path / "bin", "iptables"), tmp_path / "sbin"
    system.mkdir()
    (system / "iptables").symlink_to(shutil.which("iptables", path="/usr/sbin:/sbin") or "")
    monkeypatch.setenv("PATH", str(programs))
    assert failure(require_host, layout).name == "program-not-found"

    advice("program-not-found", "If the program is installed in `/usr/sbin`, add that directory to `PATH`.")
    monkeypatch.setenv("PATH", f"{programs}:{system}")
    require_host(layout)


@pytest.mark.remedy("kernel-feature-missing")
@pytest.mark.parametrize("feature", ["bridge", "nf_nat"])
def test_kernel_feature_is_used_after_its_module_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: str
) -> None:
    """`ip`, `nsenter` and `modprobe` behave as with a kernel whose features are modules."""
    room, loaded = tmp_path / "bin", tmp_path / "loaded"
    room.mkdir()
    scripts = {
        "modprobe": f'shift; for module in "$@"; do touch {loaded}.$module; done',
        "ip": f"[ -e {loaded}.bridge ] || {{ echo 'Error: Unknown device type.' >&2; exit 2; }}",
        "nsenter": f'[ -e {loaded}.nf_nat ] || {{ echo "iptables: can\'t initialize table nat" >&2; exit 3; }}',
    }
    for name, script in scripts.items():
        (room / name).write_text(f"#!/bin/sh\n{script}\n")
        (room / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{room}:/usr/bin:/bin")
    namespace = NetworkNamespace("fl.remedy.none")

    def use() -> None:
        if feature == "bridge":
            namespace.ip("link add br0 type bridge")
        else:
            namespace.add_iptables_rule("nat", "PREROUTING", "-j", "ACCEPT")

    assert failure(use).name == "kernel-feature-missing"

    start = {"bridge": "modprobe -a overlay", "nf_nat": "modprobe -a nf_nat"}[feature]
    run(*command("kernel-feature-missing", start))
    use()


def in_mount_namespace(*lines: str) -> str:
    """Runs shell lines in their own mount namespace; returns all output."""
    return run("unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines) + " 2>&1").out


@pytest.mark.remedy("cgroups-unavailable")
def test_cgroups_are_found_after_they_are_mounted() -> None:
    mount = " ".join(command("cgroups-unavailable", "mount -t cgroup2"))
    ask = f"{sys.executable} -c '{HIERARCHIES}' 2>&1 || true"
    unmount = "umount -R /sys/fs/cgroup 2>&1 || true"
    output = in_mount_namespace(unmount, ask, "mkdir -p /sys/fs/cgroup", mount, ask).splitlines()

    assert any("cgroups-unavailable" in line or "No cgroup hierarchy is mounted" in line for line in output), output
    assert output[-1] == "1"


@pytest.mark.remedy("cgroup-failed")
def test_cgroup_is_created_when_its_file_system_is_writable(layout: LabLayout) -> None:
    ask = f'{sys.executable} -c "{MAKE}" 2>&1 || true'
    read_only = "for at in $(grep ' cgroup' /proc/self/mounts | cut -d' ' -f2); do mount -o remount,bind,ro $at; done"
    assert "cannot be created" in in_mount_namespace(read_only, ask)

    advice("cgroup-failed", "Run the lab directly on the host, or in a privileged container with a writable")
    assert "part-x" in run(sys.executable, "-c", MAKE).out


@pytest.mark.remedy("port-in-use")
def test_lab_selects_a_free_port_without_the_option(layout: LabLayout) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert failure(gateway.choose_port, layout, port, alive=False).name == "port-in-use"

        advice(
            "port-in-use", "Name another port, or omit `--api-port`. The lab then selects a free port and keeps it."
        )
        selected = gateway.choose_port(layout, None, alive=False)
        gateway.save_port(layout, selected)

    assert selected != port
    assert gateway.choose_port(layout, None, alive=True) == selected


@pytest.mark.remedy("lab-cleanup-incomplete")
def test_second_down_removes_what_a_program_created_meanwhile(layout: LabLayout) -> None:
    """A program creates a network namespace of the lab again whenever it is removed."""
    prompt, ended, namespace = LabPrompt(layout), threading.Event(), NetworkNamespace(f"{layout.prefix}left")

    def create() -> None:
        while not ended.is_set():
            run("ip", "netns", "add", namespace.name, check=False)

    program = threading.Thread(target=create)
    program.start()
    names: list[str] = []

    def down() -> bool:
        code, text = prompt.invoke("down")
        names.extend(["lab-cleanup-incomplete"] if "lab-cleanup-incomplete" in text else [])
        return code == 1 and bool(names)

    try:
        until(down, "the lab reports what is left", 60)
    finally:
        ended.set()
        program.join()

    advice("lab-cleanup-incomplete", "stop the program that starts it")
    prompt.run(*command("lab-cleanup-incomplete", "aks-flex-lab down")[1:])

    assert not namespace.exists


@pytest.mark.remedy("network-setup-failed")
def test_network_is_set_up_after_down_has_removed_its_leftovers(layout: LabLayout) -> None:
    """An interrupted program has left an address in a network namespace of the lab."""
    namespace, address = NetworkNamespace(f"{layout.prefix}wan"), "addr add 192.0.2.1/24 dev lo"
    namespace.make()
    namespace.ip(address)
    assert failure(namespace.ip, address).name == "network-setup-failed"

    LabPrompt(layout).run(*command("network-setup-failed", "aks-flex-lab down")[1:])
    assert command("network-setup-failed", "aks-flex-lab up")[1:] == ["up"]  # which begins with what follows
    namespace.make()
    try:
        namespace.ip(address)
    finally:
        namespace.remove()


@pytest.mark.remedy("process-not-stopped")
def test_down_removes_a_cgroup_that_contained_a_process(layout: LabLayout, tmp_path: Path) -> None:
    groups = LabCgroups(LAB)
    process = spawn(groups.join_command("part-x", ["sleep", "600"]), log=tmp_path / "log")
    until(lambda: process.pid in groups.pids("part-x"), "the process is in the cgroup", 30)
    assert failure(groups.remove, "part-x", seconds=0).name == "process-not-stopped"

    prompt = LabPrompt(layout)
    prompt.run(*command("process-not-stopped", "aks-flex-lab down")[1:])

    assert groups.roots() == []
    assert not process.alive


@pytest.mark.remedy("mount-conflict")
def test_directory_is_removed_after_its_mount_is_unmounted(tmp_path: Path) -> None:
    directory, disk = tmp_path / "lab", tmp_path / "disk"
    point = directory / "mounted"
    point.mkdir(parents=True)
    disk.mkdir()
    (disk / "file").write_text("kept")
    run("mount", "--bind", disk, point)
    try:
        error = failure(remove_tree, directory)
        assert error.name == "mount-conflict"
        assert str(point) in error.message
        advice("mount-conflict", "Run `umount` with the path in the message, then repeat the command.")
    finally:
        run(*command("mount-conflict", "umount"), point)
    remove_tree(directory)

    assert not directory.exists()
    assert (disk / "file").read_text() == "kept"
