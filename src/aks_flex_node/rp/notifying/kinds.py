"""The kinds of events that a receiver can be told of."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "ready.changed",
    "conditions.changed",
    "joined",
    "join.failed",
    "left",
    "deleted",
    "silent",
    "heard",
]
TEST_TYPE = "com.aks-flex-node.test.v1"  # of a message that a person asked for


def event_type(kind: str) -> str:
    """As CloudEvents name it. The version grows only when what a receiver relies on is no longer there."""
    return f"com.aks-flex-node.node.{kind}.v1"
