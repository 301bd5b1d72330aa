"""Tests that need a machine with its own kernel state and systemd."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import (
    KillGroup,
    LoadModule,
    MakeDirectory,
    ReloadUnits,
    Remove,
    RemoveTree,
    RestartUnit,
    Run,
    SetSysctl,
    StartUnit,
    SwapOff,
    SwapOn,
    UnloadModule,
    Unmount,
    WriteFile,
)
from tests.hosts.units import FILE, NAME, TEXT, WithUnit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.fixtures import Stand

SYSCTL = "net.ipv4.ip_default_ttl"


class LiveUnits(WithUnit):
    def test_restart_changes_invocation_and_pid_but_second_start_does_not(self, stand: Stand) -> None:
        stand.host.apply(StartUnit(NAME))
        first = stand.host.unit(NAME)
        stand.twice(StartUnit(NAME))
        assert stand.host.unit(NAME) == first

        stand.host.apply(RestartUnit(NAME))
        second = stand.host.unit(NAME)

        assert first.invocation != second.invocation
        assert first.pid not in {0, second.pid}

    def test_unit_needs_reload_until_daemon_reload(self, stand: Stand) -> None:
        stand.host.apply(StartUnit(NAME))
        assert not stand.host.unit(NAME).needs_reload

        stand.host.apply(WriteFile(FILE, TEXT.replace("1000", "1001").encode()))
        assert stand.host.unit(NAME).needs_reload

        stand.twice(ReloadUnits())
        assert not stand.host.unit(NAME).needs_reload

    def test_failed_unit_start_is_reported_with_journalctl_hint(self, stand: Stand) -> None:
        stand.twice(WriteFile(FILE, TEXT.replace("/bin/sleep", "/bin/missing").encode()), ReloadUnits())

        with pytest.raises(MachineError) as failed:
            stand.host.apply(StartUnit("no-such-thing.service"))

        assert failed.value.name == "action-failed"
        assert "journalctl -u no-such-thing.service" in failed.value.hint


class Mounts:
    @pytest.fixture
    def mounted(self, stand: Stand) -> Iterator[str]:
        """Yields a small tmpfs mounted in a directory of a tree."""
        point = stand.at("tree/mount")
        stand.twice(MakeDirectory(stand.at("tree")), MakeDirectory(point))
        stand.host.apply(Run(("mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", point), "mount it"))
        yield point
        stand.twice(Unmount(point))

    def test_remove_tree_is_refused_while_a_mount_is_below(self, stand: Stand, mounted: str) -> None:
        stand.twice(WriteFile(f"{mounted}/inside", b"x"), WriteFile(stand.at("tree/file"), b"x"))

        for path in (stand.at("tree"), mounted):
            with pytest.raises(MachineError) as refused:
                stand.host.apply(RemoveTree(path))
            assert refused.value.name == "mount-below-path"
            assert mounted in refused.value.message

        assert stand.host.read(f"{mounted}/inside") == b"x"
        assert stand.host.read(stand.at("tree/file")) == b"x"

    def test_remove_keeps_empty_mount_point(self, stand: Stand, mounted: str) -> None:
        stand.twice(Remove(mounted))

        assert stand.host.stat(mounted) is not None

    def test_remove_tree_after_unmount_keeps_bind_mount_source(self, stand: Stand) -> None:
        stand.twice(MakeDirectory(stand.at("kept")), WriteFile(stand.at("kept/file"), b"x"))
        stand.twice(MakeDirectory(stand.at("tree")), MakeDirectory(stand.at("tree/bound")))
        stand.host.apply(Run(("mount", "--bind", stand.at("kept"), stand.at("tree/bound")), "bind it"))
        with pytest.raises(MachineError):
            stand.host.apply(RemoveTree(stand.at("tree")))

        stand.twice(Unmount(stand.at("tree/bound")), RemoveTree(stand.at("tree")))

        assert (stand.host.list_dir(stand.place), stand.host.read(stand.at("kept/file"))) == (("kept",), b"x")

    def test_unmount_removes_stacked_mounts(self, stand: Stand, mounted: str) -> None:
        stand.host.apply(Run(("mount", "-t", "tmpfs", "tmpfs", mounted), "mount another"))
        stand.twice(Unmount(mounted), RemoveTree(stand.at("tree")))

        assert stand.host.list_dir(stand.place) == ()

    @pytest.mark.parametrize("propagation", ["shared", "slave", "private", "unbindable"])
    @pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
    def test_unmount_of_a_bind_mount_keeps_the_mounts_of_the_host(
        self, stand: Stand, propagation: str, busy: bool
    ) -> None:
        kept, bound = stand.at("kept"), stand.at("tree/bound")
        stand.twice(MakeDirectory(kept), MakeDirectory(stand.at("tree")), MakeDirectory(bound))
        disk = f"{kept}/disk"
        commands = [
            ("mount", "--bind", kept, kept),
            ("mount", "--make-rshared", kept),
            ("mkdir", disk),
            ("mount", "--rbind", kept, bound),
            ("mount", f"--make-r{propagation}", bound),
            ("mount", "-t", "tmpfs", "tmpfs", disk),  # of the host, after the bind mount
            ("touch", f"{disk}/of-the-host"),
            ("mount", "-t", "tmpfs", "tmpfs", bound),  # another one over it
        ]
        for command in commands:
            stand.host.apply(Run(command, "prepare"))
        user = subprocess.Popen(["/bin/sleep", "60"], cwd=bound) if busy else None
        try:
            stand.twice(Unmount(bound), RemoveTree(stand.at("tree")))
            assert stand.host.stat(f"{disk}/of-the-host"), "the host's own file system is still there"
        finally:
            if user:
                user.kill()
                user.wait()
            stand.host.apply(Run(("umount", "--recursive", "--lazy", kept), "clean up"))

    def test_full_disk_is_reported_and_old_file_is_kept(self, stand: Stand, mounted: str) -> None:
        path = f"{mounted}/file"
        stand.twice(WriteFile(path, b"old"))

        with pytest.raises(MachineError) as full:
            stand.host.apply(WriteFile(path, b"x" * 100_000))

        assert full.value.name == "disk-full"
        assert stand.host.read(path) == b"old"
        assert stand.host.list_dir(mounted) == ("file",)

    def test_read_only_file_system_is_reported(self, stand: Stand, mounted: str) -> None:
        stand.host.apply(Run(("mount", "-o", "remount,ro", mounted), "make it read-only"))

        with pytest.raises(MachineError) as refused:
            stand.host.apply(WriteFile(f"{mounted}/file", b"x"))

        assert refused.value.name == "filesystem-read-only"


class Attributes:
    def test_immutable_file_is_named_with_its_remedy(self, stand: Stand) -> None:
        path = stand.at("tree/file")
        stand.twice(MakeDirectory(stand.at("tree")), WriteFile(path, b"x"))
        stand.host.apply(Run(("chattr", "+i", path), "make it immutable"))
        try:
            for action in (RemoveTree(stand.at("tree")), WriteFile(path, b"y")):
                with pytest.raises(MachineError) as refused:
                    stand.host.apply(action)
                assert refused.value.name == "file-access-failed"
                assert "file may be immutable" in refused.value.message
                assert "chattr -i" in refused.value.hint
        finally:
            stand.host.apply(Run(("chattr", "-i", path), "permit changes"))


class Kernel:
    def test_sysctl_is_set_and_restored(self, stand: Stand) -> None:
        path = "/proc/sys/" + SYSCTL.replace(".", "/")
        before = (stand.host.read(path) or b"").decode().strip()
        stand.twice(SetSysctl(SYSCTL, "65"))
        assert stand.host.read(path) == b"65\n"

        stand.twice(SetSysctl(SYSCTL, before))
        assert stand.host.read(path) == f"{before}\n".encode()

    def test_missing_or_invalid_sysctl_is_reported(self, stand: Stand) -> None:
        for key, value in (("net.no.such.key", "1"), (SYSCTL, "many")):
            with pytest.raises(MachineError) as refused:
                stand.host.apply(SetSysctl(key, value))
            assert refused.value.name == "sysctl-failed"
            assert key in refused.value.message

    def test_missing_module_fails_to_load_and_unload_is_a_no_op(self, stand: Stand) -> None:
        with pytest.raises(MachineError) as refused:
            stand.host.apply(LoadModule("flex_no_such_module"))
        assert refused.value.name == "action-failed"

        stand.twice(UnloadModule("flex_no_such_module"))

    def test_invalid_swap_file_is_refused(self, stand: Stand) -> None:
        stand.twice(WriteFile(stand.at("swap"), b"\0" * 4096, 0o600))
        for action in (SwapOn(stand.at("swap"), 5), SwapOff(stand.at("missing"))):
            with pytest.raises(MachineError) as refused:
                stand.host.apply(action)
            assert refused.value.name == "action-failed"

    def test_failed_program_is_reported_with_last_line_of_stderr(self, stand: Stand) -> None:
        with pytest.raises(MachineError) as failed:
            stand.host.apply(Run(("sh", "-c", "echo first >&2; echo last >&2; exit 3"), "do what fails"))

        assert failed.value.name == "action-failed"
        assert failed.value.message == "Could not do what fails: last."

    def test_program_receives_input_on_stdin(self, stand: Stand) -> None:
        stand.twice(Run(("tee", stand.at("file")), "write", b"told"))

        assert stand.host.read(stand.at("file")) == b"told"
        assert stand.host.query("cat", stand.at("file")).out == "told"

    def test_program_is_killed_after_timeout(self, stand: Stand) -> None:
        assert stand.host.query("sleep", "1000", seconds=0.1).code == 124


class Groups:
    def test_kill_group_kills_processes_that_ignore_sigterm(self, stand: Stand) -> None:
        """One process ignores SIGTERM, and a shell waits for another."""
        script = "trap '' TERM; sleep 1000 & while :; do wait; sleep 1; done"
        words = ("systemd-run", "--quiet", "--collect", "--slice=flexhosttest.slice", "--unit=flex-group-test")
        stand.host.apply(Run((*words, "sh", "-c", script), "start them"))
        pid = stand.host.unit("flex-group-test.service").pid
        assert stand.host.read(f"/proc/{pid}/cmdline")

        stand.twice(KillGroup("/flexhosttest.slice", 0.2))

        assert not stand.host.read(f"/proc/{pid}/cmdline")  # gone or a zombie

    def test_kill_group_on_missing_cgroup_is_a_no_op(self, stand: Stand) -> None:
        stand.twice(KillGroup("/no-such.slice"))
