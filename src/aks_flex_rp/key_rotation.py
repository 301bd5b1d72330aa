"""Re-encrypts every sealed value of the database with the newest key.

Each value is replaced only if it has not changed since it was read, so the service can run during the rotation, and
an interrupted rotation can be repeated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_rp.cluster_registry import connection_seal_context
from aks_flex_rp.crypto.encryption import sealing_key_id
from aks_flex_rp.delivery.config_url import bundle_seal_context as delivery_context
from aks_flex_rp.nodes.context import secrets_seal_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.raw_database import Database, Row

PAGE = 500
PASSES = 3  # to include values that a running service wrote during the rotation


@dataclass(frozen=True)
class SealedColumn:
    """A column with encrypted values: the statements that read it page by page and replace one value."""

    name: str
    select: str
    update: str
    context: Callable[..., str]
    keys: int  # number of columns that identify a row; the last column is the value


SEALED_COLUMNS = (
    SealedColumn(
        "cluster connections",
        "SELECT key, connection FROM clusters WHERE key > $1 ORDER BY key LIMIT $2",
        "UPDATE clusters SET connection = $3 WHERE key = $1 AND connection = $2",
        connection_seal_context,
        1,
    ),
    SealedColumn(
        "node secrets",
        "SELECT cluster, key, secrets FROM nodes WHERE (cluster, key) > ($1, $2) AND gone = 0"
        " AND length(secrets) > 0 ORDER BY cluster, key LIMIT $3",
        "UPDATE nodes SET secrets = $4 WHERE cluster = $1 AND key = $2 AND secrets = $3",
        secrets_seal_context,
        2,
    ),
    SealedColumn(
        "pending config bundles",
        "SELECT cluster, node, id, bundle FROM deliveries WHERE (cluster, node) > ($1, $2)"
        " ORDER BY cluster, node LIMIT $3",
        "UPDATE deliveries SET bundle = $4 WHERE cluster = $1 AND node = $2 AND bundle = $3",
        lambda cluster, node, name: delivery_context(name, cluster, node),
        2,
    ),
)


@dataclass
class RotationResult:
    resealed: Counter[str] = field(default_factory=Counter)  # by name of the column
    unopened: list[str] = field(default_factory=list)  # contexts of values that are corrupt or whose key is missing


async def count_by_key(database: Database) -> Counter[str]:
    """Counts the sealed values by the ID of their encryption key."""
    found: Counter[str] = Counter()
    for kind in SEALED_COLUMNS:
        async for row in _rows(database, kind):
            found[sealing_key_id(row[-1])] += 1
    return found


async def reseal(database: Database, sealer: Sealer) -> RotationResult:
    rotation = RotationResult()
    for _ in range(PASSES):
        changed = sum([await _reseal_kind(database, sealer, kind, rotation) for kind in SEALED_COLUMNS])
        if not changed:
            break
    return rotation


async def _reseal_kind(database: Database, sealer: Sealer, kind: SealedColumn, rotation: RotationResult) -> int:
    changed = 0
    async for *names, value in _rows(database, kind):
        if sealer.is_current(value):
            continue
        context = kind.context(*names)
        try:
            opened = sealer.open(value, context)
        except ConfigError:
            if context not in rotation.unopened:
                rotation.unopened.append(context)
            continue
        keys = names[: kind.keys]
        changed += await database.change(kind.update, *keys, value, sealer.seal(opened, context))
    rotation.resealed[kind.name] += changed
    return changed


async def _rows(database: Database, kind: SealedColumn) -> AsyncIterator[Row]:
    after: Row = ("",) * kind.keys
    while True:
        page = await database.rows(kind.select, *after, PAGE)
        for row in page:
            yield (*row[:-1], bytes(row[-1]))
        if len(page) < PAGE:
            return
        after = page[-1][: kind.keys]
