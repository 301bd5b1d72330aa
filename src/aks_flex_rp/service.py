"""Composition root: builds the components of the service from its settings, starts and stops them in order.

Also derives the endpoints that agents receive from the settings.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aks_flex_node.errors import ConfigError
from aks_flex_rp import raw_database
from aks_flex_rp.api.arm_routes import ArmRoutes
from aks_flex_rp.api.authorization import open_authorizer
from aks_flex_rp.api.http_messages import with_response_on_cancel
from aks_flex_rp.api.metrics import Metrics, MetricsAccess
from aks_flex_rp.api.poll_cache import PollCache
from aks_flex_rp.api.poll_handler import PollHandler
from aks_flex_rp.api.routes import MachineRoutes, ServiceRoutes, create_app
from aks_flex_rp.arm.ids import record_resource
from aks_flex_rp.auth.admin_key import AdminKey
from aks_flex_rp.auth.roles import Roles
from aks_flex_rp.azure_identity import open_arm
from aks_flex_rp.cluster_registry import ClusterRegistry
from aks_flex_rp.clusters.connections import ArmConnection
from aks_flex_rp.clusters.controller import ClusterController, ControllerIntervals
from aks_flex_rp.clusters.facts import FactOverrides
from aks_flex_rp.clusters.informer import run_periodically
from aks_flex_rp.crypto.encryption import KEYS_VARIABLE, has_keys, open_sealer_keys
from aks_flex_rp.crypto.tls_certificates import CertificateFiles, PrivateCa, ServerTls
from aks_flex_rp.dashboard.app import open_dashboard
from aks_flex_rp.delivery.config_url import BuiltInDelivery, SplitDelivery
from aks_flex_rp.nodes.context import NodeContext
from aks_flex_rp.nodes.enrolment_operations import EnrolmentCommands
from aks_flex_rp.nodes.subsystem import open_nodes
from aks_flex_rp.notify.notifier import Notifier
from aks_flex_rp.resource.config_generator import AgentEndpoints
from aks_flex_rp.resource.view import SILENT_AFTER
from aks_flex_rp.rollouts.commands import RolloutCommands
from aks_flex_rp.rollouts.controller import RolloutController, run_controller
from aks_flex_rp.rollouts.gate_runner import GateRunner
from aks_flex_rp.rollouts.rollout_actions import RolloutActions
from aks_flex_rp.rollouts.view import count_rollouts
from aks_flex_rp.settings import AzureSettings
from aks_flex_rp.store.record_authenticator import RecordAuthenticator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_rp.clusters.connections import ClusterConnection
    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.crypto.tls_certificates import CertificateSource
    from aks_flex_rp.delivery.config_url import BundleDelivery
    from aks_flex_rp.nodes.azure_cleanup import ArmRemover
    from aks_flex_rp.nodes.context import RunningClusterOperations
    from aks_flex_rp.settings import ServiceSettings
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Cluster


PUBLIC_CLOUD = AzureSettings()


def private_ca(settings: ServiceSettings) -> PrivateCa:
    return PrivateCa(settings.state_dir / "tls", settings.names)


def agent_endpoints(settings: ServiceSettings) -> AgentEndpoints:
    """Returns the endpoints that agents receive. Read once, when the service starts and has its certificate."""
    return AgentEndpoints(
        url=settings.agents_url or settings.origin,
        ca_cert_data=_own_certificate(settings),
        audiences={each.tenant_id: settings.node_audience(each) for each in settings.auth.tenants},
        poll_seconds=settings.nodes.poll_seconds,
        azure=_private_cloud(settings.azure),
    )


def _own_certificate(settings: ServiceSettings) -> str:
    """Returns the private CA, or nothing if the certificate is configured or a gateway presents another one."""
    name = urlsplit(settings.agents_url or settings.origin).hostname
    if settings.tls.certificate_file or name not in [each.lower() for each in settings.names]:
        return ""
    return _encoded(private_ca(settings).public_file)


def _private_cloud(azure: AzureSettings) -> dict[str, str]:
    options = {
        "resourceManager": azure.resource_manager if azure.resource_manager != PUBLIC_CLOUD.resource_manager else "",
        "authorityHost": azure.authority if azure.authority != PUBLIC_CLOUD.authority else "",
        "caCertData": _encoded(azure.ca_file) if azure.ca_file else "",
    }
    return {name: value for name, value in options.items() if value}


def _encoded(file: Path) -> str:
    try:
        return base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise ConfigError(
            "service-config-invalid",
            f"Cannot read {file}, a certificate that nodes must trust: {error.strerror}.",
            "Correct the settings of the service, or the file.",
        ) from error


SWEEP_SECONDS = 60.0
MEASURE_SECONDS = 15.0
REPAIR_SECONDS = 900.0
log = logging.getLogger(__name__)


def open_store(settings: ServiceSettings, count: Callable[[str], None] = lambda _: None) -> Store:
    """Creates the store without starting it: PostgreSQL if an address is set, else SQLite in the state directory.

    `count` is told of each record that is not authentic.
    """
    records = RecordAuthenticator(open_sealer(settings).codes, count, resource=record_resource)
    if address := raw_database.postgres_address(settings):
        from aks_flex_rp.store.postgres import PostgresStore  # noqa: PLC0415 - the driver is not needed with SQLite

        return PostgresStore(address, records)
    from aks_flex_rp.store.sqlite import SqliteStore  # noqa: PLC0415

    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return SqliteStore(settings.sqlite_file, records)


def open_sealer(settings: ServiceSettings, source: Path | None = None) -> Sealer:
    """Loads the keys. The first key is created only for a database (or SQLite file) without records."""
    if not has_keys(settings.keys, os.environ) and raw_database.has_records(settings, source):
        raise ConfigError(
            "encryption-keys-missing",
            f"The database contains records, but the keys of the service are missing: {settings.keys} does not "
            f"exist, and {KEYS_VARIABLE} is not set. Nothing was changed.",
            "Set `keysFile` to the keys of the service, or restore the file from a backup.",
        )
    return open_sealer_keys(settings.keys, os.environ)


class Service:
    def __init__(self, settings: ServiceSettings, clusters: RunningClusterOperations | None = None) -> None:
        """Builds the service. Tests pass `clusters` to replace the connections to clusters."""
        self.settings = settings
        self.admin_key = AdminKey(settings.admin_key_file)
        self.metrics = metrics = Metrics()
        self.store = open_store(settings, lambda outcome: metrics.records.labels(outcome).inc())
        self.tls = ServerTls(_certificates(settings), time.time())
        count_notification = metrics.notifications
        self._notifying = Notifier(
            settings.notifications,
            self.store,
            SILENT_AFTER,
            lambda how, number: count_notification.labels(how).inc(number),
        )
        sealer = open_sealer(settings)
        self.poll_cache = poll_cache = PollCache(self.store)
        self.clusters = clusters or ClusterRegistry(
            self.store, sealer, self._watch, lambda event: metrics.tokens.labels(event).inc()
        )
        self._bundles = BuiltInDelivery(self.store, sealer, settings.origin, lambda: self.tls.pin)
        self.delivery = self._delivery()
        seconds = settings.tokens.hours * 3600
        self.context = context = NodeContext(
            self.store,
            sealer,
            self.delivery,
            self.clusters,
            token_seconds=seconds,
            allow_exec=settings.nodes.allow_exec,
            endpoints=agent_endpoints(settings),
            publisher=self._notifying.publisher,
            last_seen=poll_cache.last_seen,
        )
        nodes = open_nodes(
            context,
            lambda outcome: metrics.joins.labels(outcome).inc(),
            poll_cache.record_seen,
            self._arm_remover(),
        )
        self.join_tracker, self.enroller = nodes.join_tracker, nodes.enroller
        authorizer = open_authorizer(settings, self._roles(), self.admin_key, poll_cache, context)
        gates = GateRunner(settings.rollouts, self.clusters.client)
        only = "" if raw_database.postgres_address(settings) else "the only replica"  # of a SQLite file
        steps = metrics.rollout_seconds.observe
        self.rollouts = RolloutController(context, RolloutActions(nodes.commands, gates), steps, holder=only)
        arm = ArmRoutes(
            authorizer,
            nodes,
            metrics,
            EnrolmentCommands(context, settings.origin, lambda: self.tls.pin),
            RolloutCommands(context, settings.rollouts, gates),
        )
        metrics_access = MetricsAccess(settings.metrics_token_file)
        own = ServiceRoutes(
            authorizer, self.join_tracker, metrics, self._bundles, lambda: self._running, metrics_access
        )
        self.dashboard = open_dashboard(settings, arm, self.admin_key, sealer) if settings.dashboard.enabled else None
        machines = MachineRoutes(self.enroller, authorizer, self.join_tracker)
        pages = self.dashboard.routes() if self.dashboard else ()
        app = with_response_on_cancel(create_app(arm, own, (*machines.routes(), *pages)))
        self.app = PollHandler(app, authorizer, metrics)
        metrics.watch("held_polls", "Long polls that wait for a change.", lambda: poll_cache.held_polls)
        metrics.watch("clusters", "Clusters that the service manages.", lambda: self.clusters.count)
        self._running = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.admin_key.ensure()
        await self.store.start()
        await self.delivery.start()
        self.poll_cache.start()
        await self.clusters.start()
        sweeping = run_periodically("sweep", self._sweep, SWEEP_SECONDS)
        measuring = run_periodically("measures", self._measure, MEASURE_SECONDS)
        chores = [run_periodically(*task) for task in self._notifying.tasks()]
        self._tasks = [
            asyncio.create_task(each)
            for each in (
                *(self.tls.run(), sweeping, self._repair_periodically(), measuring),
                *(run_controller(self.rollouts), *chores),
            )
        ]
        self._running = True

    async def stop(self) -> None:
        self._running = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._notifying.stop()
        await self.rollouts.stop()
        await self.clusters.stop()
        await self.poll_cache.stop()
        await self.store.stop()

    def _watch(self, cluster: Cluster, connection: ClusterConnection) -> ClusterController:
        facts = cluster.facts
        return ClusterController(
            cluster.key,
            connection,
            self.join_tracker,
            arm=open_arm(self.settings) if isinstance(connection, ArmConnection) else None,
            overrides=FactOverrides(**facts.get("given", {})),
            intervals=ControllerIntervals(
                grace=self.settings.tokens.grace_seconds,
                gone_after=self.settings.nodes.gone_after_minutes * 60,
            ),
            shared_addresses=self.settings.nodes.shared_addresses,
        )

    def _delivery(self) -> BundleDelivery:
        settings = self.settings.delivery
        if settings.method == "builtIn" or settings.azure_blob is None:
            return self._bundles
        from aks_flex_rp.delivery.azure_blob import open_blob_delivery  # noqa: PLC0415 - only this method needs the Azure SDK

        return SplitDelivery(open_blob_delivery(self.settings), self._bundles)

    def _arm_remover(self) -> Callable[[], ArmRemover] | None:
        """Returns the access to Azure with which the service removes resources of deleted nodes, if it has any."""
        has_identity = self.settings.azure.client_id or self.settings.auth.azure_role_assignments
        return (lambda: open_arm(self.settings)) if has_identity else None

    def _roles(self) -> Roles:
        auth = self.settings.auth
        if not auth.azure_role_assignments:
            return Roles(self.settings.role_grants)
        from aks_flex_rp.auth.roles import AzureAssignments  # noqa: PLC0415

        tenant = self.settings.assignments_tenant or ""
        return Roles(self.settings.role_grants, AzureAssignments(open_arm(self.settings), tenant))

    async def _measure(self) -> None:
        """Updates the gauges that are not set by events, so that a scrape does not wait for the store."""
        self.metrics.certificate.set(self.tls.expires)
        self.metrics.store_up.set(await self.store.healthy())
        counts = await self.store.fleet_counts(time.time())
        self.metrics.set_fleet(counts, await self.store.pending_messages())
        self.metrics.set_rollouts(await count_rollouts(self.store))

    async def _repair_periodically(self) -> None:
        """Repairs the fleet rows periodically, not at the start, when all nodes poll."""
        await asyncio.sleep(REPAIR_SECONDS)
        await run_periodically("fleet", self._repair_fleet, REPAIR_SECONDS)

    async def _repair_fleet(self) -> None:
        if repaired := await self.store.repair_fleet():
            log.info("Rebuilt %d fleet rows that differed from their nodes.", repaired)

    async def _sweep(self) -> None:
        """Removes expired config URLs, sessions and old audit events. Cluster controllers remove expired tokens."""
        now = time.time()
        if gone := await self.delivery.sweep(now):
            log.info("Removed %d expired config URLs.", gone)
        await self.join_tracker.refused_fetches.flush(self.store, now)
        await self.enroller.refusals.flush(self.store, now)
        if self.dashboard:
            await self.dashboard.sessions.sweep()
            await self.dashboard.sign_in_page.failures.flush(self.store, now)
        await self.store.forget_audit(now - self.settings.audit_days * 86400)


def _certificates(settings: ServiceSettings) -> CertificateSource:
    if settings.tls.certificate_file and settings.tls.key_file:
        return CertificateFiles(settings.tls.certificate_file, settings.tls.key_file)
    return private_ca(settings)
