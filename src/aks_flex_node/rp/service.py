"""The whole service, put together from its settings: what there is, in which order it starts, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.rp import private_files
from aks_flex_node.rp.auth.keys import AdminKey
from aks_flex_node.rp.auth.limits import Limits
from aks_flex_node.rp.auth.roles import Roles
from aks_flex_node.rp.auth.tokens import Tokens
from aks_flex_node.rp.clusters.connections import ByArm
from aks_flex_node.rp.clusters.facts import Given
from aks_flex_node.rp.clusters.watches import keep_doing
from aks_flex_node.rp.clusters.watching import ClusterWatch, Pace
from aks_flex_node.rp.connected import Connected
from aks_flex_node.rp.dashboard.opening import open_dashboard
from aks_flex_node.rp.delivery.built_in import BuiltIn
from aks_flex_node.rp.identity import open_arm
from aks_flex_node.rp.nodes.around import Workshop
from aks_flex_node.rp.nodes.following import Following
from aks_flex_node.rp.nodes.granting import Granting
from aks_flex_node.rp.nodes.joins import Joins
from aks_flex_node.rp.nodes.reading import Reading
from aks_flex_node.rp.nodes.reporting import Reporting
from aks_flex_node.rp.nodes.writing import Writing
from aks_flex_node.rp.notifying.working import Notifying
from aks_flex_node.rp.outward import own_authority, ways
from aks_flex_node.rp.resource.showing import SILENT_AFTER
from aks_flex_node.rp.sealing import load_keys
from aks_flex_node.rp.serving.app import application
from aks_flex_node.rp.serving.arm import Arm
from aks_flex_node.rp.serving.cards import Cards
from aks_flex_node.rp.serving.doors import Doors
from aks_flex_node.rp.serving.metrics import Metrics
from aks_flex_node.rp.serving.own import Own
from aks_flex_node.rp.serving.polling import Polling
from aks_flex_node.rp.tls.given import Given as GivenFiles
from aks_flex_node.rp.tls.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.rp.clusters.connections import Connection
    from aks_flex_node.rp.delivery.delivering import Delivering
    from aks_flex_node.rp.nodes.around import RunningClusters
    from aks_flex_node.rp.sealing import Sealer
    from aks_flex_node.rp.settings import ServiceSettings
    from aks_flex_node.rp.store.store import Cluster, Store
    from aks_flex_node.rp.tls.chains import Chain
    from aks_flex_node.rp.tls.own import Own as OwnAuthority
    from aks_flex_node.rp.tls.serving import Source

SWEEP_SECONDS = 60.0
MEASURE_SECONDS = 15.0
MEND_SECONDS = 900.0

log = logging.getLogger(__name__)


def open_store(settings: ServiceSettings) -> Store:
    """Not started yet. PostgreSQL when an address is given, SQLite in the state directory when none is."""
    address = settings.database or ""
    if settings.database_file:
        address = private_files.read(settings.database_file).decode().strip()
    if address:
        from aks_flex_node.rp.store.postgres import PostgresStore  # noqa: PLC0415 - one machine needs no driver

        return PostgresStore(address)
    from aks_flex_node.rp.store.sqlite import SqliteStore  # noqa: PLC0415

    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return SqliteStore(settings.sqlite_file)


def open_sealer(settings: ServiceSettings) -> Sealer:
    return load_keys(settings.keys, os.environ)


class Service:
    def __init__(self, settings: ServiceSettings, clusters: RunningClusters | None = None) -> None:
        """`clusters` stands in for the connections that the service makes by itself."""
        self.settings = settings
        self.key = AdminKey(settings.admin_key_file)
        self.store = open_store(settings)
        self.metrics = metrics = Metrics()
        self.tls = Serving(Measured(_certificates(settings), metrics.certificate.set), time.time())
        told = metrics.notifications
        self._notifying = Notifying(
            settings.notifications, self.store, SILENT_AFTER, lambda how, number: told.labels(how).inc(number)
        )
        sealer = open_sealer(settings)
        self.cards = cards = Cards(self.store)
        self.clusters = clusters or Connected(
            self.store, sealer, self._watch, lambda event: metrics.tokens.labels(event).inc()
        )
        self._bundles = BuiltIn(self.store, sealer, settings.origin, lambda: self.tls.pin)
        self.delivery = self._delivery()
        seconds = settings.tokens.hours * 3600
        self.shop = shop = Workshop(
            self.store, sealer, self.delivery, self.clusters, token_seconds=seconds, ways=ways(settings)
        )
        follow, notices = Following(shop).follow, self._notifying.notices
        self.joins = Joins(shop, follow, lambda outcome: metrics.joins.labels(outcome).inc(), notices)
        tokens = Tokens(settings.auth, self.key)
        doors = Doors(tokens, self._roles(), Limits(settings.limits), cards, shop)
        reporting = Reporting(shop, Granting(shop), cards.saw, notices)
        arm = Arm(doors, Writing(shop, notices), Reading(shop, cards.heard), reporting, metrics)
        built_in = self._bundles if settings.delivery.method == "builtIn" else None
        own = Own(doors, self.joins, metrics, built_in, lambda: self._running)
        self.pages = open_dashboard(settings, arm, self.key, sealer) if settings.dashboard.enabled else None
        self.app = Polling(application(arm, own, self.pages.routes() if self.pages else ()), doors, metrics)
        metrics.watch("held_polls", "Polls that wait for a change.", lambda: cards.held)
        metrics.watch("clusters", "Clusters that are known.", lambda: self.clusters.count)
        self._running = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.key.ensure()
        await self.store.start()
        await self.store.refresh_fleet()
        await self.delivery.start()
        self.cards.start()
        await self.clusters.start()
        sweeping = keep_doing("sweep", self._sweep, SWEEP_SECONDS)
        measuring = keep_doing("measures", self._measure, MEASURE_SECONDS)
        chores = [keep_doing(each.name, each.once, each.seconds) for each in self._notifying.chores()]
        self._tasks = [
            asyncio.create_task(each)
            for each in (self.tls.keep(), sweeping, self._keep_mending(), measuring, *chores)
        ]
        self._running = True

    async def stop(self) -> None:
        self._running = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._notifying.stop()
        await self.clusters.stop()
        await self.cards.stop()
        await self.store.stop()

    def _watch(self, cluster: Cluster, connection: Connection) -> ClusterWatch:
        facts = cluster.facts
        return ClusterWatch(
            cluster.key,
            connection,
            self.joins,
            arm=open_arm(self.settings) if isinstance(connection, ByArm) else None,
            given=Given(**facts.get("given", {})),
            pace=Pace(
                grace=self.settings.tokens.grace_seconds,
                gone_after=self.settings.nodes.gone_after_minutes * 60,
            ),
        )

    def _delivery(self) -> Delivering:
        settings = self.settings.delivery
        if settings.method == "builtIn" or settings.azure_blob is None:
            return self._bundles
        from aks_flex_node.rp.delivery.opening import open_blobs  # noqa: PLC0415 - most need no Azure SDK

        return open_blobs(self.settings)

    def _roles(self) -> Roles:
        auth = self.settings.auth
        if not auth.azure_role_assignments:
            return Roles(auth.roles)
        from aks_flex_node.rp.auth.assignments import AzureAssignments  # noqa: PLC0415

        return Roles(auth.roles, AzureAssignments(open_arm(self.settings)))

    async def _measure(self) -> None:
        """Whatever asks for a metric does not wait for the store."""
        self.metrics.store_up.set(await self.store.healthy())
        counts = await self.store.fleet_counts(time.time())
        self.metrics.set_fleet(counts, await self.store.pending_messages())

    async def _keep_mending(self) -> None:
        """First after a while: replicas of another release are replaced after this one has started."""
        await asyncio.sleep(MEND_SECONDS)
        await keep_doing("fleet", self._mend, MEND_SECONDS)

    async def _mend(self) -> None:
        if mended := await self.store.mend_fleet():
            log.info("%d rows of the fleet were made anew: another release has written their nodes.", mended)

    async def _sweep(self) -> None:
        """Expired URLs go, and old lines of the audit; expired tokens go with their cluster's watch."""
        now = time.time()
        if gone := await self.delivery.sweep(now):
            log.info("%d expired config URLs were removed.", gone)
        if self.pages:
            await self.pages.sessions.sweep()
        await self.store.forget_audit(now - self.settings.audit_days * 86400)


@dataclass(frozen=True)
class Measured:
    """Certificates, and who is told until when the one that is served lasts."""

    source: Source
    tell: Callable[[float], None]

    def current(self, now: float) -> Chain:
        chain = self.source.current(now)
        self.tell(chain.certificates[0].not_valid_after_utc.timestamp())
        return chain


def _certificates(settings: ServiceSettings) -> GivenFiles | OwnAuthority:
    if settings.tls.certificate_file and settings.tls.key_file:
        return GivenFiles(settings.tls.certificate_file, settings.tls.key_file)
    return own_authority(settings)
