"""The keys that seal what is secret, one by one: which there are, where they are kept, and how they go."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp import private_files, sealing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set
    from pathlib import Path


@dataclass(frozen=True)
class Key:
    id: str  # by which it is known without being shown
    source: str
    line: str = field(repr=False)


def read(file: Path, env: Mapping[str, str]) -> list[Key]:
    """The newest first, as the service itself has them; none is made here."""
    given = list(_keys(env.get(sealing.VARIABLE, "").replace(",", "\n"), sealing.VARIABLE))
    if file.exists():
        given += _keys(private_files.read(file).decode(errors="replace"), str(file))
    return given


def _keys(text: str, source: str) -> Iterator[Key]:
    for line in text.splitlines():
        kept = line.partition("#")[0].strip()
        if kept:
            yield Key(_id(kept), source, kept)


def _id(line: str) -> str:
    try:
        return sealing.key_id(base64.b64decode(line, altchars=b"-_", validate=True)).hex()
    except ValueError:
        return "invalid"  # the service says more, and does not start


def add(file: Path, env: Mapping[str, str]) -> str:
    """A new key, which seals from the next start on; its id."""
    if env.get(sealing.VARIABLE):
        raise ConfigError(
            "keys-in-environment",
            f"The newest key is the first of {sealing.VARIABLE}, and a file cannot come before it.",
            "Put a new one first there: `openssl rand -base64 32 | tr +/ -_`, a comma, and what it holds now.",
        )
    sealing.load_keys(file, env)  # what is there must be whole, or it would be lost for good
    sealing.add_key(file)
    keep_owner(file)
    return read(file, env)[0].id


def drop(file: Path, ids: Set[str]) -> None:
    kept = [each.line for each in read(file, {}) if each.id not in ids]
    private_files.write(file, (sealing.HEADER + "".join(f"{line}\n" for line in kept)).encode())
    keep_owner(file)


def keep_owner(file: Path) -> None:
    """What root writes into another's directory belongs to whom the directory belongs to."""
    if os.geteuid() == 0:
        owner = file.parent.stat()
        os.chown(file, owner.st_uid, owner.st_gid)


def sealed_with(data: bytes) -> str:
    """The id of the key that sealed it."""
    return data[len(sealing.FORM) : len(sealing.FORM) + sealing.ID_BYTES].hex()
