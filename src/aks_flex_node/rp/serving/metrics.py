"""What the service counts, for Prometheus. Names of nodes and callers are no labels: there are too many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self.joins = Counter("aks_flex_rp_joins", "How attempts to join ended.", ("outcome",), registry=registry)
        self.tokens = Counter(
            "aks_flex_rp_tokens", "Bootstrap tokens made and revoked.", ("event",), registry=registry
        )
        self.bundles = Counter("aks_flex_rp_bundles", "Attempts to fetch a bundle.", ("outcome",), registry=registry)
        self.store_up = Gauge("aks_flex_rp_store_up", "Whether the store answers.", registry=registry)
        self.unchanged = self.requests.labels("poll", "304")  # by far the most frequent, so it is found once
        self.poll_seconds = self.seconds.labels("poll")

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when somebody asks."""
        Gauge(f"aks_flex_rp_{name}", help_text, registry=self._registry).set_function(read)

    def text(self) -> bytes:
        return generate_latest(self._registry)
