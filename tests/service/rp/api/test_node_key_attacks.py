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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.node_keys import AUDIENCE_HEADER
from aks_flex_rp.counted_events import WINDOW_SECONDS
from aks_flex_rp.delivery.config_url import bundle_seal_context, delivery_id
from tests.node_key_client import HeldKey
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal, token
from tests.service.rp.api.client import API_VERSION
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.test_node_keys import AUDIENCE, ONE, TWO, NodeWithKey, rotate, rotation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.delivery.config_url import FetchedBundle
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant


@pytest.fixture
def node(service: Running, name: str) -> NodeWithKey:
    return NodeWithKey(service, name)


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


def revoke(node: NodeWithKey) -> None:
    assert node.admin.ask("POST", node.admin.path(node.name, "revokeKey"), {}).status == 200


def test_rotation_that_began_before_a_revocation_is_refused(node: NodeWithKey) -> None:
    machine, new = node.joined(), HeldKey()
    late = SlowRequest(machine.api(), node.name, "rotateKey", rotation(node.name, new, machine.key))
    revoke(node)
    assert late.finish() == 403
    assert node.status["nodeKey"]["state"] == "Revoked"
    machine.key = new
    assert machine.get().status == 401


def test_new_url_requested_before_a_revocation_is_refused(node: NodeWithKey) -> None:
    machine = node.joined()
    late = SlowRequest(machine.api(), node.name, "regenerateToken", {"replaceMachine": False})
    revoke(node)
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
    owner, thief = node.machine(), node.machine(TWO)
    statuses: dict[str, int] = {}

    def fetch() -> None:
        statuses["thief"] = thief.fetch(node.url).status

    go.set()
    assert owner.fetch(node.url).status == 200
    waits.clear()
    go.clear()
    thread = threading.Thread(target=fetch)
    thread.start()
    assert waits.wait(20)
    url = ""
    if what == "revocation":
        revoke(node)
    else:
        url = node.regenerate(replaceMachine=True)
    go.set()
    thread.join(20)

    assert (statuses["thief"], thief.get().status) == (404, 401)
    if url:
        assert owner.fetch(url).status == 200


def test_url_of_an_earlier_attempt_binds_no_key(service: Running, node: NodeWithKey) -> None:
    """Someone with access to the database puts a retired URL back, which is in their hands."""
    store, secret = service.service.store, node.url.partition("#")[0].rpartition("/")[2]
    sealed = service.call(store.fetch_delivery(delivery_id(secret), 0.0))
    assert sealed
    node.joined()
    revoke(node)
    service.call(store.put_delivery(sealed))
    thief = node.machine(TWO)
    assert (thief.fetch(node.url).status, thief.get().status) == (404, 401)


def test_recorded_assertion_replaces_no_key(node: NodeWithKey) -> None:
    """A gateway that ends TLS records an assertion, which is valid for minutes."""
    machine, thief = node.joined(), HeldKey()
    recorded = machine.api()
    assert rotate(recorded, node.name, thief).status == 400
    assert rotate(recorded, node.name, thief, thief).status == 400
    used = machine.key.proof("something else")
    body = {**rotation(node.name, thief), "consent": used}
    assert recorded.ask("POST", recorded.path(node.name, "rotateKey"), body).status == 400
    assert machine.get().status == 200


def test_identity_of_a_revoked_machine_stays_barred_after_a_rejoin(
    service: Running, tenant: Tenant, name: str
) -> None:
    node = NodeWithKey(service, name, principal())
    assert node.machine().fetch(node.url).status == 200
    azure = node.admin.as_somebody(tenant.application(callers.NODE))
    assert azure.get(name).status == 200
    node.observe(ONE)
    revoke(node)
    good = node.machine(TWO)
    assert good.fetch(node.regenerate(replaceMachine=True)).status == 200
    assert good.get().status == 200

    stolen = HeldKey()
    answers = [azure.credentials(name), rotate(azure, name, stolen), azure.regenerate(name)]

    assert [(each.status, each.error["code"]) for each in answers] == [(403, "NodeKeyRevoked")] * 3
    assert azure.report(name, {"joinState": "ConfigFetched"}).status == 200, "a join by identity is announced with it"
    assert good.get().status == 200


def test_key_revoked_before_the_deletion_learns_the_deletion(node: NodeWithKey) -> None:
    machine = node.joined()
    revoke(node)
    assert node.admin.delete(node.name).status == 200
    assert (machine.get().status, machine.api().report(node.name, {}).status) == (404, 404)


def test_earlier_key_of_a_revoked_machine_binds_nothing(node: NodeWithKey) -> None:
    machine, new = node.joined(), HeldKey()
    assert rotate(machine.api(), node.name, new, machine.key).status == 200
    earlier, machine.key = machine.key, new
    assert machine.get().status == 200
    revoke(node)
    machine.key = earlier
    assert machine.fetch(node.regenerate()).error["code"] == "NodeKeyRevoked"


@pytest.mark.parametrize("body", [token(), principal()], ids=["token", "identity"])
def test_second_client_with_the_id_of_the_first_binds_no_key(
    service: Running, name: str, body: dict[str, Any]
) -> None:
    """An earlier agent, without a key, was first. A thief may know the ID of its machine, which is no secret."""
    node = NodeWithKey(service, name, body)
    assert node.machine(ONE).fetch(node.url, proof="").status == 200
    thief = node.machine(ONE)

    answer = thief.fetch(node.url)

    assert answer.status == 200, "the agent of the machine may have been updated after a failed join"
    assert AUDIENCE_HEADER.lower() not in answer.headers
    assert (thief.get().status, "nodeKey" in node.status) == (401, False)
    [event] = node.events("configUrl.reused")
    assert (event["detail"]["key"], event["detail"]["first"]["key"]) == (thief.key.thumbprint, "")
    alarm = next(each for each in node.status["conditions"] if each["type"] == "ConfigUrlReused")
    assert alarm["reason"] == "KeyNotBound"
    assert thief.key.thumbprint[:12] in alarm["message"]
    assert node.machine(TWO).fetch(node.url).status == 409


def test_updated_agent_of_a_joined_node_is_told_the_way_to_its_key(service: Running, name: str) -> None:
    node = NodeWithKey(service, name, token())
    assert node.machine(ONE).fetch(node.url, proof="").status == 200
    node.observe(ONE)
    url, updated = node.regenerate(), node.machine(ONE)
    assert node.machine(ONE).fetch(url, proof="").status == 200

    refused = updated.fetch(url)

    assert (refused.status, refused.error["code"]) == (409, "ConfigUrlTaken")
    assert f"`aks-flex-rp node join-command --name {name}`" in refused.error["message"]
    assert node.events("configUrl.reused")[0]["outcome"] == "denied"
    fetched = updated.fetch(node.regenerate())  # as the message says
    assert (fetched.status, fetched.headers[AUDIENCE_HEADER.lower()]) == (200, AUDIENCE)
    assert node.status["nodeKey"]["thumbprint"] == updated.key.thumbprint


def test_refused_fetches_do_not_fill_the_audit_log(node: NodeWithKey) -> None:
    """Someone with the URL of a node that lives on another machine fetches it again and again."""
    node.joined()
    url, thief = node.regenerate(), node.machine(TWO)
    assert [thief.fetch(url).status for _ in range(20)] == [409] * 20
    [event] = node.events("machine.refused")
    assert (event["source"], event["detail"]["machine"]["id"]) == ("127.0.0.1", TWO.id)

    later = time.time() + WINDOW_SECONDS
    tracker = node.service.service.join_tracker
    node.service.call(tracker.refused_fetches.flush(node.service.service.store, later))

    counted, first = node.events("machine.refused")
    assert (first, counted["detail"]["failures"], counted["outcome"]) == (event, 19, "denied")


def test_node_of_an_earlier_agent_is_cut_off_with_its_identity(service: Running, tenant: Tenant, name: str) -> None:
    """The machine was stolen. Its agent is of an earlier release, and has an Azure identity and no key."""
    node = NodeWithKey(service, name, principal())
    assert node.machine().fetch(node.url, proof="").status == 200
    azure = node.admin.as_somebody(tenant.application(callers.NODE))
    etag = azure.get(name).headers["etag"]
    assert azure.get(name, if_none_match=etag).status == 304

    answer = node.admin.ask("POST", node.admin.path(name, "revokeKey"), {})

    assert (answer.status, "thumbprint" in answer.json) == (200, False)
    assert answer.json["identity"].startswith(callers.NODE)
    stolen = HeldKey()
    refused = [
        azure.get(name),
        azure.get(name, if_none_match=etag),
        azure.report(name, {}),
        azure.credentials(name),
        azure.regenerate(name),
        rotate(azure, name, stolen),
    ]
    assert [(each.status, each.error["code"]) for each in refused] == [(403, "NodeKeyRevoked")] * 6
    assert node.machine().fetch(node.url, proof="").status == 404
    assert any(each["type"] == "NodeKeyRevoked" for each in node.status["conditions"])
    told = node.machine().fetch(node.regenerate(), proof="")
    assert "Update the agent on this machine" in told.error["message"]
    updated = node.machine()
    assert updated.fetch(node.regenerate()).status == 200
    assert (updated.get().status, node.status["nodeKey"]["state"]) == (200, "Bound")
    assert azure.credentials(name).error["code"] == "NodeKeyRevoked", "the stolen identity stays barred"


@pytest.mark.parametrize("column", ["expires", "node"])
def test_changed_row_of_a_config_url_is_refused(service: Running, node: NodeWithKey, name: str, column: str) -> None:
    """A database administrator makes a URL valid for longer, or gives it to another node."""
    store: Any = service.service.store
    other, owner = NodeWithKey(service, f"{name}-other"), node.machine()
    assert owner.fetch(node.url).status == 200
    if column == "expires":
        service.call(store._write_many("UPDATE deliveries SET expires = expires + 86400 WHERE node = $1", [(name,)]))
    else:
        service.call(store.revoke_deliveries(PLANT.key, other.name))
        move = "UPDATE deliveries SET node = $2 WHERE node = $1"
        service.call(store._write_many(move, [(name, other.name)]))
    assert [owner.fetch(node.url).status for _ in range(3)] == [404] * 3
    shown = node if column == "expires" else other
    assert [each["outcome"] for each in shown.events("record.refused")] == ["denied"]


@pytest.mark.parametrize("changed", [False, True])
def test_url_of_an_earlier_release_works_until_its_own_expiry(
    service: Running, node: NodeWithKey, name: str, changed: bool
) -> None:
    secret = node.url.partition("#")[0].rpartition("/")[2]
    context, owner = service.service.context, node.machine()
    found = service.call(context.store.fetch_delivery(delivery_id(secret), 0.0))
    assert found
    opened = context.sealer.open(found.bundle, bundle_seal_context(found.id, PLANT.key, name, found.expires))
    sealed = context.sealer.seal(opened, f"delivery {found.id} of {PLANT.key}/{name}")
    expires = found.expires + (86400 if changed else 0)
    service.call(context.store.put_delivery(replace(found, bundle=sealed, expires=expires)))
    assert owner.fetch(node.url).status == (404 if changed else 200)
