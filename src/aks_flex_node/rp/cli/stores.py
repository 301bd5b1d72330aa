"""The store of the service on this machine, for commands that work on it without the service."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp.arm.ids import cluster_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aks_flex_node.rp.settings import ServiceSettings
    from aks_flex_node.rp.store.store import Cluster, Store


@asynccontextmanager
async def opened(settings: ServiceSettings, *, make: bool = False) -> AsyncIterator[Store]:
    """Whoever only looks, or looks in the wrong place, leaves no empty database behind: `make` is for the others."""
    from aks_flex_node.rp import databases
    from aks_flex_node.rp.service import open_store

    if not make and not databases.postgres_address(settings):
        databases.require(settings.sqlite_file)
    store = open_store(settings)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def bring_to_schema(settings: ServiceSettings) -> None:
    """Which whoever opens a store does, and see that it answers."""
    async with opened(settings, make=True) as store:
        await store.count_nodes()


async def clusters(settings: ServiceSettings) -> tuple[Cluster, ...]:
    async with opened(settings) as store:
        return await store.clusters()


def name_of(cluster: Cluster) -> str:
    known = cluster_id(cluster.id)
    return known.name if known else cluster.id


def chosen(known: tuple[Cluster, ...], text: str) -> Cluster:
    """By its id or by its name; the only one there is when nothing is said."""
    wanted = text.lower().rstrip("/")
    fitting = [each for each in known if wanted in {"", each.key, name_of(each).lower()}]
    if len(fitting) == 1:
        return fitting[0]
    what = f"There is no cluster {text!r}." if text else "No cluster is named."
    if fitting:
        what = f"There are several clusters {text!r}." if text else "No cluster is named, and there are several."
    ids = "\n".join(f"  {each.id}" for each in known)
    hint = "Give the whole id." if known else "Add one with `aks-flex-rp cluster add`."
    raise ConfigError("cluster-unknown", f"{what} Known:\n{ids}" if known else f"{what} None is known.", hint)
