"""Every sealed value of the database, and how it is sealed anew with the newest key.

Each value is replaced only if it still is the one that was read, alone and at once. So a service can go on working
beside it, and whoever interrupts it begins again: what is done is passed over.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp.connected import connection_context
from aks_flex_node.rp.delivery.built_in import context as delivery_context
from aks_flex_node.rp.keyrings import sealed_with
from aks_flex_node.rp.nodes.around import secrets_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aks_flex_node.rp.databases import Database, Row
    from aks_flex_node.rp.sealing import Sealer

PAGE = 500
PASSES = 3  # over what a running service wrote meanwhile


@dataclass(frozen=True)
class Kind:
    """One column that holds sealed values: how they are read page by page, and how one is replaced."""

    name: str
    select: str
    update: str
    context: Callable[..., str]
    keys: int  # columns that name a row; the last column of all is the value


KINDS = (
    Kind(
        "connections of clusters",
        "SELECT key, connection FROM clusters WHERE key > $1 ORDER BY key LIMIT $2",
        "UPDATE clusters SET connection = $3 WHERE key = $1 AND connection = $2",
        connection_context,
        1,
    ),
    Kind(
        "secrets of nodes",
        "SELECT cluster, key, secrets FROM nodes WHERE (cluster, key) > ($1, $2) AND gone = 0"
        " AND length(secrets) > 0 ORDER BY cluster, key LIMIT $3",
        "UPDATE nodes SET secrets = $4 WHERE cluster = $1 AND key = $2 AND secrets = $3",
        secrets_of,
        2,
    ),
    Kind(
        "bundles that wait",
        "SELECT cluster, node, id, bundle FROM deliveries WHERE (cluster, node) > ($1, $2)"
        " ORDER BY cluster, node LIMIT $3",
        "UPDATE deliveries SET bundle = $4 WHERE cluster = $1 AND node = $2 AND bundle = $3",
        lambda cluster, node, name: delivery_context(name, cluster, node),
        2,
    ),
)


@dataclass
class Outcome:
    resealed: Counter[str] = field(default_factory=Counter)  # by the name of their kind
    unopened: list[str] = field(default_factory=list)  # contexts of those whose key is missing, or that are damaged


async def in_use(database: Database) -> Counter[str]:
    """How many values each key has sealed, by its id."""
    found: Counter[str] = Counter()
    for kind in KINDS:
        async for row in _rows(database, kind):
            found[sealed_with(row[-1])] += 1
    return found


async def reseal(database: Database, sealer: Sealer) -> Outcome:
    outcome = Outcome()
    for _ in range(PASSES):
        changed = sum([await _reseal_kind(database, sealer, kind, outcome) for kind in KINDS])
        if not changed:
            break
    return outcome


async def _reseal_kind(database: Database, sealer: Sealer, kind: Kind, outcome: Outcome) -> int:
    changed = 0
    async for *names, value in _rows(database, kind):
        if sealer.is_current(value):
            continue
        context = kind.context(*names)
        try:
            opened = sealer.open(value, context)
        except ConfigError:
            if context not in outcome.unopened:
                outcome.unopened.append(context)
            continue
        keys = names[: kind.keys]
        changed += await database.change(kind.update, *keys, value, sealer.seal(opened, context))
    outcome.resealed[kind.name] += changed
    return changed


async def _rows(database: Database, kind: Kind) -> AsyncIterator[Row]:
    after: Row = ("",) * kind.keys
    while True:
        page = await database.rows(kind.select, *after, PAGE)
        for row in page:
            yield (*row[:-1], bytes(row[-1]))
        if len(page) < PAGE:
            return
        after = page[-1][: kind.keys]
