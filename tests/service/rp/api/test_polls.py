"""Tests of a node's poll: immediate response, or a response after a change."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from aks_flex_node.agent.provider.poll_result import ProviderState, classify
from aks_flex_rp import server
from aks_flex_rp.api.poll_cache import PollCache
from aks_flex_rp.store.changes import Resync
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import client_of, principal
from tests.service.rp.api.fake_clusters import PLANT
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running, RunService
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer

SOON = 40.0  # an upper limit for what takes milliseconds
LONG = "wait=50"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def node(service: Running, tenant: Tenant, name: str) -> Api:
    """Returns a client with the identity of a monitored node."""
    service.admin.put(name, principal())
    return service.admin.by(tenant, callers.NODE)


def held(service: Running, count: int = 1) -> None:
    """Waits until this many polls are waiting."""
    until(lambda: service.service.poll_cache.held_polls >= count, f"{count} polls are held", SOON)


def poll(pool: ThreadPoolExecutor, api: Api, name: str, prefer: str = LONG) -> Future[Answer]:
    etag = api.get(name).headers["etag"]
    return pool.submit(lambda: api.get(name, if_none_match=etag, prefer=prefer))


def test_poll_without_wait_preference_returns_304_immediately(node: Api, name: str) -> None:
    etag = node.get(name).headers["etag"]

    for prefer in ({}, {"prefer": "wait=0"}, {"prefer": "respond-async"}):
        answer = node.get(name, if_none_match=etag, **prefer)
        assert (answer.status, answer.content, answer.headers["etag"]) == (304, b"", etag)
        assert answer.headers["x-ms-request-id"]


def test_poll_of_refused_record_gets_its_error(service: Running, tenant: Tenant, name: str) -> None:
    """Attack: someone changes the row of a node in the database. Each poll ended with a stack trace in the log."""
    etag = service.admin.put(name, principal(client_of(name))).headers["etag"]
    store: Any = service.store
    service.call(store._write_many("UPDATE nodes SET config = '{}' WHERE key = $1", [(name.lower(),)]))
    node, before = service.admin.by(tenant, client_of(name)), len(service.log)

    for prefer in ({}, {"prefer": LONG}):
        answer = node.get(name, if_none_match=etag, **prefer)
        answer.assert_refused(500, "InternalServerError")
        assert [each["code"] for each in answer.error["details"]] == ["record-refused"]
    logged = service.log[before:]
    assert "record-refused: " in logged
    assert "Traceback" not in logged
    service.call(store.delete_node(PLANT.key, name.lower(), None))


def test_poll_with_old_etag_returns_node_immediately(node: Api, name: str) -> None:
    answer = node.get(name, if_none_match='"1"', prefer=LONG)

    assert answer.status == 200
    assert answer.properties["config"]["node"]["name"] == name


def test_held_poll_returns_304_when_wait_expires(
    service: Running, node: Api, name: str, pool: ThreadPoolExecutor
) -> None:
    waiting = poll(pool, node, name, "wait=1")

    held(service)

    assert waiting.result(SOON).status == 304


def test_all_held_polls_return_new_config_after_write(
    service: Running, node: Api, name: str, pool: ThreadPoolExecutor
) -> None:
    waiting = [poll(pool, node, name) for _ in range(8)]
    held(service, 8)

    written = service.admin.put(name, principal(nodeConfig={"maxPods": 9}))

    for answer in [each.result(SOON) for each in waiting]:
        assert (answer.status, answer.headers["etag"]) == (200, written.headers["etag"])
        assert answer.properties["config"]["node"]["maxPods"] == 9
    assert service.service.poll_cache.held_polls == 0


def test_held_poll_returns_404_after_deletion(
    service: Running, node: Api, name: str, pool: ThreadPoolExecutor
) -> None:
    waiting = poll(pool, node, name)
    held(service)

    service.admin.delete(name)

    waiting.result(SOON).assert_refused(404, "ResourceNotFound")


def test_held_poll_ignores_status_reports(service: Running, node: Api, name: str, pool: ThreadPoolExecutor) -> None:
    waiting = poll(pool, node, name)
    held(service)

    for status in ("True", "False", "Unknown"):
        node.report(name, {"conditions": [{"type": "Ready", "status": status}]})
    node.report(name, {"joinState": "Failed", "joinFailure": "Alas."})
    assert not waiting.done()
    written = service.admin.put(name, principal())

    assert waiting.result(SOON).headers["etag"] == written.headers["etag"]


def test_held_poll_ignores_writes_to_other_nodes(
    service: Running, node: Api, name: str, pool: ThreadPoolExecutor
) -> None:
    waiting = poll(pool, node, name)
    held(service)

    service.admin.put(f"{name}-other", principal(callers.OTHER_NODE))
    service.admin.delete(f"{name}-other")

    assert not waiting.done()
    assert service.service.poll_cache.held_polls == 1
    service.admin.put(name, principal())
    assert waiting.result(SOON).status == 200


def test_held_poll_is_released_when_client_disconnects(service: Running, node: Api, name: str) -> None:
    etag = node.get(name).headers["etag"]
    threading.Thread(target=_give_up, args=(node, name, etag)).start()
    held(service)

    service.admin.put(name, principal())
    until(lambda: not service.service.poll_cache.held_polls, "no poll is held", SOON)


def _give_up(api: Api, name: str, etag: str) -> None:
    headers = {"Authorization": api.authorization, "If-None-Match": etag, "Prefer": LONG}
    url = f"{api.connection.url}{api.path(name)}?api-version=2026-05-01-preview"
    with suppress(urllib3.exceptions.TimeoutError):
        api.connection.pool.request("GET", url, headers=headers, timeout=0.5)


def delete_row(service: Running, name: str) -> None:
    """Deletes the row of a node in the database, as the service never does."""
    store = service.store
    service.call(store._write_many("DELETE FROM nodes WHERE key = $1", [(name,)]))


def test_node_whose_row_was_deleted_is_not_told_to_leave(service: Running, node: Api, name: str) -> None:
    """Attack: a database administrator deletes rows, so that managed nodes remove themselves from the cluster."""
    for _ in range(2):  # the service remembers the node
        assert node.get(name).status == 200
    delete_row(service, name)

    for guard in ({}, {"if_none_match": '"1"'}):
        refused = node.get(name, **guard)
        refused.assert_refused(404, "NodeNotKnown")
        assert classify(refused.status, {}, refused.content).state is ProviderState.NODE_NOT_KNOWN
    service.admin.get(name).assert_refused(404, "ResourceNotFound")
    store = service.store
    service.call(store.repair_fleet())
    [event] = service.call(store.audit(resource=f"{service.admin.cluster.node(name)}", what="record.refused"))
    assert event.detail == {"reason": "its row was deleted"}

    service.admin.put(name, principal())
    assert node.get(name).status == 200, "the node is managed again"


def test_node_with_invalid_deletion_mark_is_not_told_to_leave(service: Running, node: Api, name: str) -> None:
    """Attack: a database administrator hides living nodes from SQL, so that they remove themselves."""
    assert node.get(name).status == 200
    store = service.store
    service.call(store._write_many("UPDATE nodes SET gone = 2 WHERE key = $1", [(name,)]))

    async def resynchronize() -> None:
        store._changes.publish([Resync()])

    service.call(resynchronize())
    for guard in ({}, {"if_none_match": '"1"'}):
        refused = node.get(name, **guard)
        assert classify(refused.status, {}, refused.content).state is ProviderState.FAILING
    [event] = service.call(store.audit(resource=f"{service.admin.cluster.node(name)}", what="record.refused"))
    assert event.detail == {"reason": "its mark of a deletion (gone) is neither 0 nor 1"}
    service.call(store._write_many("UPDATE nodes SET gone = 0 WHERE key = $1", [(name,)]))
    assert node.get(name).status == 200, "the node is managed again"


def test_reader_identity_of_a_missing_node_is_not_told_to_leave(service: Running, tenant: Tenant, name: str) -> None:
    """The identity of the node also has a role, so that the service answers it without the row."""
    reader = service.admin.by(tenant, callers.READER)
    reader.get(name).assert_refused(404, "NodeNotKnown")
    service.admin.put(name, principal())
    service.admin.delete(name)
    reader.get(name).assert_refused(404, "ResourceNotFound")


@pytest.mark.parametrize("action", ["regenerate", "report", "credentials"])
def test_no_action_of_a_missing_node_tells_it_to_leave(
    service: Running, tenant: Tenant, name: str, action: str
) -> None:
    """Attack: the row of a node is deleted. An agent could take ResourceNotFound for a deletion."""
    owner = service.admin.by(tenant, callers.OWNER)
    more: tuple[object, ...] = ({},) if action == "report" else ()
    ask = getattr(owner, action)
    ask(name, *more).assert_refused(404, "NodeNotKnown")
    service.admin.put(name, principal())
    service.admin.delete(name)
    ask(name, *more).assert_refused(404, "ResourceNotFound")


def test_only_identity_of_deleted_node_gets_404_on_poll(
    service: Running, node: Api, tenant: Tenant, name: str
) -> None:
    etag = node.get(name).headers["etag"]
    service.admin.delete(name)
    other = node.by(tenant, callers.OTHER_NODE)

    for guard in ({}, {"if_none_match": etag}, {"if_none_match": etag, "prefer": LONG}):
        node.get(name, **guard).assert_refused(404, "ResourceNotFound")
        other.get(name, **guard).assert_refused(403, "AuthorizationFailed")
        node.get(f"{name}-never", **guard).assert_refused(403, "AuthorizationFailed")


def test_node_with_replaced_identity_polls_with_new_identity_only(
    service: Running, node: Api, tenant: Tenant, name: str
) -> None:
    etag = service.admin.put(name, principal(callers.OTHER_NODE)).headers["etag"]
    other = node.by(tenant, callers.OTHER_NODE)

    assert other.get(name, if_none_match=etag).status == 304
    assert node.get(name, if_none_match=etag).status == 403


def test_poll_that_a_stopping_service_has_no_time_for_is_told_to_repeat(
    run_service: RunService,
    tenant: Tenant,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 1)
    monkeypatch.setattr(PollCache, "release_waiters", lambda *_: None)
    with run_service() as service:
        service.admin.put("edge", principal())
        waiting = poll(pool, service.admin, "edge")
        held(service)
    answer = waiting.result(SOON)
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"


def test_stopping_service_is_not_ready_and_holds_no_polls(run_service: RunService, tenant: Tenant) -> None:
    with run_service() as service:
        etag = service.admin.put("edge", principal()).headers["etag"]
        service.release()
        answer = service.admin.get("edge", if_none_match=etag, prefer=LONG)
        assert answer.status == 304
        refused = service.admin.ask("GET", "/readyz", query={})
        assert (refused.status, refused.text) == (503, "not ready: stopping\n")
