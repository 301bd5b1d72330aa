"""Sessions of signed-in dashboard users: rows, so that all replicas know them and each can be revoked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.store.rows import from_json, to_json
from aks_flex_rp.store.sql import WriteStatement

if TYPE_CHECKING:
    from aks_flex_rp.store.model import Document
    from aks_flex_rp.store.rows import Row, Values

_COLUMNS = "id, caller, proof, expires, used"

PUT_SESSION = WriteStatement(f"INSERT INTO sessions ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5) RETURNING id")  # noqa: S608 - a constant
SELECT_SESSION = f"SELECT {_COLUMNS} FROM sessions WHERE id = $1 AND expires > $2"  # noqa: S608 - a constant
USE_SESSION = WriteStatement("UPDATE sessions SET used = $2 WHERE id = $1 RETURNING id")
END_SESSION = WriteStatement("DELETE FROM sessions WHERE id = $1 RETURNING id")
SWEEP_SESSIONS = WriteStatement("DELETE FROM sessions WHERE expires <= $1 OR used < $2 RETURNING id")


@dataclass(frozen=True)
class UserSession:
    id: str  # hash of what the cookie has
    caller: Document  # who it is, as they proved it when they signed in
    proof: str  # what it was proved by, which can lose its worth: the admin key's fingerprint, Entra's application
    expires: float
    used: float  # when a page was last asked for, to within a minute


def session_values(session: UserSession) -> Values:
    return session.id, to_json(session.caller), session.proof, session.expires, session.used


def session_of(row: Row) -> UserSession:
    return UserSession(row[0], from_json(row[1]), row[2], row[3], row[4])
