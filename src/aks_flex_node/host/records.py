"""Records of the agent: dataclasses that are stored as JSON files, readable by root only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from aks_flex_node.host.actions import MakeDirectory, Remove, WriteFile
from aks_flex_node.host.disk import temporary_path
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from aks_flex_node.host.host import Host

Record = TypeVar("Record")


@frozen
class RecordFile(Generic[Record]):
    """A file with one record."""

    path: str
    kind: type[Record]

    def read(self, host: Host) -> Record | None:
        """Returns the record; None if the file is missing, damaged or has values of other types."""
        try:
            # Not by msgspec.json: a message of another server can have a lone surrogate, which only json reads.
            return msgspec.convert(json.loads(host.read(self.path) or b""), self.kind)
        except (ValueError, RecursionError):
            return None

    def write(self, host: Host, record: Record) -> None:
        content = json.dumps(msgspec.to_builtins(record), indent=1) + "\n"
        host.apply(WriteFile(self.path, content.encode(), 0o600))

    def remove(self, host: Host) -> None:
        """Removes the record, including the temporary file of an interrupted write."""
        if any(host.stat(path) for path in (self.path, str(temporary_path(Path(self.path))))):
            host.apply(Remove(self.path))


def make_folder(host: Host, path: str) -> None:
    """Makes the directory of the first records of a machine. Others must not: the machine may have left meanwhile."""
    folder = path.rpartition("/")[0]
    if host.stat(folder) is None:
        host.apply(MakeDirectory(folder, 0o700))


class RecordStore(Generic[Record]):
    """A record whose fields have defaults, written to disk on every change. A missing or damaged one is empty."""

    def __init__(self, host: Host, path: str, kind: type[Record]) -> None:
        self._host, self._file = host, RecordFile(path, kind)

    @property
    def current(self) -> Record:
        return self._file.read(self._host) or self._file.kind()

    @property
    def exists(self) -> bool:
        return self._host.stat(self._file.path) is not None

    def update(self, **changes: Any) -> None:
        before = self.current
        after = replace(before, **changes)  # type: ignore[type-var]
        if after != before:
            make_folder(self._host, self._file.path)
            self._file.write(self._host, after)

    def remove(self) -> None:
        self._file.remove(self._host)
