"""Tests for hosts with a disk: cleanup after a crash, and named errors of the disk."""

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
    def test_write_removes_leftover_of_crashed_write(self, stand: Stand, kind: str) -> None:
        left = stand.at(".file.flex-new")
        stand.host.apply(WriteFile(left, b"hal", 0o666) if kind == "file" else MakeLink(left, "elsewhere"))

        stand.twice(WriteFile(stand.at("file"), b"whole", 0o600))

        entry = stand.host.stat(stand.at("file"))
        assert entry
        assert (stand.host.list_dir(stand.place), entry.mode) == (("file",), 0o600)
        assert stand.host.read(stand.at("file")) == b"whole"

    def test_link_removes_leftover_of_crashed_link(self, stand: Stand) -> None:
        stand.host.apply(MakeLink(stand.at(".link.flex-new"), "half"))
        stand.twice(MakeLink(stand.at("link"), "target"))

        assert stand.host.list_dir(stand.place) == ("link",)

    def test_remove_deletes_leftover_of_crashed_write(self, stand: Stand) -> None:
        stand.host.apply(WriteFile(stand.at(".file.flex-new"), b"hal"))
        stand.twice(Remove(stand.at("file")))

        assert stand.host.list_dir(stand.place) == ()

    def test_place_tree_completes_after_crash_between_renames(self, stand: Stand) -> None:
        for name in (".tree.flex-old", "new"):
            stand.twice(MakeDirectory(stand.at(name)), WriteFile(stand.at(f"{name}/file"), name.encode()))
        stand.twice(PlaceTree(stand.at("new"), stand.at("tree")))

        assert stand.host.list_dir(stand.place) == ("tree",)
        assert stand.host.read(stand.at("tree/file")) == b"new"

    def test_place_tree_removes_old_tree_after_crash_behind_renames(self, stand: Stand) -> None:
        for name in (".tree.flex-old", "tree"):
            stand.twice(MakeDirectory(stand.at(name)), WriteFile(stand.at(f"{name}/file"), name.encode()))
        stand.twice(PlaceTree(stand.at("new"), stand.at("tree")))

        assert stand.host.list_dir(stand.place) == ("tree",)
        assert stand.host.read(stand.at("tree/file")) == b"tree"


class Refusals:
    def test_writing_file_over_directory_is_refused(self, stand: Stand) -> None:
        stand.twice(MakeDirectory(stand.at("d")), WriteFile(stand.at("d/file"), b"x"))

        with pytest.raises(MachineError) as refused:
            stand.host.apply(WriteFile(stand.at("d"), b"x"))

        assert refused.value.name == "file-access-failed"
        assert stand.host.list_dir(stand.at("d")) == ("file",)

    def test_directory_or_child_at_path_of_file_is_refused(self, stand: Stand) -> None:
        stand.twice(WriteFile(stand.at("file"), b"x"))

        for action in (MakeDirectory(stand.at("file")), WriteFile(stand.at("file/below"), b"x")):
            with pytest.raises(MachineError) as refused:
                stand.host.apply(action)
            assert refused.value.name == "file-access-failed"
            assert str(action) in refused.value.message

    def test_writing_file_in_missing_directory_is_refused(self, stand: Stand) -> None:
        with pytest.raises(MachineError) as refused:
            stand.host.apply(WriteFile(stand.at("missing/file"), b"x"))

        assert refused.value.name == "file-access-failed"


class Owners:
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give things away")
    def test_make_directory_sets_owner_of_existing_directory_to_root(self, stand: Stand) -> None:
        host, path = stand.host, stand.at("folder")
        assert isinstance(host, RootedHost)
        stand.twice(MakeDirectory(path, 0o700), WriteFile(f"{path}/file", b"x"))
        os.chown(host.disk.at(path), 1000, 1000)

        stand.twice(MakeDirectory(path, 0o700))

        entry = host.stat(path)
        assert entry
        assert (entry.uid, entry.gid, entry.mode, host.list_dir(path)) == (0, 0, 0o700, ("file",))
