"""Sessions of people who are signed in to the pages: rows, so that all replicas know them and each can be ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.rp.store.rows import document_of, text_of
from aks_flex_node.rp.store.sql import Write

if TYPE_CHECKING:
    from aks_flex_node.rp.store.rows import Row, Values
    from aks_flex_node.rp.store.store import Document

_COLUMNS = "id, caller, proof, expires, used"

PUT = Write(f"INSERT INTO sessions ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5) RETURNING id")  # noqa: S608 - a constant
SESSION = f"SELECT {_COLUMNS} FROM sessions WHERE id = $1 AND expires > $2"  # noqa: S608 - a constant
USE = Write("UPDATE sessions SET used = $2 WHERE id = $1 RETURNING id")
END = Write("DELETE FROM sessions WHERE id = $1 RETURNING id")
SWEEP = Write("DELETE FROM sessions WHERE expires <= $1 OR used < $2 RETURNING id")


@dataclass(frozen=True)
class Session:
    id: str  # hash of what the cookie has
    caller: Document  # who it is, as they proved it when they signed in
    proof: str  # what it was proved by, which can lose its worth: the admin key's fingerprint, Entra's application
    expires: float
    used: float  # when a page was last asked for, to within a minute


def values(session: Session) -> Values:
    return session.id, text_of(session.caller), session.proof, session.expires, session.used


def session_of(row: Row) -> Session:
    return Session(row[0], document_of(row[1]), row[2], row[3], row[4])
