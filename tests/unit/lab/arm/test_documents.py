"""Tests of ARM documents in JSON files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_lab.arm.documents import DocumentStore

if TYPE_CHECKING:
    from pathlib import Path


def test_documents_are_found_by_case_insensitive_id(tmp_path: Path) -> None:
    store = DocumentStore(tmp_path / "things.json", "things")
    assert (store.all(), store.find("/a")) == ([], None)

    store.put({"id": "/A", "size": 1})
    store.put({"id": "/b", "size": 2})
    assert store.find("/a") == {"id": "/A", "size": 1}
    store.put({"id": "/a", "size": 3})
    assert store.all() == [{"id": "/b", "size": 2}, {"id": "/a", "size": 3}]
    store.remove("/B")
    store.remove("/nothing")
    assert store.all() == [{"id": "/a", "size": 3}]


def test_document_written_by_one_store_is_read_by_another(tmp_path: Path) -> None:
    file = tmp_path / "state" / "things.json"
    one, other = DocumentStore(file, "things", 0o600), DocumentStore(file, "things", 0o600)

    one.put({"id": "/a"})
    assert other.all() == [{"id": "/a"}]
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["things.json"]
