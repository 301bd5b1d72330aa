"""Events of the audit as files: CSV for spreadsheets, JSON for programs."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

from aks_flex_node.rp.serving.own import event_document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from aks_flex_node.rp.store.store import Event

COLUMNS = ("sequence", "at", "who", "what", "resource", "outcome", "source", "request", "detail")
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


async def as_csv(batches: AsyncIterator[list[Event]]) -> AsyncIterator[bytes]:
    yield _lines([COLUMNS])
    async for batch in batches:
        yield _lines(map(_row, batch))


async def as_json(batches: AsyncIterator[list[Event]]) -> AsyncIterator[bytes]:
    between = b'{"value":[\n'
    async for batch in batches:
        for event in batch:
            yield between + json.dumps(event_document(event), ensure_ascii=False).encode()
            between = b",\n"
    yield b"\n]}\n" if between == b",\n" else b'{"value":[]}\n'


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _row(event: Event) -> list[object]:
    told = event_document(event)
    told["detail"] = json.dumps(told["detail"], ensure_ascii=False) if told["detail"] else ""
    return [harmless(told[name]) for name in COLUMNS]


def harmless(value: object) -> object:
    """A spreadsheet takes text that begins like a formula for one, and names come from strangers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value
