"""Repairs rows of the fleet index that differ from their nodes.

Every write of a node updates its row. But someone may change one of them in the database, and a node that was refused
for that is marked in its row until it is authentic again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_rp.store import fleet, rows, sql
from aks_flex_rp.store.authenticated_rows import AuthenticatedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.store.rows import Row, Values

AT_ONCE = 250  # nodes per read; a larger read would delay polls
NODE_COLUMNS = 17

_NODE_EXISTS = (
    "SELECT 1 FROM cluster_numbers p JOIN nodes n ON n.cluster = p.cluster"  # noqa: S608 - a constant
    f" WHERE p.number = {{cluster_number}} AND n.key = {{key}} AND {sql.NOT_DELETED}"
)

# Reads a node and its row in one snapshot: a difference means that one was written without the other.
NODES_WITH_ROWS = (
    f"SELECT {sql.NODE_COLUMNS}, {', '.join(f'f.{name}' for name in fleet.DERIVED_COLUMNS)}"  # noqa: S608 - constants
    f" FROM {sql.NODES_IN_FLEET} WHERE n.gone = 0 AND (n.cluster, n.key) > ($1, $2)"
    " ORDER BY n.cluster, n.key LIMIT $3"
)

# Replaces only an unchanged row: a write in between has already corrected it.
_SAME = " AND ".join(
    f"{name} = ${number}" for number, name in enumerate(fleet.DERIVED_COLUMNS, 3 + len(fleet.DERIVED_COLUMNS))
)
REPLACE_ROW = (
    f"UPDATE fleet SET {fleet.assignments(3)}"  # noqa: S608 - names of columns
    f" WHERE cluster_number = $1 AND key = $2 AND {_SAME}"
)

ADD_ROW = (
    f"INSERT INTO fleet ({fleet.COLUMNS}) SELECT {fleet.new_row(1)}"
    f" WHERE EXISTS ({_NODE_EXISTS.format(cluster_number='$1', key='$2')})"
    " ON CONFLICT (cluster_number, key) DO NOTHING"
)

_NODE_MISSING = f"NOT EXISTS ({_NODE_EXISTS.format(cluster_number='fleet.cluster_number', key='fleet.key')})"
ORPHANS = f"SELECT cluster_number, key FROM fleet WHERE {_NODE_MISSING} LIMIT $1"  # noqa: S608 - a constant
# A deletion by the service removes the row of the fleet, and keeps that of the node.
MISSING_NODES = (
    "SELECT p.cluster, f.key FROM fleet f JOIN cluster_numbers p ON p.number = f.cluster_number"
    " WHERE NOT EXISTS (SELECT 1 FROM nodes n WHERE n.cluster = p.cluster AND n.key = f.key) LIMIT $1"
)
DELETE_ORPHAN = f"DELETE FROM fleet WHERE cluster_number = $1 AND key = $2 AND {_NODE_MISSING}"  # noqa: S608 - a constant


class FleetRepair(AuthenticatedRows):
    async def repair_fleet(self) -> int:
        """Rebuilds rows that differ from their nodes, and returns their number. Missing nodes are alarmed."""
        for cluster, key in await self._read(MISSING_NODES, AT_ONCE):
            await self._alarm_missing(str(cluster), str(key))
        nobodys = [tuple(row) for row in await self._read(ORPHANS, AT_ONCE)]
        repaired = await self._repair(DELETE_ORPHAN, nobodys)
        last: tuple[str, str] = ("", "")
        while found := await self._read(NODES_WITH_ROWS, *last, AT_ONCE):
            last = (found[-1][0], found[-1][1])
            wrong = [pair for row in found if (pair := await self._correction(row))]
            repaired += await self._repair(REPLACE_ROW, [values for text, values in wrong if text is REPLACE_ROW])
            repaired += await self._repair(ADD_ROW, [values for text, values in wrong if text is ADD_ROW])
        return repaired

    async def _correction(self, row: Row) -> tuple[str, Values] | None:
        """Returns the statement that corrects the row, or None if it matches its node, or the node is refused."""
        node, stored = self._authentic_node(row[:NODE_COLUMNS]), tuple(row[NODE_COLUMNS:])
        if node is None:
            return None
        derived = rows.storable(fleet.row_of(node))
        if derived == stored:
            return None
        names = (await self._cluster_number(node.cluster), node.key)
        if all(value is None for value in stored):
            return ADD_ROW, (*names, *derived)
        return REPLACE_ROW, (*names, *derived, *stored)

    async def _repair(self, text: str, values: Sequence[Values]) -> int:
        if values:
            await self._write_many(text, values, repeatable=True)
        return len(values)
