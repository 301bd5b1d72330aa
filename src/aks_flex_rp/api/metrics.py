"""Prometheus metrics of the service. Node and caller names are not labels: there are too many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from aks_flex_rp.store.fleet import FleetState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aks_flex_rp.store.fleet import FleetCount
    from aks_flex_rp.store.outbox import PendingMessages

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self.requests = Counter(
            "aks_flex_rp_requests", "Requests answered.", ("operation", "status"), registry=registry
        )
        self.seconds = Histogram(
            "aks_flex_rp_request_seconds",
            "How long a request took; of a held poll, without the time it was held.",
            ("operation",),
            buckets=SECONDS,
            registry=registry,
        )
        self.joins = self._outcomes("joins", "How attempts to join ended.", "issued", "joined", "failed", "refused")
        self.tokens = Counter(
            "aks_flex_rp_tokens", "Bootstrap tokens made and revoked.", ("event",), registry=registry
        )
        self.bundles = self._outcomes(
            "config_bundles", "Attempts to fetch a configuration bundle.", "fetched", "refused"
        )
        self.store_up = Gauge("aks_flex_rp_store_up", "Whether the store answers.", registry=registry)
        self.certificate = Gauge(
            "aks_flex_rp_certificate_expiry_timestamp_seconds",
            "When the certificate that the service shows expires.",
            registry=registry,
        )
        outcomes = ("sent", "failed", "refused", "gone", "dropped", "expired")
        self.notifications = self._outcomes("notifications", "How tries to send a notification ended.", *outcomes)
        self._pending = Gauge(
            "aks_flex_rp_notifications_pending", "Notifications that wait to be sent.", registry=registry
        )
        self._nodes = Gauge("aks_flex_rp_nodes", "Nodes, by how they are.", ("state",), registry=registry)
        self._behind = Gauge(
            "aks_flex_rp_nodes_outdated", "Nodes that have not applied their latest configuration.", registry=registry
        )
        self._troubled = Gauge(
            "aks_flex_rp_nodes_degraded", "Nodes that report a problem, Ready or not.", registry=registry
        )
        self.poll_not_modified = self.requests.labels("poll", "304")  # by far the most frequent, so it is found once
        self.poll_seconds = self.seconds.labels("poll")

    def _outcomes(self, name: str, help_text: str, *outcomes: str) -> Counter:
        """All outcomes are there from the start: of one that appears when it is 1, Prometheus sees no increase."""
        counter = Counter(f"aks_flex_rp_{name}", help_text, ("outcome",), registry=self._registry)
        for outcome in outcomes:
            counter.labels(outcome)
        return counter

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when somebody asks."""
        Gauge(f"aks_flex_rp_{name}", help_text, registry=self._registry).set_function(read)

    def set_fleet(self, counts: Iterable[FleetCount], pending: Iterable[PendingMessages]) -> None:
        """All states every time: one that no node is in any more is 0, and does not stay as it was."""
        found = tuple(counts)
        for state in FleetState:
            self._nodes.labels(state).set(sum(each.nodes for each in found if each.state is state))
        self._behind.set(sum(each.nodes for each in found if each.behind))
        self._troubled.set(sum(each.nodes for each in found if each.trouble))
        self._pending.set(sum(each.messages for each in pending))

    def text(self) -> bytes:
        return generate_latest(self._registry)
