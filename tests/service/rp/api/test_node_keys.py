"""Node keys over HTTP: binding at the fetch, requests by assertions, and attacks on both."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.machine_identity import MachineIdentity
from aks_flex_node.api.node_keys import AUDIENCE_HEADER, MAX_TOKEN_LENGTH, PROOF_TYPE, encode, url_audience
from tests.node_key_client import HeldKey, with_claims, with_header
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import SECRET, principal, token
from tests.service.rp.api.client import secret_of
from tests.service.rp.api.fake_clusters import NEIGHBOUR, PLANT
from tests.service.rp.api.keyed_nodes import AUDIENCE, MANAGED, ONE, TWO, NodeWithKey, rotate

if TYPE_CHECKING:
    from tests.service.rp.api.keyed_nodes import Machine
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer


def test_node_without_azure_identity_is_managed_by_its_key(node: NodeWithKey) -> None:
    machine = node.machine()

    fetched = machine.fetch(node.url)

    assert (fetched.status, fetched.headers[AUDIENCE_HEADER.lower()]) == (200, AUDIENCE)
    assert fetched.json["config"]["continuousMonitoring"] is True
    assert "servicePrincipal" not in fetched.json["config"]["azure"]
    etag = machine.get().headers["etag"]
    assert machine.get(if_none_match=etag).status == 304
    assert machine.api().report(node.name, {"agentVersion": "1.2.3"}).status == 200
    assert machine.api().credentials(node.name).json["method"] == "none"
    assert machine.api().regenerate(node.name).status == 200
    status = node.status
    assert (status["agentVersion"], status["nodeKey"]["state"]) == ("1.2.3", "Bound")
    assert status["nodeKey"]["thumbprint"] == machine.key.thumbprint
    [event] = node.events("regenerateToken")
    assert event["who"] == f"node {node.name} (key {machine.key.thumbprint[:12]}…)"


def test_same_key_may_fetch_again_until_the_join_is_done(node: NodeWithKey) -> None:
    machine = node.machine()
    assert [machine.fetch(node.url).status for _ in range(3)] == [200, 200, 200]
    assert node.events("configUrl.reused") == []
    assert len(node.events("key.bound")) == 1

    node.observe(ONE)

    assert machine.fetch(node.url).status == 404


@pytest.mark.parametrize("owner_is_first", [True, False])
def test_stolen_url_works_only_for_the_first_key(node: NodeWithKey, owner_is_first: bool) -> None:
    """The second of the two is refused, whoever is first, and the alarm names both."""
    identities = (ONE, TWO) if owner_is_first else (TWO, ONE)
    first, second = node.fetched(identities[0]), node.machine(identities[1])

    refused = second.fetch(node.url)

    refused.assert_refused(409, "ConfigUrlTaken")
    assert first.identity.host_name in refused.error["message"]
    [event] = node.events("configUrl.reused")
    detail = event["detail"]
    assert (event["outcome"], detail["key"]) == ("denied", second.key.thumbprint)
    assert detail["machine"]["hostName"] == second.identity.host_name
    assert detail["first"] == {**detail["first"], "key": first.key.thumbprint, "machine": first.identity.id}
    assert second.key.thumbprint[:12] in node.condition("ConfigUrlReused")["message"]
    assert (second.get().status, first.get().status) == (401, 200)


@pytest.mark.parametrize("stolen", ["machine ID", "key"])
def test_machine_needs_both_its_id_and_its_key(node: NodeWithKey, stolen: str) -> None:
    """A thief may send the ID of the machine, which is no secret, or copy the key to another machine."""
    owner = node.fetched()
    thief = node.machine(ONE if stolen == "machine ID" else TWO)
    if stolen == "key":
        thief.key = owner.key
    thief.fetch(node.url).assert_refused(409, "ConfigUrlTaken")


def test_racing_keys_bind_exactly_one(node: NodeWithKey) -> None:
    machines = [node.machine(MachineIdentity(f"{number:032x}", f"edge-{number}")) for number in range(8)]

    with ThreadPoolExecutor(len(machines)) as threads:
        statuses = list(threads.map(lambda machine: machine.fetch(node.url).status, machines))

    assert sorted(statuses) == [200, *[409] * 7]
    winner = machines[statuses.index(200)]
    assert winner.get().status == 200
    assert node.status["nodeKey"]["thumbprint"] == winner.key.thumbprint


def test_living_node_is_given_to_another_key_only_by_replace(node: NodeWithKey) -> None:
    first = node.joined()
    lost = node.machine()  # the same machine without its key, or a thief with its machine ID

    refused = lost.fetch(node.regenerate())

    refused.assert_refused(409, "ConfigUrlTaken")
    assert f"join-command --name {node.name} --replace" in refused.error["message"]
    assert first.get().status == 200
    assert lost.fetch(node.regenerate(replace=True)).status == 200
    assert first.get().status == 200  # until the new key is used
    assert lost.get().status == 200
    first.get().assert_refused(403, "NodeKeyRevoked")


def test_replaced_machine_learns_that_its_node_has_moved(node: NodeWithKey) -> None:
    first, second = node.joined(), node.machine(TWO)
    assert second.fetch(node.regenerate(replace=True)).status == 200
    assert second.get().status == 200

    first.get().assert_refused(409, "NodeReplaced")
    first.api().report(node.name, {}).assert_refused(403, "NodeKeyRevoked")


@pytest.mark.parametrize("body", [MANAGED, token(), principal()], ids=["managed", "token", "identity"])
def test_fetch_without_a_key_is_refused_and_binds_nothing(service: Running, name: str, body: dict[str, Any]) -> None:
    """Attack: the bearer of a leaked URL reads the bundle without leaving a key."""
    node = NodeWithKey(service, name, body)

    refused = node.machine().fetch(node.url, proof="")

    refused.assert_refused(400, "NodeKeyRequired")
    assert "aks-flex-rp node join-command" in refused.error["message"]
    assert (node.status["joinState"], "nodeKey" in node.status) == ("Created", False)
    owner = node.fetched(TWO)
    assert node.status["nodeKey"]["thumbprint"] == owner.key.thumbprint


def attacks(machine: Machine, other: HeldKey) -> dict[str, str]:
    """Returns assertions that only look like those of the machine."""
    good, jwk = machine.assertion(), machine.key.public.jwk
    resource = PLANT.node(machine.name)
    unsigned = good.rpartition(".")[0]
    shared = with_header(good, alg="HS256").rpartition(".")[0]
    signed = hmac.new(json.dumps(jwk).encode(), shared.encode(), hashlib.sha256).digest()
    of_another = other.assertion(resource, AUDIENCE)
    return {
        "no signature": f"{unsigned}.",
        "algorithm none": with_header(good, alg="none").rpartition(".")[0] + ".",
        "HS256 with the public key": f"{shared}.{encode(signed)}",
        "key of another": of_another,
        "swapped public key": with_header(good, jwk=other.public.jwk),
        "signed by another, shown as this key": with_header(of_another, jwk=jwk),
        "private key in the header": with_header(good, jwk={**jwk, "d": "x"}),
        "key by a URL": with_header(good, jwk=None, jku="https://attacker.example/keys"),
        "other provider": machine.key.assertion(resource, "aks-flex-rp:of-neighbour"),
        "several audiences": with_claims(good, aud=[AUDIENCE, "aks-flex-rp:of-neighbour"]),
        "other node in the claims": with_claims(good, sub=PLANT.node("another").lower()),
        "expired": machine.assertion(begin=time.time() - 1000),
        "not yet valid": machine.assertion(begin=time.time() + 1000),
        "valid for an hour": machine.assertion(seconds=3600),
        "a proof": machine.assertion(kind=PROOF_TYPE),
        "oversize": with_header(good, more="x" * MAX_TOKEN_LENGTH),
    }


def test_assertions_that_are_not_the_nodes_are_refused(node: NodeWithKey) -> None:
    machine = node.fetched()
    etag = machine.get().headers["etag"]
    for what, forged in attacks(machine, HeldKey()).items():
        for headers in ({}, {"if_none_match": etag}):
            assert machine.api(forged).get(node.name, **headers).status == 401, what
    assert machine.get(if_none_match=etag).status == 304


def test_key_acts_as_no_other_node(service: Running, node: NodeWithKey, name: str) -> None:
    machine, other = node.fetched(), NodeWithKey(service, f"{name}-other")
    other.fetched()
    etag = other.admin.get(other.name).headers["etag"]
    api = machine.api()

    refused = [
        api.get(other.name),
        api.get(other.name, if_none_match=etag),
        api.report(other.name, {}),
        api.credentials(other.name),
        api.regenerate(other.name),
        rotate(api, other.name, HeldKey()),
        api.list(),
        api.put(node.name, MANAGED),
        api.delete(node.name),
        api.audit(node.name),
        api.at(NEIGHBOUR).get(node.name),
        api.act(node.name, "revokeKey"),
        api.regenerate(node.name, replaceMachine=True),
    ]

    assert [answer.status for answer in refused] == [403] * len(refused)
    claimed = machine.key.assertion(PLANT.node(other.name), AUDIENCE)
    assert machine.api(claimed).get(other.name).status == 401


def test_proof_of_another_url_or_key_is_refused(service: Running, node: NodeWithKey, name: str) -> None:
    machine, other = node.machine(), NodeWithKey(service, f"{name}-other")
    good, jwk = machine.key.url_proof(node.url), machine.key.public.jwk
    forged = {
        "other URL": machine.key.url_proof(other.url),
        "swapped key": with_header(good, jwk=HeldKey().public.jwk),
        "point that is not on the curve": with_header(good, jwk={**jwk, "x": "A" * 43}),
        "other curve": with_header(good, jwk={**jwk, "crv": "P-384"}),
        "algorithm none": with_header(good, alg="none"),
        "an assertion": machine.assertion(),
        "expired": machine.key.url_proof(node.url, now=time.time() - 1000),
        "oversize": with_header(good, more="x" * MAX_TOKEN_LENGTH),
        "no token": "x",
    }
    for what, proof in forged.items():
        code = "NodeKeyTimeInvalid" if what == "expired" else "InvalidNodeKey"
        machine.fetch(node.url, proof).assert_refused(400, code)
    assert "nodeKey" not in node.status
    assert machine.fetch(node.url).status == 200


def test_key_has_one_thumbprint_whatever_its_encoding(node: NodeWithKey) -> None:
    """The last character of a coordinate has two unused bits, with which a revoked key could come back."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    machine = node.machine()
    jwk = machine.key.public.jwk
    other = jwk["x"][:-1] + letters[letters.index(jwk["x"][-1]) ^ 1]
    claims = {"aud": url_audience(secret_of(node.url))}

    def fetch(x: str) -> Answer:
        header = {"alg": "ES256", "typ": PROOF_TYPE, "jwk": {**jwk, "x": x}}
        return machine.fetch(node.url, machine.key.signed(header, claims))

    fetch(other).assert_refused(400, "InvalidNodeKey")
    assert fetch(jwk["x"]).status == 200


@pytest.mark.parametrize("revoked", [False, True])
def test_key_of_a_deleted_node_learns_the_deletion(node: NodeWithKey, revoked: bool) -> None:
    machine = node.joined()
    etag = machine.get().headers["etag"]
    if revoked:
        node.revoke()

    node.admin.delete(node.name)

    for headers in ({}, {"if_none_match": etag}):
        machine.get(**headers).assert_refused(404, "ResourceNotFound")
    assert machine.api().report(node.name, {}).status == 404
    node.admin.put(node.name, MANAGED)
    assert machine.get().status == 401


def test_revoked_key_is_refused_at_once_and_a_new_join_binds_another(node: NodeWithKey) -> None:
    machine = node.joined()
    etag = machine.get().headers["etag"]
    recorded = machine.api(machine.assertion())
    assert recorded.get(node.name, if_none_match=etag).status == 304
    stolen = machine.api().new_url(node.name)  # a thief has asked for a URL before

    assert node.revoke().json["thumbprint"] == machine.key.thumbprint

    for answer in (machine.get(if_none_match=etag), machine.get(), machine.api().report(node.name, {})):
        answer.assert_refused(403, "NodeKeyRevoked")
        assert f"aks-flex-rp node join-command --name {node.name}" in answer.error["message"]
    guessed = node.admin.get(node.name).headers["etag"]
    recorded.get(node.name, if_none_match=guessed).assert_refused(403, "NodeKeyRevoked")
    assert node.machine().fetch(stolen).status == 404
    assert (node.status["nodeKey"]["state"], node.status["joinState"]) == ("Revoked", "Joined")
    assert node.condition("NodeKeyRevoked")
    assert len(node.events("revokeKey")) == 1
    url = node.regenerate()
    machine.fetch(url).assert_refused(409, "NodeKeyRevoked")
    machine.key = HeldKey()
    assert machine.fetch(url).status == 200
    assert machine.get().status == 200
    assert not node.condition("NodeKeyRevoked")
    assert node.status["nodeKey"]["thumbprint"] == machine.key.thumbprint


def test_revocation_ends_a_held_poll(node: NodeWithKey) -> None:
    machine = node.fetched()
    etag = machine.get().headers["etag"]
    answers: list[Answer] = []
    poll = threading.Thread(target=lambda: answers.append(machine.get(if_none_match=etag, prefer="wait=20")))
    poll.start()
    time.sleep(0.3)

    node.revoke()
    poll.join(5)

    assert [each.status for each in answers] == [403]


def test_revocation_cuts_off_the_azure_identity_of_the_machine(service: Running, tenant: Tenant, name: str) -> None:
    node = NodeWithKey(service, name, principal())
    node.fetched()
    azure = node.admin.by(tenant, callers.NODE)
    etag = azure.get(name).headers["etag"]
    assert azure.get(name, if_none_match=etag).status == 304

    node.revoke()

    for answer in (
        azure.get(name, if_none_match=etag),
        azure.report(name, {}),
        azure.credentials(name),
        rotate(azure, name, HeldKey()),
    ):
        answer.assert_refused(403, "NodeKeyRevoked")


def test_node_without_a_key_has_none_to_revoke(node: NodeWithKey) -> None:
    node.admin.act(node.name, "revokeKey").assert_refused(409, "NodeHasNoKey")


def test_rotation_keeps_the_earlier_key_until_the_new_one_is_used(node: NodeWithKey) -> None:
    machine, new = node.joined(), HeldKey()

    rotated = machine.rotate(new)

    assert (rotated.status, rotated.json["audience"]) == (200, AUDIENCE)
    assert machine.get().status == 200  # the agent stopped before it stored the response
    assert machine.rotate(new).status == 200
    old, machine.key = machine.key, new
    assert machine.get().status == 200
    assert node.status["nodeKey"]["thumbprint"] == new.thumbprint
    machine.key = old
    machine.get().assert_refused(403, "NodeKeyRevoked")
    assert machine.rotate(HeldKey()).status == 403
    assert len(node.events("rotateKey")) == 1


def test_rotation_needs_a_proof_for_this_node(service: Running, node: NodeWithKey, name: str) -> None:
    machine, key = node.joined(), HeldKey()
    foreign = key.proof(PLANT.node(f"{name}-other").lower())
    stolen = with_header(key.proof(PLANT.node(name).lower()), jwk=HeldKey().public.jwk)
    for body in ({"proof": foreign}, {"proof": stolen}, {"proof": 1}, {}, {"proof": foreign, "more": 1}):
        assert machine.api().act(name, "rotateKey", **body).status == 400
    assert node.status["nodeKey"]["thumbprint"] == machine.key.thumbprint


def test_node_with_an_azure_identity_gets_a_key_by_it(service: Running, tenant: Tenant, name: str) -> None:
    """The machine has its configuration from a file, so no fetch has bound its key."""
    node = NodeWithKey(service, name, principal())
    machine = node.machine()
    azure = node.admin.by(tenant, callers.NODE)

    assert rotate(azure, name, machine.key).json["audience"] == AUDIENCE

    assert machine.get().status == 200
    assert machine.api().credentials(name).json["servicePrincipal"]["clientSecret"] == SECRET
    assert azure.get(name).status == 200


def test_node_gets_a_new_token_for_itself_after_months(node: NodeWithKey) -> None:
    """A key does not expire: the node asks for a URL by it, and only this key may fetch the URL."""
    machine = node.joined()

    url = machine.api().new_url(node.name)

    assert node.machine(TWO).fetch(url).status == 409
    fetched = machine.fetch(url)
    assert fetched.status == 200
    assert fetched.json["config"]["azure"]["bootstrapToken"]["token"]
