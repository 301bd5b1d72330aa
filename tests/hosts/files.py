"""Tests for all hosts: reading files, and the effect of every action on them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import (
    EditFile,
    MakeDirectory,
    MakeLink,
    PlaceTree,
    Remove,
    RemoveTree,
    SetAside,
    WriteFile,
)
from aks_flex_node.host.host import EntryKind

if TYPE_CHECKING:
    from tests.hosts.fixtures import Stand


class Questions:
    def test_missing_path_reads_as_absent(self, stand: Stand) -> None:
        host, path = stand.host, stand.at("missing")

        assert (host.read(path), host.digest(path), host.stat(path), host.list_dir(path)) == (None, "", None, ())
        assert host.stat(f"{path}/below") is None

    def test_file_is_read_hashed_and_described(self, stand: Stand) -> None:
        host, path = stand.host, stand.at("file")
        stand.twice(WriteFile(path, b"content", 0o640))

        entry = host.stat(path)
        assert entry
        assert (entry.kind, entry.mode, entry.size, entry.target) == (EntryKind.FILE, 0o640, 7, "")
        assert (host.read(path), host.digest(path)) == (b"content", hashlib.sha256(b"content").hexdigest())
        assert host.list_dir(path) == ()
        assert (host.stat(f"{path}/below"), host.read(f"{path}/below")) == (None, None)

    def test_directory_lists_sorted_names_and_has_no_content(self, stand: Stand) -> None:
        for name in ("b", "a"):
            stand.twice(WriteFile(stand.at(name), b""))

        assert stand.host.list_dir(stand.place) == ("a", "b")
        assert (stand.host.read(stand.place), stand.host.digest(stand.place)) == (None, "")

    @pytest.mark.parametrize("target", ["folder/file", "./folder/../folder/file"])
    def test_link_is_reported_as_link_and_read_through(self, stand: Stand, target: str) -> None:
        host, link = stand.host, stand.at("link")
        stand.twice(
            MakeDirectory(stand.at("folder")), WriteFile(stand.at("folder/file"), b"x"), MakeLink(link, target)
        )

        entry = host.stat(link)
        assert entry
        assert (entry.kind, entry.target) == (EntryKind.LINK, target)
        assert (host.read(link), host.digest(link)) == (b"x", hashlib.sha256(b"x").hexdigest())

    def test_path_resolves_through_linked_directory(self, stand: Stand) -> None:
        host = stand.host
        stand.twice(MakeDirectory(stand.at("real")), MakeLink(stand.at("link"), stand.at("real")))
        stand.twice(WriteFile(stand.at("link/file"), b"x"))

        assert host.read(stand.at("real/file")) == b"x"
        assert host.stat(stand.at("link/file")) is not None
        assert (host.list_dir(stand.at("link")), host.list_dir(stand.at("real"))) == (("file",), ("file",))

    def test_circular_links_read_as_absent(self, stand: Stand) -> None:
        stand.twice(MakeLink(stand.at("one"), stand.at("two")), MakeLink(stand.at("two"), stand.at("one")))

        path = stand.at("one")
        assert (stand.host.read(path), stand.host.digest(path), stand.host.list_dir(path)) == (None, "", ())

    def test_change_time_differs_after_rewrite(self, stand: Stand) -> None:
        path = stand.at("file")
        stand.host.apply(WriteFile(path, b"one"))
        before = stand.host.stat(path)
        stand.host.apply(WriteFile(path, b"two"))
        after = stand.host.stat(path)

        assert before
        assert after
        assert before.changed != after.changed

    def test_missing_program_returns_exit_code_127(self, stand: Stand) -> None:
        assert stand.host.query("no-such-program").code == 127

    def test_missing_unit_neither_exists_nor_runs(self, stand: Stand) -> None:
        unit = stand.host.unit("no-such-thing.service")

        assert (unit.exists, unit.enabled, unit.running) == (False, False, False)


class FileActions:
    def test_make_directory_sets_mode_and_keeps_content(self, stand: Stand) -> None:
        path = stand.at("folder")
        stand.twice(MakeDirectory(path, 0o700), WriteFile(f"{path}/file", b"x"), MakeDirectory(path, 0o750))

        entry = stand.host.stat(path)
        assert entry
        assert (entry.kind, entry.mode, stand.host.list_dir(path)) == (EntryKind.DIRECTORY, 0o750, ("file",))

    def test_edit_file_replaces_content_and_mode(self, stand: Stand) -> None:
        path = stand.at("file")
        stand.twice(WriteFile(path, b"one", 0o644), EditFile(path, b"three", 0o600))

        entry = stand.host.stat(path)
        assert entry
        assert (entry.mode, entry.size, stand.host.read(path)) == (0o600, 5, b"three")

    def test_writing_file_replaces_link_and_keeps_its_target(self, stand: Stand) -> None:
        stand.twice(WriteFile(stand.at("other"), b"other"), MakeLink(stand.at("file"), "other"))
        stand.twice(WriteFile(stand.at("file"), b"mine"))

        assert (stand.host.read(stand.at("file")), stand.host.read(stand.at("other"))) == (b"mine", b"other")

    def test_link_replaces_file_or_other_link(self, stand: Stand) -> None:
        path = stand.at("link")
        stand.twice(WriteFile(path, b"x"), MakeLink(path, "one"), MakeLink(path, "two"))

        entry = stand.host.stat(path)
        assert entry
        assert (entry.kind, entry.target) == (EntryKind.LINK, "two")

    def test_remove_deletes_file_link_and_empty_directory(self, stand: Stand) -> None:
        stand.twice(
            WriteFile(stand.at("file"), b"x"), MakeLink(stand.at("link"), "kept"), MakeDirectory(stand.at("d"))
        )
        stand.twice(WriteFile(stand.at("kept"), b"x"))

        stand.twice(*(Remove(stand.at(name)) for name in ("file", "link", "d", "missing", "kept/below")))

        assert stand.host.list_dir(stand.place) == ("kept",)

    def test_remove_keeps_non_empty_directory(self, stand: Stand) -> None:
        stand.twice(MakeDirectory(stand.at("d")), WriteFile(stand.at("d/file"), b"x"), Remove(stand.at("d")))

        assert stand.host.list_dir(stand.at("d")) == ("file",)

    def test_remove_tree_deletes_everything_below(self, stand: Stand) -> None:
        stand.twice(MakeDirectory(stand.at("d")), MakeDirectory(stand.at("d/e")), WriteFile(stand.at("d/e/f"), b"x"))
        stand.twice(MakeLink(stand.at("d/out"), stand.at("kept")), WriteFile(stand.at("kept"), b"x"))
        stand.twice(RemoveTree(stand.at("d")), RemoveTree(stand.at("missing")))

        assert stand.host.list_dir(stand.place) == ("kept",)
        assert (stand.host.stat(stand.at("d/e/f")), stand.host.read(stand.at("d/e/f"))) == (None, None)

    def test_remove_tree_on_link_removes_only_the_link(self, stand: Stand) -> None:
        stand.twice(
            MakeDirectory(stand.at("d")), WriteFile(stand.at("d/file"), b"x"), MakeLink(stand.at("link"), "d")
        )
        stand.twice(RemoveTree(stand.at("link")))

        assert stand.host.list_dir(stand.place) == ("d",)
        assert stand.host.list_dir(stand.at("d")) == ("file",)

    def test_removed_tree_can_be_recreated_empty(self, stand: Stand) -> None:
        stand.twice(MakeDirectory(stand.at("d")), WriteFile(stand.at("d/old"), b"x"), RemoveTree(stand.at("d")))
        stand.twice(MakeDirectory(stand.at("d")))

        assert stand.host.list_dir(stand.at("d")) == ()
        assert (stand.host.stat(stand.at("d/old")), stand.host.read(stand.at("d/old"))) == (None, None)

    def test_set_aside_renames_file_link_and_directory(self, stand: Stand) -> None:
        stand.twice(WriteFile(stand.at("kept"), b"x"), WriteFile(stand.at("file"), b"old"))
        stand.twice(
            MakeLink(stand.at("link"), "kept"), MakeDirectory(stand.at("d")), WriteFile(stand.at("d/e"), b"x")
        )
        stand.twice(*(SetAside(stand.at(name)) for name in ("file", "link", "d", "missing")))

        assert stand.host.list_dir(stand.place) == ("d.damaged", "file.damaged", "kept", "link.damaged")
        assert stand.host.read(stand.at("file.damaged")) == b"old"
        assert stand.host.list_dir(stand.at("d.damaged")) == ("e",)

    def test_set_aside_replaces_what_was_set_aside_before(self, stand: Stand) -> None:
        for content in (b"first", b"second"):
            stand.host.apply(WriteFile(stand.at("file"), content))
            stand.host.apply(SetAside(stand.at("file")))

        assert stand.host.list_dir(stand.place) == ("file.damaged",)
        assert stand.host.read(stand.at("file.damaged")) == b"second"

    def test_set_aside_keeps_a_directory_with_files_of_someone(self, stand: Stand) -> None:
        stand.twice(WriteFile(stand.at("file"), b"x"), MakeDirectory(stand.at("file.damaged")))
        stand.twice(WriteFile(stand.at("file.damaged/mine"), b"y"))
        with pytest.raises(MachineError) as refused:
            stand.host.apply(SetAside(stand.at("file")))

        assert refused.value.name == "file-access-failed"
        assert stand.at("file.damaged") in refused.value.hint
        assert stand.host.read(stand.at("file.damaged/mine")) == b"y"

    def test_place_tree_moves_tree_to_target(self, stand: Stand) -> None:
        self._make(stand, "new", b"new")
        stand.twice(PlaceTree(stand.at("new"), stand.at("tree")))

        assert stand.host.list_dir(stand.place) == ("tree",)
        assert stand.host.read(stand.at("tree/file")) == b"new"

    def test_place_tree_replaces_existing_tree(self, stand: Stand) -> None:
        self._make(stand, "tree", b"old")
        stand.twice(WriteFile(stand.at("tree/only-in-old"), b"x"))
        self._make(stand, "new", b"new")
        stand.twice(PlaceTree(stand.at("new"), stand.at("tree")))

        assert stand.host.list_dir(stand.place) == ("tree",)
        assert (stand.host.read(stand.at("tree/file")), stand.host.list_dir(stand.at("tree"))) == (b"new", ("file",))

    def _make(self, stand: Stand, name: str, content: bytes) -> None:
        stand.twice(MakeDirectory(stand.at(name)), WriteFile(stand.at(f"{name}/file"), content))
