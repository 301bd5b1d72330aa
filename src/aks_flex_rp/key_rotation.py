"""Re-encrypts every sealed value of the database and signs every row again, with the newest key.

Each value is replaced only if it has not changed since it was read, so the service can run during the rotation, and
an interrupted rotation can be repeated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import ConfigError
from aks_flex_rp.cluster_registry import connection_seal_context
from aks_flex_rp.crypto.encryption import sealing_key_id
from aks_flex_rp.crypto.record_codes import CodeState, code_key_id
from aks_flex_rp.delivery.config_url import bundle_seal_context
from aks_flex_rp.nodes.context import secrets_seal_context
from aks_flex_rp.store import signed_tables, sql
from aks_flex_rp.store.record_authenticator import identity_owner_row, node_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.raw_database import Database, Row
    from aks_flex_rp.store.record_authenticator import SignedRow
    from aks_flex_rp.store.signed_tables import SignedTable

PAGE = 500
PASSES = 3  # to include values that a running service wrote during the rotation


SELECT_BUNDLES = (
    "SELECT cluster, node, id, expires, bundle FROM deliveries WHERE (cluster, node) > ($1, $2)"
    " ORDER BY cluster, node LIMIT $3"
)
UPDATE_BUNDLE = "UPDATE deliveries SET bundle = $4 WHERE cluster = $1 AND node = $2 AND bundle = $3"


@dataclass(frozen=True)
class RotatedTable:
    """A table whose rows have an authentication code, and maybe a sealed column, which change together."""

    name: str
    columns: str
    select: str  # page by page
    update: str  # keys, old code, new sealed value if there is one, new code
    accept: str  # keys, old code, new revision if there is one, new code
    first: Row  # the keys before the first row
    revision: int | None  # index of the column with the revision; None if a row never changes
    signed: Callable[[Row], SignedRow]
    kinds: frozenset[str]  # of the signed rows
    sealed: int | None = None  # index of the column with the sealed value
    context: Callable[..., str] | None = None  # of the sealed value

    @property
    def keys(self) -> int:
        return len(self.first)


def _rotated(
    name: str, table: SignedTable[Any], sealed: int | None = None, context: Callable[..., str] | None = None
) -> RotatedTable:
    first = tuple("" if kind == "TEXT" else 0 for kind in table.types[: table.keys])
    old, new = table.keys + 1, table.keys + 2

    def change(*columns: str) -> str:
        sets = ", ".join(f"{column} = ${number}" for number, column in enumerate((*columns, "code"), new))
        return f"UPDATE {table.name} SET {sets} WHERE {table.where} AND code = ${old}"  # noqa: S608 - constants

    return RotatedTable(
        name,
        table.all_columns,
        table.select_page,
        change(*([table.names[sealed]] if sealed else ())),
        change(*([table.names[table.revision]] if table.revision else ())),
        first,
        table.revision,
        table.read,
        frozenset({table.kind}),
        sealed,
        context,
    )


ROTATED_TABLES = (
    _rotated("clusters", signed_tables.CLUSTERS, 3, connection_seal_context),
    RotatedTable(
        "nodes",
        sql.SIGNED_NODE_COLUMNS,
        sql.SELECT_SIGNED_NODES,
        "UPDATE nodes SET secrets = $4, code = $5 WHERE cluster = $1 AND key = $2 AND code = $3",
        "UPDATE nodes SET revision = $4, code = $5, etag = etag WHERE cluster = $1 AND key = $2 AND code = $3",
        ("", ""),
        12,
        node_row,
        frozenset({"node", "deleted node"}),
        7,
        secrets_seal_context,
    ),
    _rotated("pools", signed_tables.POOLS),
    _rotated("revisions of pools", signed_tables.POOL_REVISIONS),
    _rotated("enrolments", signed_tables.ENROLMENTS),
    _rotated("enrolled machines", signed_tables.MACHINES),
    _rotated("roll-outs", signed_tables.ROLLOUTS),
    _rotated("nodes of roll-outs", signed_tables.ROLLOUT_NODES),
    _rotated("versions of pools", signed_tables.POOL_VERSIONS),
)


@dataclass
class RotationResult:
    resealed: Counter[str] = field(default_factory=Counter)  # by name of the column
    unopened: list[str] = field(default_factory=list)  # contexts of values that are corrupt or whose key is missing


async def count_by_key(database: Database) -> Counter[str]:
    """Counts the sealed values and the authenticated rows by the ID of their key."""
    found: Counter[str] = Counter()
    async for row in read_rows(database, SELECT_BUNDLES, ("", "")):
        found[sealing_key_id(_as_bytes(row[-1]))] += 1
    for table in ROTATED_TABLES:
        async for row in read_rows(database, table.select, table.first):
            value = b"" if table.sealed is None else _as_bytes(row[table.sealed])
            found.update({*([sealing_key_id(value)] if value else ()), *([code_key_id(row[-1])] if row[-1] else ())})
    return found


async def reseal(database: Database, sealer: Sealer) -> RotationResult:
    rotation = RotationResult()
    for _ in range(PASSES):
        changed = await _reseal_bundles(database, sealer, rotation)
        changed += sum([await _reseal_table(database, sealer, table, rotation) for table in ROTATED_TABLES])
        changed += await _sign_owners(database, sealer, rotation)
        if not changed:
            break
    return rotation


async def _sign_owners(database: Database, sealer: Sealer, rotation: RotationResult) -> int:
    """Signs the owners of identities again. One that is not authentic is replaced at the next sign-in."""
    changed = 0
    async for row in read_rows(database, sql.IDENTITY_OWNERS, ("",)):
        signed = identity_owner_row(row)
        valid = sealer.codes.check(signed.kind, signed.values, signed.code) is CodeState.VALID
        if valid and not sealer.codes.is_current(signed.code):
            code = sealer.codes.sign(signed.kind, signed.values)
            changed += await database.change(sql.SIGN_IDENTITY_OWNER, row[0], signed.code, code)
    rotation.resealed["owners of identities"] += changed
    return changed


async def _reseal_bundles(database: Database, sealer: Sealer, rotation: RotationResult) -> int:
    changed = 0
    async for cluster, node, name, expires, stored in read_rows(database, SELECT_BUNDLES, ("", "")):
        value, context = _as_bytes(stored), bundle_seal_context(name, cluster, node, expires)
        if not sealer.is_current(value) and (opened := _opened(sealer, value, context, rotation)) is not None:
            sealed = sealer.seal(opened, context)
            changed += await database.change(UPDATE_BUNDLE, cluster, node, value, sealed)
    rotation.resealed["pending config bundles"] += changed
    return changed


async def _reseal_table(database: Database, sealer: Sealer, table: RotatedTable, rotation: RotationResult) -> int:
    """Encrypts and signs the rows of a table again. A row that is not authentic is left as it is."""
    changed = 0
    async for row in read_rows(database, table.select, table.first):
        value = b"" if table.sealed is None else _as_bytes(row[table.sealed])
        if sealer.codes.is_current(row[-1]) and (not value or sealer.is_current(value)):
            continue
        keys, signed = row[: table.keys], table.signed(row)
        if sealer.codes.check(signed.kind, signed.values, signed.code) is not CodeState.VALID:
            _record_unopened(rotation, f"{signed.shown} (not authentic)")
            continue
        if table.sealed is None or table.context is None:
            code = sealer.codes.sign(signed.kind, signed.values)
            changed += await database.change(table.update, *keys, row[-1], code)
            continue
        context = table.context(*keys)
        opened = _opened(sealer, value, context, rotation) if value else b""
        if opened is None:
            continue
        sealed = sealer.seal(opened, context) if value else b""
        after = table.signed((*row[: table.sealed], sealed, *row[table.sealed + 1 :]))
        code = sealer.codes.sign(after.kind, after.values)
        changed += await database.change(table.update, *keys, row[-1], sealed, code)
    rotation.resealed[table.name] += changed
    return changed


def _opened(sealer: Sealer, value: bytes, context: str, rotation: RotationResult) -> bytes | None:
    try:
        return sealer.open(value, context)
    except ConfigError:
        _record_unopened(rotation, context)
        return None


def _record_unopened(rotation: RotationResult, context: str) -> None:
    if context not in rotation.unopened:
        rotation.unopened.append(context)


def _as_bytes(value: Any) -> bytes:
    """Returns the bytes of a sealed value. SQLite stores the empty one of a deleted node as text, and any type."""
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else b""


async def read_rows(database: Database, select: str, first: Row) -> AsyncIterator[Row]:
    """Yields all rows, page by page. `first` are the keys before the first row."""
    after = first
    while True:
        page = await database.rows(select, *after, PAGE)
        for row in page:
            yield row
        if len(page) < PAGE:
            return
        after = page[-1][: len(first)]
