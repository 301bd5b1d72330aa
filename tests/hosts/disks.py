"""What hosts do that have a disk: what a crash left is cleaned up, and what the disk refuses has a name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import MakeDirectory, MakeLink, PlaceTree, Remove, WriteFile
from aks_flex_node.host.real import RootedHost

if TYPE_CHECKING:
    from tests.hosts.fixtures import Stand


class Leftovers:
    @pytest.mark.parametrize("kind", ["file", "link"])
    def test_what_a_crashed_write_left_goes_with_the_next(self, stand: Stand, kind: str) -> None:
        left = stand.at(".file.flex-new")
        stand.host.apply(WriteFile(left, b"hal", 0o666) if kind == "file" else MakeLink(left, "elsewhere"))

        stand.twice(WriteFile(stand.at("file"), b"whole", 0o600))

        entry = stand.host.stat(stand.at("file"))
        assert entry
        assert (stand.host.list_dir(stand.place), entry.mode) == (("file",), 0o600)
        assert stand.host.read(stand.at("file")) == b"whole"

    def test_what_a_crashed_link_left_goes_with_the_next(self, stand: Stand) -> None:
        stand.host.apply(MakeLink(stand.at(".link.flex-new"), "half"))
        stand.twice(MakeLink(stand.at("link"), "target"))

        assert stand.host.list_dir(stand.place) == ("link",)

    def test_what_a_crashed_write_left_goes_when_the_file_is_removed(self, stand: Stand) -> None:
        stand.host.apply(WriteFile(stand.at(".file.flex-new"), b"hal"))
        stand.twice(Remove(stand.at("file")))

        assert stand.host.list_dir(stand.place) == ()

    def test_a_tree_takes_its_place_after_a_crash_between_the_moves(self, stand: Stand) -> None:
        for name in (".tree.flex-old", "new"):
            stand.twice(MakeDirectory(stand.at(name)), WriteFile(stand.at(f"{name}/file"), name.encode()))
        stand.twice(PlaceTree(stand.at("new"), stand.at("tree")))

        assert stand.host.list_dir(stand.place) == ("tree",)
        assert stand.host.read(stand.at("tree/file")) == b"new"

    def test_an_old_tree_goes_after_a_crash_behind_the_moves(self, stand: Stand) -> None:
        for name in (".tree.flex-old", "tree"):
            stand.twice(MakeDirectory(stand.at(name)), WriteFile(stand.at(f"{name}/file"), name.encode()))
        stand.twice(PlaceTree(stand.at("new"), stand.at("tree")))

        assert stand.host.list_dir(stand.place) == ("tree",)
        assert stand.host.read(stand.at("tree/file")) == b"tree"


class Refusals:
    def test_a_directory_in_the_place_of_a_file_is_refused_by_name(self, stand: Stand) -> None:
        stand.twice(MakeDirectory(stand.at("d")), WriteFile(stand.at("d/file"), b"x"))

        with pytest.raises(MachineError) as refused:
            stand.host.apply(WriteFile(stand.at("d"), b"x"))

        assert refused.value.name == "file-access-failed"
        assert stand.host.list_dir(stand.at("d")) == ("file",)

    def test_a_file_in_the_place_of_a_directory_is_refused_by_name(self, stand: Stand) -> None:
        stand.twice(WriteFile(stand.at("file"), b"x"))

        for action in (MakeDirectory(stand.at("file")), WriteFile(stand.at("file/below"), b"x")):
            with pytest.raises(MachineError) as refused:
                stand.host.apply(action)
            assert refused.value.name == "file-access-failed"
            assert str(action) in refused.value.message

    def test_a_file_in_a_missing_directory_is_refused_by_name(self, stand: Stand) -> None:
        with pytest.raises(MachineError) as refused:
            stand.host.apply(WriteFile(stand.at("missing/file"), b"x"))

        assert refused.value.name == "file-access-failed"


class Owners:
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give things away")
    def test_a_directory_that_was_somebody_elses_becomes_roots(self, stand: Stand) -> None:
        host, path = stand.host, stand.at("folder")
        assert isinstance(host, RootedHost)
        stand.twice(MakeDirectory(path, 0o700), WriteFile(f"{path}/file", b"x"))
        os.chown(host.disk.at(path), 1000, 1000)

        stand.twice(MakeDirectory(path, 0o700))

        entry = host.stat(path)
        assert entry
        assert (entry.uid, entry.gid, entry.mode, host.list_dir(path)) == (0, 0, 0o700, ("file",))
