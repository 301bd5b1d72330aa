"""Tests of write conflicts: read again, retried, given up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from aks_flex_rp.nodes.context import ATTEMPTS, retry_on_conflict
from aks_flex_rp.store.model import Conflict, Node

NODE = Node("/c", "edge", "edge", 17, '"17"', {}, {})


class BusyError(Exception):
    pass


@dataclass
class ContendedNode:
    """A node that another writer changes at each of the first `conflicts` attempts."""

    conflicts: int
    reads: int = 0
    seen: list[Node | None] = field(default_factory=list)

    async def read(self) -> Node | None:
        self.reads += 1
        return replace(NODE, revision=self.reads)

    async def write(self, node: Node | None) -> str:
        self.seen.append(node)
        if len(self.seen) <= self.conflicts:
            raise Conflict
        return "written"

    @property
    def revisions(self) -> list[int]:
        return [node.revision for node in self.seen if node]


def test_a_write_without_conflict_is_done_once() -> None:
    node = ContendedNode(conflicts=0)
    assert asyncio.run(retry_on_conflict(node.read, node.write)) == "written"
    assert (node.reads, node.revisions) == (1, [1])


def test_a_node_that_is_known_is_read_only_after_a_conflict() -> None:
    quiet, contended = ContendedNode(conflicts=0), ContendedNode(conflicts=1)
    known = replace(NODE, revision=99)
    for node in (quiet, contended):
        assert asyncio.run(retry_on_conflict(node.read, node.write, known=known)) == "written"
    assert (quiet.reads, quiet.revisions) == (0, [99])
    assert (contended.reads, contended.revisions) == (1, [99, 1])


def test_every_attempt_gets_the_node_as_it_is_then() -> None:
    node = ContendedNode(conflicts=ATTEMPTS - 1)
    assert asyncio.run(retry_on_conflict(node.read, node.write, BusyError)) == "written"
    assert node.revisions == list(range(1, ATTEMPTS + 1))


def test_a_node_that_others_keep_writing_is_reported_busy() -> None:
    node = ContendedNode(conflicts=ATTEMPTS)
    with pytest.raises(BusyError) as caught:
        asyncio.run(retry_on_conflict(node.read, node.write, BusyError))
    assert caught.value.__suppress_context__
    assert (len(node.seen), node.reads) == (ATTEMPTS, ATTEMPTS), "nothing is read in vain after the last attempt"


def test_the_conflict_itself_is_raised_where_no_other_error_is_named() -> None:
    node = ContendedNode(conflicts=ATTEMPTS)
    with pytest.raises(Conflict):
        asyncio.run(retry_on_conflict(node.read, node.write))
    assert len(node.seen) == ATTEMPTS


def test_other_errors_are_not_retried() -> None:
    seen: list[Node | None] = []

    async def write(node: Node | None) -> None:
        seen.append(node)
        raise BusyError

    with pytest.raises(BusyError):
        asyncio.run(retry_on_conflict(ContendedNode(conflicts=0).read, write))
    assert len(seen) == 1
