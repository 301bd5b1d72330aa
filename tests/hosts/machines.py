"""What only a machine with a kernel and a systemd of its own can show."""

from __future__ import annotations

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
    def test_every_start_is_another_one(self, stand: Stand) -> None:
        stand.host.apply(StartUnit(NAME))
        first = stand.host.unit(NAME)
        stand.twice(StartUnit(NAME))
        assert stand.host.unit(NAME) == first

        stand.host.apply(RestartUnit(NAME))
        second = stand.host.unit(NAME)

        assert first.invocation != second.invocation
        assert first.pid not in {0, second.pid}

    def test_a_unit_is_stale_until_systemd_has_read_its_file_again(self, stand: Stand) -> None:
        stand.host.apply(StartUnit(NAME))
        assert not stand.host.unit(NAME).needs_reload

        stand.host.apply(WriteFile(FILE, TEXT.replace("1000", "1001").encode()))
        assert stand.host.unit(NAME).needs_reload

        stand.twice(ReloadUnits())
        assert not stand.host.unit(NAME).needs_reload

    def test_a_unit_that_cannot_start_is_named_with_where_to_look(self, stand: Stand) -> None:
        stand.twice(WriteFile(FILE, TEXT.replace("/bin/sleep", "/bin/missing").encode()), ReloadUnits())

        with pytest.raises(MachineError) as failed:
            stand.host.apply(StartUnit("no-such-thing.service"))

        assert failed.value.name == "action-failed"
        assert "journalctl -u no-such-thing.service" in failed.value.hint


class Mounts:
    @pytest.fixture
    def mounted(self, stand: Stand) -> Iterator[str]:
        """A file system of one page or so, in a directory of a tree."""
        point = stand.at("tree/mount")
        stand.twice(MakeDirectory(stand.at("tree")), MakeDirectory(point))
        stand.host.apply(Run(("mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", point), "mount it"))
        yield point
        stand.twice(Unmount(point))

    def test_a_tree_stays_while_something_is_mounted_in_it(self, stand: Stand, mounted: str) -> None:
        stand.twice(WriteFile(f"{mounted}/inside", b"x"), WriteFile(stand.at("tree/file"), b"x"))

        for path in (stand.at("tree"), mounted):
            with pytest.raises(MachineError) as refused:
                stand.host.apply(RemoveTree(path))
            assert refused.value.name == "mount-below-path"
            assert mounted in refused.value.message

        assert stand.host.read(f"{mounted}/inside") == b"x"
        assert stand.host.read(stand.at("tree/file")) == b"x"

    def test_what_is_mounted_is_not_removed_though_it_is_empty(self, stand: Stand, mounted: str) -> None:
        stand.twice(Remove(mounted))

        assert stand.host.stat(mounted) is not None

    def test_what_is_bound_into_a_tree_outlives_it(self, stand: Stand) -> None:
        stand.twice(MakeDirectory(stand.at("kept")), WriteFile(stand.at("kept/file"), b"x"))
        stand.twice(MakeDirectory(stand.at("tree")), MakeDirectory(stand.at("tree/bound")))
        stand.host.apply(Run(("mount", "--bind", stand.at("kept"), stand.at("tree/bound")), "bind it"))
        with pytest.raises(MachineError):
            stand.host.apply(RemoveTree(stand.at("tree")))

        stand.twice(Unmount(stand.at("tree/bound")), RemoveTree(stand.at("tree")))

        assert (stand.host.list_dir(stand.place), stand.host.read(stand.at("kept/file"))) == (("kept",), b"x")

    def test_what_is_mounted_twice_is_unmounted_in_full(self, stand: Stand, mounted: str) -> None:
        stand.host.apply(Run(("mount", "-t", "tmpfs", "tmpfs", mounted), "mount another"))
        stand.twice(Unmount(mounted), RemoveTree(stand.at("tree")))

        assert stand.host.list_dir(stand.place) == ()

    def test_a_full_disk_is_named_and_the_old_file_stays(self, stand: Stand, mounted: str) -> None:
        path = f"{mounted}/file"
        stand.twice(WriteFile(path, b"old"))

        with pytest.raises(MachineError) as full:
            stand.host.apply(WriteFile(path, b"x" * 100_000))

        assert full.value.name == "disk-full"
        assert stand.host.read(path) == b"old"
        assert stand.host.list_dir(mounted) == ("file",)

    def test_a_read_only_file_system_is_named(self, stand: Stand, mounted: str) -> None:
        stand.host.apply(Run(("mount", "-o", "remount,ro", mounted), "make it read-only"))

        with pytest.raises(MachineError) as refused:
            stand.host.apply(WriteFile(f"{mounted}/file", b"x"))

        assert refused.value.name == "filesystem-read-only"


class Kernel:
    def test_a_setting_is_set_and_set_back(self, stand: Stand) -> None:
        path = "/proc/sys/" + SYSCTL.replace(".", "/")
        before = (stand.host.read(path) or b"").decode().strip()
        stand.twice(SetSysctl(SYSCTL, "65"))
        assert stand.host.read(path) == b"65\n"

        stand.twice(SetSysctl(SYSCTL, before))
        assert stand.host.read(path) == f"{before}\n".encode()

    def test_a_setting_that_is_missing_or_wrong_is_named(self, stand: Stand) -> None:
        for key, value in (("net.no.such.key", "1"), (SYSCTL, "many")):
            with pytest.raises(MachineError) as refused:
                stand.host.apply(SetSysctl(key, value))
            assert refused.value.name == "sysctl-failed"
            assert key in refused.value.message

    def test_a_module_that_is_missing_is_named_and_unloading_it_is_nothing(self, stand: Stand) -> None:
        with pytest.raises(MachineError) as refused:
            stand.host.apply(LoadModule("flex_no_such_module"))
        assert refused.value.name == "action-failed"

        stand.twice(UnloadModule("flex_no_such_module"))

    def test_swapping_to_what_is_no_swap_is_refused_by_name(self, stand: Stand) -> None:
        stand.twice(WriteFile(stand.at("swap"), b"\0" * 4096, 0o600))
        for action in (SwapOn(stand.at("swap"), 5), SwapOff(stand.at("missing"))):
            with pytest.raises(MachineError) as refused:
                stand.host.apply(action)
            assert refused.value.name == "action-failed"

    def test_a_program_that_fails_is_named_with_its_last_words(self, stand: Stand) -> None:
        with pytest.raises(MachineError) as failed:
            stand.host.apply(Run(("sh", "-c", "echo first >&2; echo last >&2; exit 3"), "do what fails"))

        assert failed.value.name == "action-failed"
        assert failed.value.message == "Could not do what fails: last."

    def test_a_program_is_told_what_it_is_to_read(self, stand: Stand) -> None:
        stand.twice(Run(("tee", stand.at("file")), "write", b"told"))

        assert stand.host.read(stand.at("file")) == b"told"
        assert stand.host.query("cat", stand.at("file")).out == "told"

    def test_a_program_that_takes_too_long_is_ended(self, stand: Stand) -> None:
        assert stand.host.query("sleep", "1000", seconds=0.1).code == 124


class Groups:
    def test_the_processes_of_a_group_and_of_those_below_it_end(self, stand: Stand) -> None:
        """One of them does not listen to a polite word, and a shell waits for another."""
        script = "trap '' TERM; sleep 1000 & while :; do wait; sleep 1; done"
        words = ("systemd-run", "--quiet", "--collect", "--slice=flexhosttest.slice", "--unit=flex-group-test")
        stand.host.apply(Run((*words, "sh", "-c", script), "start them"))
        pid = stand.host.unit("flex-group-test.service").pid
        assert stand.host.read(f"/proc/{pid}/cmdline")

        stand.twice(KillGroup("/flexhosttest.slice", 0.2))

        assert not stand.host.read(f"/proc/{pid}/cmdline")  # gone, or dead and not buried yet

    def test_a_group_that_is_missing_is_nothing_to_end(self, stand: Stand) -> None:
        stand.twice(KillGroup("/no-such.slice"))
