"""What a check is, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aks_flex_node.agent.preflight.situations import Situation


class Severity(str, Enum):
    OK = "ok"
    WARNING = "warning"  # the node will work, or will make it right by itself, but somebody should know
    ERROR = "error"  # the machine would not become a node, or would break what is there


@dataclass(frozen=True)
class Finding:
    """One thing that a check found, and what to do about it."""

    check: str  # its name; the runner fills it in
    severity: Severity
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """A question with a name by which it can be skipped."""

    name: str
    title: str
    run: Callable[[Situation], Iterable[Finding]]  # nothing found means that all is well
    abroad: bool = False  # it asks others, whom a node that has joined can do without


def fine(message: str) -> Finding:
    return Finding("", Severity.OK, message)


def warning(message: str, remedy: str) -> Finding:
    return Finding("", Severity.WARNING, message, remedy)


def error(message: str, remedy: str) -> Finding:
    return Finding("", Severity.ERROR, message, remedy)


def softened(finding: Finding) -> Finding:
    """The same, but not as something that is in the way."""
    return replace(finding, severity=Severity.WARNING) if finding.severity is Severity.ERROR else finding
