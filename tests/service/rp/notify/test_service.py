"""Tests of the webhooks of a whole service: events of a node and their messages."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.service import open_store
from tests.service.rp.api.bodies import SECRET as CLIENT_SECRET
from tests.service.rp.api.bodies import principal, token
from tests.service.rp.api.fake_clusters import PLANT, FakeClusters, known_clusters
from tests.service.rp.api.processes import ServiceProcess
from tests.service.rp.api.service_harness import PLENTY, Running, running, settings
from tests.service.rp.api.traffic_recorder import Recording
from tests.service.rp.notify.receivers import SECRET, SOON
from tests.service.rp.store.builders import started
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_rp.store.outbox import PendingMessages
    from tests.service.rp.notify.receivers import Receiver
    from tests.service.rp.store.servers import PostgresServer

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "kubeletVersion": "v1.34.4"}


@pytest.fixture
def ca_cert_data(authority: CertificateAuthority) -> str:
    return base64.b64encode(authority.certificate.read_bytes()).decode()


def webhook(receiver: Receiver, secret_file: Path, **more: Any) -> dict[str, Any]:
    return {"url": receiver.url, "secretFile": str(secret_file), **more}


@contextmanager
def service_with(room: Path, ca_cert_data: str, *webhooks: dict[str, Any], **more: Any) -> Iterator[Running]:
    made = settings(room, notifications={"webhooks": list(webhooks)}, limits=PLENTY, **more)
    with running(made, FakeClusters.of(known_clusters(ca_cert_data)), Recording()) as service:
        yield service


@pytest.fixture(params=["sqlite", "postgres"])
def service(
    request: pytest.FixtureRequest, tmp_path: Path, ca_cert_data: str, receiver: Receiver, secret_file: Path
) -> Iterator[Running]:
    database = None
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("server")
        database = server.new_database()
    with service_with(tmp_path / "state", ca_cert_data, webhook(receiver, secret_file), database=database) as service:
        yield service


def conditions(**statuses: str) -> dict[str, Any]:
    return {
        "conditions": [{"type": kind, "status": value, "reason": f"{kind}Reason"} for kind, value in statuses.items()]
    }


def report_event(service: Running, what: str, name: str, *words: Any) -> None:
    """Reports an event as the watch of the cluster does."""
    service.call(getattr(service.tracker, what)(PLANT.key, name, *words))


def test_condition_changes_in_status_reports_are_notified_once(service: Running, receiver: Receiver) -> None:
    service.admin.put("Edge-1", principal())
    service.admin.report("edge-1", conditions(Ready="True", Drifted="False"))
    service.admin.report("edge-1", conditions(Ready="True", Drifted="False"))
    service.admin.report("edge-1", conditions(Ready="False", Drifted="True"))
    first, second, third = receiver.until(3)
    assert [each.what for each in (first, second, third)] == ["ready.changed", "ready.changed", "conditions.changed"]
    assert all(each.is_signed_with(SECRET) for each in receiver.received)
    event = second.event
    assert (event["source"], event["subject"], event["id"]) == (PLANT.key, "Edge-1", second.headers["webhook-id"])
    assert (event["data"]["before"], event["data"]["status"]) == ("True", "False")
    assert event["data"]["reason"] == "ReadyReason"
    assert third.event["data"]["changes"][0]["type"] == "Drifted"


def test_join_failure_success_and_departure_are_notified(service: Running, receiver: Receiver) -> None:
    service.admin.put("edge-1", token(), url=True)
    minted = next(each for each, (node, _) in service.clusters.tokens.items() if node == "edge-1")
    report_event(service, "on_token_failed", "edge-1", minted, "The signer gave up.")
    service.admin.put("edge-1", token(), url=True)
    heartbeat = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
    report_event(service, "on_node_observed", "edge-1", {**READY, "lastHeartbeatTime": heartbeat})
    report_event(service, "on_node_observed", "edge-1", {**READY, "lastHeartbeatTime": heartbeat})
    report_event(service, "on_node_observed", "edge-1", None)
    got = receiver.until(5)
    assert [each.what for each in got] == ["join.failed", "joined", "ready.changed", "left", "ready.changed"]
    assert "The signer gave up." in got[0].event["data"]["cause"]
    assert got[0].event["data"]["remedy"]
    assert (got[4].event["data"]["status"], got[4].event["data"]["reason"]) == ("Unknown", "NodeNotInCluster")


def test_node_deletion_is_notified(service: Running, receiver: Receiver) -> None:
    service.admin.put("edge-1", principal())
    service.admin.delete("edge-1")
    (got,) = receiver.until(1)
    assert got.what == "deleted"
    assert got.event["data"]["by"]


def test_notifications_contain_no_secrets_and_logs_no_webhook_path(
    service: Running, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    receiver.answer = lambda _: 500
    service.admin.put("edge-1", principal())
    service.admin.put("edge-2", token(), url=True)
    minted = {each: pair[1].reveal() for each, pair in service.clusters.tokens.items()}
    service.admin.report("edge-1", conditions(Ready="True"))
    report_event(service, "on_token_failed", "edge-2", next(iter(minted)), "The signer gave up.")
    receiver.until(2)
    everything = b"".join(each.body for each in receiver.received).decode()
    for secret in (CLIENT_SECRET, *minted.values(), *minted):
        assert secret not in everything
    until(lambda: "Cannot deliver messages to" in service.log, "the failure is logged", SOON)
    for log in (service.log, caplog.text):
        assert "secret-path" not in log
        assert base64.b64encode(SECRET).decode() not in log


def test_replicas_notify_event_seen_by_both_once(
    tmp_path: Path, ca_cert_data: str, receiver: Receiver, secret_file: Path, server: PostgresServer
) -> None:
    more = {"database": server.new_database(), "keys_file": tmp_path / "keys"}
    hook = webhook(receiver, secret_file)
    with (
        service_with(tmp_path / "one", ca_cert_data, hook, **more) as one,
        service_with(tmp_path / "other", ca_cert_data, hook, **more) as other,
    ):
        names = [f"edge-{number}" for number in range(10)]
        heartbeat = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 5))
        for name in names:
            one.admin.put(name, token())
        told = [
            asyncio.run_coroutine_threadsafe(
                each.service.join_tracker.on_node_observed(
                    PLANT.key, name, {**READY, "lastHeartbeatTime": heartbeat}
                ),
                each.loop,
            )
            for name in names
            for each in (one, other)
        ]
        for each in told:
            each.result(SOON)
        one.admin.put("last", principal())
        one.admin.report("last", conditions(Ready="True"))
        receiver.until(21)
    heard = [(each.event["subject"], each.what) for each in receiver.received]
    expected = [*((name, what) for name in names for what in ("joined", "ready.changed")), ("last", "ready.changed")]
    assert sorted(heard) == sorted(expected)


def test_unsent_notification_is_sent_after_service_is_killed_and_restarted(
    tmp_path: Path, ca_cert_data: str, receiver: Receiver, secret_file: Path
) -> None:
    hooks = {"webhooks": [webhook(receiver, secret_file)]}
    process = ServiceProcess(tmp_path / "service", ca_cert_data, None, Recording(), notifications=hooks)

    async def pending() -> tuple[PendingMessages, ...]:
        async with started(open_store(process.settings)) as store:
            return await store.pending_messages()

    receiver.answer = lambda _: 503
    with process.running() as admin:
        assert admin.put("edge-1", principal()).status == 201
        assert admin.report("edge-1", conditions(Ready="True")).status == 200
        before = receiver.until(1)[0]
        # A message in delivery at the kill is only retried after 30 seconds.
        until(lambda: any(each.failure for each in asyncio.run(pending())), "a failure is stored", SOON)
    receiver.answer = lambda _: 204
    count = len(receiver.received)
    with process.running() as admin:
        after = receiver.until(count + 1)[-1]
        assert admin.get("edge-1").status == 200
    assert after.headers["webhook-id"] == before.headers["webhook-id"]
    assert json.loads(after.body) == json.loads(before.body)


def test_metrics_contain_fleet_states_and_notification_counts(
    tmp_path: Path, ca_cert_data: str, receiver: Receiver, secret_file: Path
) -> None:
    hook = webhook(receiver, secret_file)
    with service_with(tmp_path / "state", ca_cert_data, hook) as service:
        service.admin.put("edge-1", principal())
        service.admin.put("edge-2", token())
        applied = {"appliedConfigVersion": "1"}
        service.admin.report("edge-1", {**conditions(Ready="True", Drifted="True"), **applied})
        receiver.until(2)
    with service_with(tmp_path / "state", ca_cert_data, hook) as service:  # it counts at start and periodically

        def measured() -> str:
            return service.admin.ask("GET", "/metrics", query={}).text

        until(lambda: 'aks_flex_rp_nodes{state="Created"} 1.0' in measured(), "the nodes are counted", SOON)
        text = measured()
    lines = (
        'nodes{state="Ready"} 1.0',
        'nodes{state="NotReporting"} 0.0',
        "nodes_outdated 1.0",
        "nodes_degraded 1.0",
    )
    for line in (*lines, "store_up 1.0", "notifications_pending 0.0", 'notifications_total{outcome="sent"} 0.0'):
        assert f"aks_flex_rp_{line}" in text
    expiry = text.partition("\naks_flex_rp_certificate_expiry_timestamp_seconds ")[2].split()[0]
    assert float(expiry) > time.time()
