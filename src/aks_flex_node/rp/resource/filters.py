"""`$filter` of a list: comparisons joined by `and`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.rp.arm.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

_COMPARISON = re.compile(
    r"\s*(?P<field>[A-Za-z]+(?:/[^\s']+)?)\s+(?P<verb>eq|ne)\s+'(?P<value>(?:[^']|'')*)'\s*", re.IGNORECASE
)
_AND = re.compile(r"and\s", re.IGNORECASE)
FIELDS = "ready, version, joinState and labels/KEY"


@dataclass(frozen=True)
class Comparison:
    field: str
    value: str
    equal: bool

    def holds(self, resource: dict[str, Any], version: str) -> bool:
        """Of a resource as it is shown, and the version of Kubernetes that it comes to."""
        return (self._found(resource["properties"], version) == self.value) is self.equal

    def _found(self, properties: dict[str, Any], version: str) -> str | None:
        if self.field == "version":
            return version
        if self.field.startswith("labels/"):
            labels: dict[str, str] = properties.get("nodeConfig", {}).get("labels", {})
            return labels.get(self.field.removeprefix("labels/"))
        return _PLAIN[self.field](properties)


def _ready(properties: dict[str, Any]) -> str:
    conditions = properties["status"].get("conditions", ())
    return next((str(each["status"]) for each in conditions if each["type"] == "Ready"), "Unknown")


_PLAIN: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "ready": _ready,
    "joinState": lambda properties: properties["status"].get("joinState"),
}
_NAMES = {name.lower(): name for name in (*_PLAIN, "version")}


def parse(text: str) -> list[Comparison] | Problem:
    comparisons: list[Comparison] = []
    place = 0
    while True:
        found = _COMPARISON.match(text, place)
        field = _field(found["field"]) if found else None
        if found is None or field is None:
            return _wrong(text)
        comparisons.append(Comparison(field, found["value"].replace("''", "'"), found["verb"].lower() == "eq"))
        place = found.end()
        if place == len(text):
            return comparisons
        joined = _AND.match(text, place)
        if joined is None:
            return _wrong(text)
        place = joined.end()


def _field(text: str) -> str | None:
    head, slash, key = text.partition("/")
    if slash:
        return f"labels/{key}" if head.lower() == "labels" else None
    return _NAMES.get(text.lower())


def _wrong(text: str) -> Problem:
    return Problem(
        "$filter",
        f"'{text[:200]}' is not understood. Write FIELD eq 'VALUE' or FIELD ne 'VALUE', joined by `and`. "
        f"Fields are {FIELDS}.",
    )
