"""Attacks on node keys that use time: requests that begin before a revocation and end after it, recorded assertions,
URLs of earlier attempts, and the Azure identity of a machine that was cut off.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.counted_events import WINDOW_SECONDS
from aks_flex_rp.delivery.config_url import delivery_id
from tests.node_key_client import HeldKey
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.client import API_VERSION, secret_of
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.keyed_nodes import TWO, NodeWithKey, rotate, rotation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.delivery.config_url import FetchedBundle
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant


class SlowRequest:
    """A request whose headers are sent, and whose body is withheld."""

    def __init__(self, api: Api, name: str, action: str, body: dict[str, Any]) -> None:
        host, _, port = api.connection.url.removeprefix("https://").partition(":")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.body = json.dumps(body).encode()
        self.socket = context.wrap_socket(socket.create_connection((host, int(port)), timeout=20))
        head = (
            f"POST {api.path(name, action)}?api-version={API_VERSION} HTTP/1.1",
            f"Host: {host}:{port}",
            f"Authorization: {api.authorization}",
            "Content-Type: application/json",
            f"Content-Length: {len(self.body)}",
            "Expect: 100-continue",
            "Connection: close",
        )
        self.socket.sendall(("\r\n".join(head) + "\r\n\r\n").encode())
        assert b"100 Continue" in self.socket.recv(4096)  # the service has authorized the caller, and reads the body

    def finish(self) -> int:
        """Sends the body and returns the status of the response."""
        with self.socket:
            self.socket.sendall(self.body)
            return int(self.socket.recv(4096).split()[1])


def test_rotation_that_began_before_a_revocation_is_refused(node: NodeWithKey) -> None:
    machine, new = node.joined(), HeldKey()
    late = SlowRequest(machine.api(), node.name, "rotateKey", rotation(node.name, new, machine.key))
    node.revoke()
    assert late.finish() == 403
    assert node.status["nodeKey"]["state"] == "Revoked"
    machine.key = new
    assert machine.get().status == 401


def test_new_url_requested_before_a_revocation_is_refused(node: NodeWithKey) -> None:
    machine = node.joined()
    late = SlowRequest(machine.api(), node.name, "regenerateToken", {"replaceMachine": False})
    node.revoke()
    assert late.finish() == 403
    assert node.status["nodeKey"]["state"] == "Revoked"


@pytest.fixture
def held_fetches(service: Running) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Holds fetches between the look-up of the URL and the binding: an event when one waits, and one to go on."""
    bundles, waits, go = service.service._bundles, threading.Event(), threading.Event()
    look_up = bundles.fetch

    async def fetch(path_secret: str, now: float) -> FetchedBundle | None:
        found = await look_up(path_secret, now)
        waits.set()
        while not go.is_set():
            await asyncio.sleep(0.01)
        return found

    bundles.fetch = fetch  # type: ignore[method-assign]
    try:
        yield waits, go
    finally:
        go.set()
        bundles.fetch = look_up  # type: ignore[method-assign]


@pytest.mark.parametrize("what", ["revocation", "new URL"])
def test_url_that_ends_during_a_fetch_binds_no_key(
    node: NodeWithKey, held_fetches: tuple[threading.Event, threading.Event], what: str
) -> None:
    waits, go = held_fetches
    go.set()
    owner, thief = node.fetched(), node.machine(TWO)
    waits.clear()
    go.clear()
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(thief.fetch(node.url).status))
    thread.start()
    assert waits.wait(20)
    url = ""
    if what == "revocation":
        node.revoke()
    else:
        url = node.regenerate(replace=True)
    go.set()
    thread.join(20)

    assert (statuses, thief.get().status) == ([404], 401)
    if url:
        assert owner.fetch(url).status == 200


def test_url_of_an_earlier_attempt_binds_no_key(service: Running, node: NodeWithKey) -> None:
    """Someone with access to the database puts a retired URL back, which is in their hands."""
    store, secret = service.store, secret_of(node.url)
    sealed = service.call(store.fetch_delivery(delivery_id(secret), 0.0))
    assert sealed
    node.joined()
    node.revoke()
    service.call(store.put_delivery(sealed))
    thief = node.machine(TWO)
    assert (thief.fetch(node.url).status, thief.get().status) == (404, 401)


def test_recorded_assertion_replaces_no_key(node: NodeWithKey) -> None:
    """A gateway that ends TLS records an assertion, which is valid for minutes."""
    machine, thief = node.joined(), HeldKey()
    recorded = machine.api()
    assert rotate(recorded, node.name, thief).status == 400
    assert rotate(recorded, node.name, thief, thief).status == 400
    body = {**rotation(node.name, thief), "consent": machine.key.proof("something else")}
    assert recorded.act(node.name, "rotateKey", **body).status == 400
    assert machine.get().status == 200


def test_identity_of_a_revoked_machine_stays_barred_after_a_rejoin(
    service: Running, tenant: Tenant, name: str
) -> None:
    node = NodeWithKey(service, name, principal())
    node.joined()
    azure = node.admin.by(tenant, callers.NODE)
    assert azure.get(name).status == 200
    node.revoke()
    good = node.machine(TWO)
    assert good.fetch(node.regenerate(replace=True)).status == 200
    assert good.get().status == 200

    stolen = HeldKey()
    for answer in (azure.credentials(name), rotate(azure, name, stolen), azure.regenerate(name)):
        answer.assert_refused(403, "NodeKeyRevoked")
    assert azure.report(name, {"joinState": "ConfigFetched"}).status == 200, "a join by identity is announced with it"
    assert good.get().status == 200


def test_earlier_key_of_a_revoked_machine_binds_nothing(node: NodeWithKey) -> None:
    machine, new = node.joined(), HeldKey()
    assert machine.rotate(new).status == 200
    earlier, machine.key = machine.key, new
    assert machine.get().status == 200
    node.revoke()
    machine.key = earlier
    machine.fetch(node.regenerate()).assert_refused(409, "NodeKeyRevoked")


def test_refused_fetches_do_not_fill_the_audit_log(node: NodeWithKey) -> None:
    """Someone with the URL of a node that lives on another machine fetches it again and again."""
    node.joined()
    url, thief = node.regenerate(), node.machine(TWO)
    assert [thief.fetch(url).status for _ in range(20)] == [409] * 20
    [event] = node.events("machine.refused")
    assert (event["source"], event["detail"]["machine"]["id"]) == ("127.0.0.1", TWO.id)

    later = time.time() + WINDOW_SECONDS
    tracker = node.service.tracker
    node.service.call(tracker.refused_fetches.flush(node.service.store, later))

    counted, first = node.events("machine.refused")
    assert (first, counted["detail"]["failures"], counted["outcome"]) == (event, 19, "denied")


def test_machine_is_cut_off_by_its_identity_before_it_has_a_key(service: Running, tenant: Tenant, name: str) -> None:
    """The machine was stolen. It has its configuration from a file, an Azure identity, and no key yet."""
    node = NodeWithKey(service, name, principal())
    azure = node.admin.by(tenant, callers.NODE)
    etag = azure.get(name).headers["etag"]
    assert azure.get(name, if_none_match=etag).status == 304

    answer = node.revoke()

    assert "thumbprint" not in answer.json
    assert answer.json["identity"].startswith(callers.NODE)
    for refused in (
        azure.get(name),
        azure.get(name, if_none_match=etag),
        azure.report(name, {}),
        azure.credentials(name),
        azure.regenerate(name),
        rotate(azure, name, HeldKey()),
    ):
        refused.assert_refused(403, "NodeKeyRevoked")
    assert node.machine().fetch(node.url).status == 404
    assert node.condition("NodeKeyRevoked")
    joined = node.machine()
    assert joined.fetch(node.regenerate()).status == 200
    assert (joined.get().status, node.status["nodeKey"]["state"]) == (200, "Bound")
    azure.credentials(name).assert_refused(403, "NodeKeyRevoked")  # the stolen identity stays barred


@pytest.mark.parametrize("column", ["expires", "node"])
def test_changed_row_of_a_config_url_is_refused(service: Running, node: NodeWithKey, name: str, column: str) -> None:
    """A database administrator makes a URL valid for longer, or gives it to another node."""
    store: Any = service.store
    other, owner = NodeWithKey(service, f"{name}-other"), node.fetched()
    if column == "expires":
        service.call(store._write_many("UPDATE deliveries SET expires = expires + 86400 WHERE node = $1", [(name,)]))
    else:
        service.call(store.revoke_deliveries(PLANT.key, other.name))
        move = "UPDATE deliveries SET node = $2 WHERE node = $1"
        service.call(store._write_many(move, [(name, other.name)]))
    assert [owner.fetch(node.url).status for _ in range(3)] == [404] * 3
    shown = node if column == "expires" else other
    assert [each["outcome"] for each in shown.events("record.refused")] == ["denied"]
