"""One look at the whole machine: whatever several components ask is asked once, and all units with one question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.host.system import ASKED, parse_unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Answer, Entry, Host, UnitState


class Glance:
    """A host at one moment. It is for looking alone: what it has seen would be wrong after any change."""

    def __init__(self, host: Host, units: Iterable[str] = ()) -> None:
        self._host = host
        self._units = units_of(host, units)
        self._entries: dict[str, Entry | None] = {}
        self._contents: dict[str, bytes | None] = {}

    @property
    def live(self) -> bool:
        return self._host.live

    def read(self, path: str) -> bytes | None:
        if path not in self._contents:
            self._contents[path] = self._host.read(path)
        return self._contents[path]

    def digest(self, path: str) -> str:
        return self._host.digest(path)

    def look(self, path: str) -> Entry | None:
        if path not in self._entries:
            self._entries[path] = self._host.look(path)
        return self._entries[path]

    def names(self, path: str) -> tuple[str, ...]:
        return self._host.names(path)

    def ask(self, *argv: str, seconds: float = 10.0) -> Answer:
        return self._host.ask(*argv, seconds=seconds)

    def unit(self, name: str) -> UnitState:
        return self._units.get(name) or self._host.unit(name)

    def do(self, action: Action) -> None:
        raise AssertionError(f"{action}: whoever glances changes nothing")


def units_of(host: Host, names: Iterable[str]) -> dict[str, UnitState]:
    """What systemd says of several units at once; those that it says nothing of are left out."""
    wanted = sorted(set(names))
    if not wanted or not host.live:
        return {}
    return parse_units(host.ask("systemctl", "show", *wanted, "-p", ",".join(("Id", *ASKED))).out)


def parse_units(text: str) -> dict[str, UnitState]:
    """`systemctl show` of several units: a block for each, with an empty line between."""
    blocks = [block for block in text.split("\n\n") if block.strip()]
    named = {_id(block): block for block in blocks}
    return {name: parse_unit(name, block) for name, block in named.items() if name}


def _id(block: str) -> str:
    return next((line[len("Id=") :] for line in block.splitlines() if line.startswith("Id=")), "")
