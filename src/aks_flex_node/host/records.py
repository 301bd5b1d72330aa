"""Records of the agent: dataclasses that are stored as JSON files, readable by root only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

import msgspec

from aks_flex_node.host.actions import WriteFile

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
    content = json.dumps(msgspec.to_builtins(record), indent=1) + "\n"
    host.apply(WriteFile(path, content.encode(), 0o600))
