"""Which machines of the lab have which identities of Azure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_node.lab.files import locked, write_atomically

if TYPE_CHECKING:
    from pathlib import Path


class Given:
    """In a file, so that it changes while the service runs."""

    def __init__(self, state: Path) -> None:
        self._file = state / "machine-identities.json"
        self._lock = state / "machine-identities.lock"

    def at(self, address: str) -> list[str]:
        """The object ids of the identities of the machine with that address."""
        return self._read().get(address, [])

    def set(self, address: str, identities: list[str]) -> None:
        """These are all that it has from now on."""
        if not identities and not self.at(address):
            return
        with locked(self._lock, "the machines' identities", wait=True):
            told = {**self._read(), address: identities}
            kept = {where: ids for where, ids in told.items() if ids}
            write_atomically(self._file, json.dumps(kept, indent=1))

    def addresses(self) -> list[str]:
        return list(self._read())

    def _read(self) -> dict[str, list[str]]:
        if not self._file.exists():
            return {}
        told: dict[str, list[str]] = json.loads(self._file.read_text())
        return told
