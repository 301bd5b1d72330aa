"""Records of the agent: dataclasses that are stored as JSON files, readable by root only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from aks_flex_node.host.actions import MakeDirectory, Remove, WriteFile
from aks_flex_node.host.disk import temporary_path

if TYPE_CHECKING:
    from aks_flex_node.host.host import Host

Record = TypeVar("Record")


def read_record(host: Host, path: str, kind: type[Record]) -> Record | None:
    """Returns the record in a file; None if the file is missing, damaged or has values of other types."""
    try:
        # Not by msgspec.json: a message of another server can have a lone surrogate, which only json reads.
        return msgspec.convert(json.loads(host.read(path) or b""), kind)
    except (ValueError, RecursionError):
        return None


def write_record(host: Host, path: str, record: object) -> None:
    folder = path.rpartition("/")[0]
    if host.stat(folder) is None:
        host.apply(MakeDirectory(folder, 0o700))
    content = json.dumps(msgspec.to_builtins(record), indent=1) + "\n"
    host.apply(WriteFile(path, content.encode(), 0o600))


class RecordStore(Generic[Record]):
    """A record whose fields have defaults, written to disk on every change. A missing or damaged one is empty."""

    def __init__(self, host: Host, path: str, kind: type[Record]) -> None:
        self._host, self.path, self._kind = host, path, kind

    @property
    def current(self) -> Record:
        return read_record(self._host, self.path, self._kind) or self._kind()

    @property
    def exists(self) -> bool:
        return self._host.stat(self.path) is not None

    def update(self, **changes: Any) -> None:
        before = self.current
        after = replace(before, **changes)  # type: ignore[type-var]
        if after != before:
            write_record(self._host, self.path, after)

    def remove(self) -> None:
        """Removes the record, including the temporary file of an interrupted write."""
        if self.exists or self._host.stat(str(temporary_path(Path(self.path)))):
            self._host.apply(Remove(self.path))
