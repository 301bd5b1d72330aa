"""What a ledger that can be relied on looks like. One with another shape was damaged, though it still may be JSON.

Whoever acts by it removes things as root: a record that cannot be understood has to be seen when it is read, where a
second copy is at hand, and not half way through a removal.
"""

from __future__ import annotations

from typing import Any

# What stood somewhere before us, by its kind: what has to be known to put it back.
NEEDED = {"file": ("mode", "copy"), "directory": ("mode", "names"), "link": ("target", "names")}
TYPES: dict[str, type] = {"kind": str, "mode": int, "copy": str, "names": list, "target": str}


def check(document: Any) -> None:
    """Raises ValueError, TypeError, KeyError or AttributeError unless everything in it is of its kind."""
    for kinds in document["components"].values():
        for kind, records in kinds.items():
            for name, record in records.items():
                _require(isinstance(record, dict), f"{kind} {name}")
                _check_record(kind, name, record)
    for names in document.get("found", {}).values():
        _require(_are_texts(names), "found")


def _check_record(kind: str, name: str, record: dict[str, Any]) -> None:
    match kind:
        case "paths":
            _require(name.startswith("/") and ".." not in name.split("/") and "\0" not in name, name)
            _require(isinstance(record.get("kind", ""), str), name)
            _check_original(name, record.get("original"))
        case "sysctls":
            _require(isinstance(record.get("original"), str | None), name)
        case "swaps":
            _require(isinstance(record.get("priority", 0), int), name)
        case "services":
            _require(isinstance(record.get("started_with", ""), str), name)


def _check_original(name: str, original: Any) -> None:
    if original is None:
        return
    _require(isinstance(original.get("kind"), str), name)
    _require(all(key in original for key in NEEDED.get(original["kind"], ())), name)
    _require(all(isinstance(original[key], TYPES[key]) for key in TYPES if key in original), name)
    _require(_are_texts(original.get("names", [])), name)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) for each in values)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} is not understood")
