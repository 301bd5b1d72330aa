"""Prometheus metrics of the service. Node and caller names are not labels, because their number is unbounded."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from aks_flex_rp import private_files
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.rollouts.states import NodeState, Phase
from aks_flex_rp.store.fleet import FleetState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from aks_flex_rp.rollouts.view import RolloutCounts
    from aks_flex_rp.store.fleet import FleetCount
    from aks_flex_rp.store.outbox import PendingMessages

FORBIDDEN_MODE_BITS = 0o037  # mode bits that the token file must not have: a Secret is mounted for a group


@dataclass(frozen=True)
class MetricsAccess:
    """Who may read the metrics: bearers of a token, or without one only clients on the same host."""

    token_file: Path | None

    def check(self, address: str, authorization: str) -> None:
        """Raises ArmError unless the client may read the metrics. The file is read each time, so it can change."""
        if self.token_file is None:
            if not _is_local(address):
                raise ArmError(403, "AuthorizationFailed", REMOTE_SCRAPE)
            return
        token = private_files.read(self.token_file, FORBIDDEN_MODE_BITS).strip()
        scheme, _, sent = authorization.partition(" ")
        is_right = hmac.compare_digest(sent.strip().encode("utf-8", "replace"), token)
        if not token or scheme.lower() != "bearer" or not is_right:
            raise ArmError(401, "AuthenticationFailed", WRONG_TOKEN, headers={"WWW-Authenticate": "Bearer"})


REMOTE_SCRAPE = (
    "The metrics are only available on the host of the service. To read them from elsewhere, set metricsTokenFile in "
    "the configuration of the service."
)
WRONG_TOKEN = "Send the token of metricsTokenFile in the header Authorization: Bearer TOKEN."  # noqa: S105 - no secret


def _is_local(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


NAMESPACE = "aks_flex_rp"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        counter = partial(Counter, namespace=NAMESPACE, registry=registry)
        gauge = partial(Gauge, namespace=NAMESPACE, registry=registry)
        histogram = partial(Histogram, namespace=NAMESPACE, registry=registry, buckets=SECONDS)
        self.requests = counter("requests", "Requests, by operation and status code.", ("operation", "status"))
        self.seconds = histogram(
            "request_seconds",
            "Duration of requests in seconds, without the time for which a poll was held.",
            ("operation",),
        )
        self.joins = self._outcomes(
            "joins", "Finished join attempts, by outcome.", "issued", "joined", "failed", "refused"
        )
        self.tokens = counter("tokens", "Bootstrap tokens, by event (minted, revoked).", ("event",))
        self.bundles = self._outcomes(
            "config_bundles", "Attempts to fetch a config bundle, by outcome.", "fetched", "refused"
        )
        self.connections = self._outcomes(
            "limited_connections",
            "Connections beyond the bounds, by outcome: an idle one closed, or the new one refused.",
            "closed",
            "refused",
        )
        self.records = self._outcomes(
            "refused_records",
            "Reads of database rows that were changed without the service, or whose key is missing, by outcome.",
            "refused",
            "unverifiable",
        )
        self.rollout_seconds = histogram(
            "rollout_step_seconds",
            "Duration of the steps of all roll-outs in seconds.",
        )
        self._rollouts = gauge("rollouts", "Pools, by the state of their newest roll-out.", ("state",))
        self._rollout_nodes = gauge("rollout_nodes", "Nodes of active roll-outs, by state.", ("state",))
        self._rollout_approvals = gauge("rollout_approvals_pending", "Roll-outs that wait for an approval.")
        self._rollout_progress = gauge(
            "rollout_progress_timestamp_seconds",
            "Time of the last progress of the active roll-out that is idle for longest; 0 without an active one.",
        )
        self._barred_revisions = gauge("barred_revisions", "Revisions of pools that failed and are barred.")
        self.store_up = gauge("store_up", "Whether the store responds (1) or not (0).")
        self.certificate = gauge(
            "certificate_expiry_timestamp_seconds", "Expiry time of the service's TLS certificate."
        )
        outcomes = ("sent", "failed", "refused", "gone", "dropped", "expired")
        self.notifications = self._outcomes(
            "notifications", "Attempts to send a notification, by outcome.", *outcomes
        )
        self._pending = gauge("notifications_pending", "Notifications in the outbox.")
        self._nodes = gauge("nodes", "Nodes, by state.", ("state",))
        self._outdated_nodes = gauge("nodes_outdated", "Nodes that have not applied their latest configuration.")
        self._unhealthy_nodes = gauge("nodes_degraded", "Nodes that report a problem, whether they are Ready or not.")
        self.poll_not_modified = self.requests.labels(
            "poll", "304"
        )  # by far the most frequent label set, so it is looked up once
        self.poll_seconds = self.seconds.labels("poll")

    def _outcomes(self, name: str, help_text: str, *outcomes: str) -> Counter:
        """Creates a counter with all outcomes at 0.

        Prometheus sees no increase in a series that first appears with 1.
        """
        counter = Counter(name, help_text, ("outcome",), NAMESPACE, registry=self._registry)
        for outcome in outcomes:
            counter.labels(outcome)
        return counter

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Registers a gauge whose value is read at each scrape."""
        Gauge(name, help_text, namespace=NAMESPACE, registry=self._registry).set_function(read)

    def set_fleet(self, counts: Iterable[FleetCount], pending: Iterable[PendingMessages]) -> None:
        """Sets the gauges of the fleet. All states are set, so that a state without nodes becomes 0."""
        found = tuple(counts)
        for state in FleetState:
            self._nodes.labels(state).set(sum(each.nodes for each in found if each.state is state))
        self._outdated_nodes.set(sum(each.nodes for each in found if each.behind))
        self._unhealthy_nodes.set(sum(each.nodes for each in found if each.trouble))
        self._pending.set(sum(each.messages for each in pending))

    def set_rollouts(self, counts: RolloutCounts) -> None:
        """Sets the gauges of roll-outs. All states are set, so that a state without any becomes 0."""
        for phase in Phase:
            self._rollouts.labels(phase.value).set(counts.phases.get(phase.value, 0))
        for state in NodeState:
            self._rollout_nodes.labels(state.value).set(counts.nodes.get(state.value, 0))
        self._rollout_approvals.set(counts.approvals)
        self._rollout_progress.set(counts.progress)
        self._barred_revisions.set(counts.barred)

    def text(self) -> bytes:
        return generate_latest(self._registry)
