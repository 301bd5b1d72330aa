"""Node keys over HTTP: binding at the fetch, requests by assertions, and attacks on both."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity
from aks_flex_node.api.node_keys import (
    AUDIENCE_HEADER,
    KEY_HEADER,
    MAX_TOKEN_LENGTH,
    PROOF_TYPE,
    encode,
    rotation_audience,
    url_audience,
)
from aks_flex_rp.clusters.node_controller import NodeMachine
from tests.node_key_client import HeldKey, with_claims, with_header
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import SECRET, principal, token
from tests.service.rp.api.fake_clusters import NEIGHBOUR, PLANT

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer

AUDIENCE = "aks-flex-rp:of-plant"
MANAGED: dict[str, Any] = {"properties": {"continuousMonitoring": True}}
ONE = MachineIdentity("1" * 32, "edge-one", "10.0.0.1", "Ubuntu 22.04")
TWO = MachineIdentity("2" * 32, "edge-two", "10.0.0.2", "Ubuntu 22.04")


class Machine:
    """A machine with a key, as its agent calls the service."""

    def __init__(self, admin: Api, name: str, identity: MachineIdentity = ONE) -> None:
        self.admin, self.name, self.identity, self.key = admin, name, identity, HeldKey()

    def fetch(self, url: str, proof: str | None = None) -> Answer:
        path = url.partition("#")[0].removeprefix(self.admin.connection.url)
        shown = self.key.url_proof(url) if proof is None else proof
        headers = {MACHINE_HEADER: self.identity.to_header(), **({KEY_HEADER: shown} if shown else {})}
        return self.admin.connection.ask("GET", path, headers)

    def assertion(self, **changes: Any) -> str:
        return self.key.assertion(PLANT.node(self.name), AUDIENCE, **changes)

    def api(self, assertion: str | None = None) -> Api:
        return self.admin.as_somebody(f"Bearer {self.assertion() if assertion is None else assertion}")

    def get(self, **headers: str) -> Answer:
        return self.api().get(self.name, **{MACHINE_HEADER: self.identity.to_header(), **headers})


class NodeWithKey:
    def __init__(self, service: Running, name: str, body: dict[str, Any] = MANAGED) -> None:
        self.service, self.name, self.admin = service, name, service.admin
        self.url = self.admin.put(name, body, url=True).properties["configUrl"]

    def machine(self, identity: MachineIdentity = ONE) -> Machine:
        return Machine(self.admin, self.name, identity)

    def joined(self, identity: MachineIdentity = ONE) -> Machine:
        """Returns a machine that has fetched the configuration, and whose Node the cluster reports Ready."""
        machine = self.machine(identity)
        assert machine.fetch(self.url).status == 200
        self.observe(identity)
        return machine

    def observe(self, identity: MachineIdentity) -> None:
        heard = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2100-01-01T00:00:00Z"}
        seen = {**heard, "kubeletVersion": "v1.34.4", "machine": identity}
        self.service.clusters.machines[self.name] = NodeMachine(identity, ready=True)
        self.service.call(self.service.service.join_tracker.on_node_observed(PLANT.key, self.name, seen))

    def regenerate(self, **body: Any) -> str:
        answer = self.admin.ask("POST", self.admin.path(self.name, "regenerateToken"), body)
        return str(answer.json["configUrl"])

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.admin.get(self.name).properties["status"]
        return found

    def events(self, what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.admin.audit(self.name, what=what).json["value"]
        return found


@pytest.fixture
def node(service: Running, name: str) -> NodeWithKey:
    return NodeWithKey(service, name)


def test_node_without_azure_identity_is_managed_by_its_key(node: NodeWithKey) -> None:
    machine = node.machine()

    fetched = machine.fetch(node.url)

    assert (fetched.status, fetched.headers[AUDIENCE_HEADER.lower()]) == (200, AUDIENCE)
    assert fetched.json["config"]["continuousMonitoring"] is True
    assert "servicePrincipal" not in fetched.json["config"]["azure"]
    read = machine.get()
    assert read.status == 200
    etag = read.headers["etag"]
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
    owner, thief = node.machine(ONE), node.machine(TWO)
    first, second = (owner, thief) if owner_is_first else (thief, owner)
    assert first.fetch(node.url).status == 200

    refused = second.fetch(node.url)

    assert (refused.status, refused.error["code"]) == (409, "ConfigUrlTaken")
    assert first.identity.host_name in refused.error["message"]
    [event] = node.events("configUrl.reused")
    detail = event["detail"]
    assert (detail["key"], detail["first"]["key"]) == (second.key.thumbprint, first.key.thumbprint)
    assert (detail["machine"]["hostName"], detail["first"]["machine"]) == (
        second.identity.host_name,
        first.identity.id,
    )
    assert event["outcome"] == "denied"
    alarm = next(each for each in node.status["conditions"] if each["type"] == "ConfigUrlReused")
    assert second.key.thumbprint[:12] in alarm["message"]
    assert second.get().status == 401
    assert first.get().status == 200


def test_same_machine_with_another_key_is_refused(node: NodeWithKey) -> None:
    """A thief may send the ID of the machine, which is no secret, but does not have its key."""
    assert node.machine(ONE).fetch(node.url).status == 200
    assert node.machine(ONE).fetch(node.url).error["code"] == "ConfigUrlTaken"


def test_copied_key_is_refused_on_another_machine(node: NodeWithKey) -> None:
    first, copy = node.machine(ONE), node.machine(TWO)
    copy.key = first.key
    assert first.fetch(node.url).status == 200
    assert copy.fetch(node.url).error["code"] == "ConfigUrlTaken"


def test_racing_keys_bind_exactly_one(node: NodeWithKey) -> None:
    machines = [node.machine(MachineIdentity(f"{number:032x}", f"edge-{number}")) for number in range(8)]
    answers: dict[int, int] = {}

    def fetch(number: int) -> None:
        answers[number] = machines[number].fetch(node.url).status

    threads = [threading.Thread(target=fetch, args=(number,)) for number in range(len(machines))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert sorted(answers.values()) == [200, *[409] * 7]
    winner = machines[next(number for number, status in answers.items() if status == 200)]
    assert winner.get().status == 200
    assert node.status["nodeKey"]["thumbprint"] == winner.key.thumbprint


def test_living_node_is_given_to_another_key_only_by_replace(node: NodeWithKey) -> None:
    first = node.joined(ONE)
    url = node.regenerate()
    lost = node.machine(ONE)  # the same machine without its key, or a thief with its machine ID

    refused = lost.fetch(url)

    assert (refused.status, refused.error["code"]) == (409, "ConfigUrlTaken")
    assert f"join-command --name {node.name} --replace" in refused.error["message"]
    assert first.get().status == 200
    replaced = node.regenerate(replaceMachine=True)
    assert lost.fetch(replaced).status == 200
    assert first.get().status == 200  # until the new key is used
    assert lost.get().status == 200
    assert (first.get().status, first.get().error["code"]) == (403, "NodeKeyRevoked")


def test_replaced_machine_learns_that_its_node_has_moved(node: NodeWithKey) -> None:
    first = node.joined(ONE)
    second = node.machine(TWO)
    assert second.fetch(node.regenerate(replaceMachine=True)).status == 200
    assert second.get().status == 200

    told = first.get()

    assert (told.status, told.error["code"]) == (409, "NodeReplaced")
    assert first.api().report(node.name, {}).error["code"] == "NodeKeyRevoked"


@pytest.mark.parametrize("body", [MANAGED, token(), principal()], ids=["managed", "token", "identity"])
def test_fetch_without_a_key_is_refused_and_binds_nothing(service: Running, name: str, body: dict[str, Any]) -> None:
    """Attack: the bearer of a leaked URL reads the bundle without leaving a key."""
    node = NodeWithKey(service, name, body)

    refused = node.machine().fetch(node.url, proof="")

    assert (refused.status, refused.error["code"]) == (400, "NodeKeyRequired")
    assert "aks-flex-rp node join-command" in refused.error["message"]
    assert (node.status["joinState"], "nodeKey" in node.status) == ("Created", False)
    owner = node.machine(TWO)
    assert owner.fetch(node.url).headers[AUDIENCE_HEADER.lower()] == AUDIENCE
    assert node.status["nodeKey"]["thumbprint"] == owner.key.thumbprint


def attacks(machine: Machine, other: HeldKey) -> dict[str, str]:
    """Returns assertions that only look like those of the machine."""
    good = machine.assertion()
    resource = PLANT.node(machine.name)
    unsigned, public = good.rpartition(".")[0], json.dumps(machine.key.public.jwk).encode()
    none = with_header(good, alg="none").rpartition(".")[0] + "."
    shared = with_header(good, alg="HS256").rpartition(".")[0]
    signed = hmac.new(public, shared.encode(), hashlib.sha256).digest()
    return {
        "no signature": f"{unsigned}.",
        "algorithm none": none,
        "HS256 with the public key": f"{shared}.{encode(signed)}",
        "key of another": other.assertion(resource, AUDIENCE),
        "swapped public key": with_header(good, jwk=other.public.jwk),
        "signed by another, shown as this key": with_header(
            other.assertion(resource, AUDIENCE), jwk=machine.key.public.jwk
        ),
        "private key in the header": with_header(good, jwk={**machine.key.public.jwk, "d": "x"}),
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
    machine = node.machine()
    assert machine.fetch(node.url).status == 200
    etag = machine.get().headers["etag"]
    for what, forged in attacks(machine, HeldKey()).items():
        for headers in ({}, {"if_none_match": etag}):
            assert machine.api(forged).get(node.name, **headers).status == 401, what
    assert machine.get(if_none_match=etag).status == 304


def test_key_acts_as_no_other_node(service: Running, node: NodeWithKey, name: str) -> None:
    machine, other = node.machine(), NodeWithKey(service, f"{name}-other")
    assert machine.fetch(node.url).status == 200
    assert other.machine().fetch(other.url).status == 200
    etag = other.admin.get(other.name).headers["etag"]
    api = machine.api()

    refused = [
        api.get(other.name),
        api.get(other.name, if_none_match=etag),
        api.report(other.name, {}),
        api.credentials(other.name),
        api.regenerate(other.name),
        api.list(),
        api.put(node.name, MANAGED),
        api.delete(node.name),
        api.audit(node.name),
        api.at(NEIGHBOUR).get(node.name),
        api.ask("POST", api.path(node.name, "revokeKey"), {}),
        api.ask("POST", api.path(node.name, "regenerateToken"), {"replaceMachine": True}),
        api.ask(
            "POST", api.path(other.name, "rotateKey"), {"proof": HeldKey().proof(PLANT.node(other.name).lower())}
        ),
    ]

    assert [answer.status for answer in refused] == [403] * len(refused)
    claimed = machine.key.assertion(PLANT.node(other.name), AUDIENCE)
    assert machine.api(claimed).get(other.name).status == 401


def test_proof_of_another_url_or_key_is_refused(service: Running, node: NodeWithKey, name: str) -> None:
    other = NodeWithKey(service, f"{name}-other")
    machine = node.machine()
    good, foreign = machine.key.url_proof(node.url), machine.key.url_proof(other.url)
    forged = {
        "other URL": foreign,
        "swapped key": with_header(good, jwk=HeldKey().public.jwk),
        "point that is not on the curve": with_header(good, jwk={**machine.key.public.jwk, "x": "A" * 43}),
        "other curve": with_header(good, jwk={**machine.key.public.jwk, "crv": "P-384"}),
        "algorithm none": with_header(good, alg="none"),
        "an assertion": machine.assertion(),
        "expired": machine.key.url_proof(node.url, now=time.time() - 1000),
        "oversize": with_header(good, more="x" * MAX_TOKEN_LENGTH),
        "no token": "x",
    }
    for what, proof in forged.items():
        refused = machine.fetch(node.url, proof)
        assert refused.status == 400, what
        assert refused.error["code"] == ("NodeKeyTimeInvalid" if what == "expired" else "InvalidNodeKey"), what
    assert "nodeKey" not in node.status
    assert machine.fetch(node.url).status == 200


def test_key_has_one_thumbprint_whatever_its_encoding(node: NodeWithKey) -> None:
    """The last character of a coordinate has two unused bits, with which a revoked key could come back."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    machine = node.machine()
    jwk = machine.key.public.jwk
    other = jwk["x"][:-1] + letters[letters.index(jwk["x"][-1]) ^ 1]
    claims = {"aud": url_audience(node.url.partition("#")[0].rpartition("/")[2])}
    forged = machine.key.signed({"alg": "ES256", "typ": PROOF_TYPE, "jwk": {**jwk, "x": other}}, claims)
    assert machine.fetch(node.url, forged).error["code"] == "InvalidNodeKey"
    honest = machine.key.signed({"alg": "ES256", "typ": PROOF_TYPE, "jwk": jwk}, claims)
    assert machine.fetch(node.url, honest).status == 200


def test_key_of_a_deleted_node_learns_the_deletion(node: NodeWithKey) -> None:
    machine = node.machine()
    assert machine.fetch(node.url).status == 200
    etag = machine.get().headers["etag"]

    node.admin.delete(node.name)

    for headers in ({}, {"if_none_match": etag}):
        told = machine.api().get(node.name, **headers)
        assert (told.status, told.error["code"]) == (404, "ResourceNotFound")
    assert machine.api().report(node.name, {}).status == 404
    node.admin.put(node.name, MANAGED)
    assert machine.get().status == 401


def test_revoked_key_is_refused_at_once_and_a_new_join_binds_another(node: NodeWithKey) -> None:
    machine = node.joined()
    etag = machine.get().headers["etag"]
    assert machine.get(if_none_match=etag).status == 304
    stolen = machine.api().regenerate(node.name).json["configUrl"]  # a thief has asked for a URL before

    revoked = node.admin.ask("POST", node.admin.path(node.name, "revokeKey"), {})

    assert (revoked.status, revoked.json["thumbprint"]) == (200, machine.key.thumbprint)
    for answer in (machine.get(if_none_match=etag), machine.get(), machine.api().report(node.name, {})):
        assert (answer.status, answer.error["code"]) == (403, "NodeKeyRevoked")
        assert f"aks-flex-rp node join-command --name {node.name}" in answer.error["message"]
    thief = node.machine()
    assert thief.fetch(stolen).status == 404
    status = node.status
    assert status["nodeKey"]["state"] == "Revoked"
    assert any(each["type"] == "NodeKeyRevoked" for each in status["conditions"])
    assert status["joinState"] == "Joined"
    assert len(node.events("revokeKey")) == 1
    url = node.regenerate()
    assert machine.fetch(url).error["code"] == "NodeKeyRevoked"
    old, machine.key = machine.key, HeldKey()
    assert machine.fetch(url).status == 200
    assert machine.get().status == 200
    assert "NodeKeyRevoked" not in str(node.status["conditions"])
    assert old.thumbprint != node.status["nodeKey"]["thumbprint"]


def test_revocation_ends_a_held_poll(node: NodeWithKey) -> None:
    machine = node.machine()
    assert machine.fetch(node.url).status == 200
    etag = machine.get().headers["etag"]
    answers: list[Answer] = []
    poll = threading.Thread(target=lambda: answers.append(machine.get(if_none_match=etag, prefer="wait=20")))
    poll.start()
    time.sleep(0.3)

    node.admin.ask("POST", node.admin.path(node.name, "revokeKey"), {})
    poll.join(5)

    assert [each.status for each in answers] == [403]


def test_revocation_cuts_off_the_azure_identity_of_the_machine(service: Running, tenant: Tenant, name: str) -> None:
    node = NodeWithKey(service, name, principal())
    machine = node.machine()
    assert machine.fetch(node.url).status == 200
    azure = node.admin.as_somebody(tenant.application(callers.NODE))
    etag = azure.get(name).headers["etag"]
    assert azure.get(name, if_none_match=etag).status == 304

    node.admin.ask("POST", node.admin.path(name, "revokeKey"), {})

    proof = HeldKey().proof(PLANT.node(name).lower())
    for answer in (
        azure.get(name, if_none_match=etag),
        azure.report(name, {}),
        azure.credentials(name),
        azure.ask("POST", azure.path(name, "rotateKey"), {"proof": proof}),
    ):
        assert (answer.status, answer.error["code"]) == (403, "NodeKeyRevoked")


def test_node_without_a_key_has_none_to_revoke(node: NodeWithKey) -> None:
    answer = node.admin.ask("POST", node.admin.path(node.name, "revokeKey"), {})
    assert (answer.status, answer.error["code"]) == (409, "NodeHasNoKey")


def rotation(name: str, key: HeldKey, current: HeldKey | None = None) -> dict[str, str]:
    """Returns the body of a rotation to the key, with the consent of the current one."""
    node_id = PLANT.node(name).lower()
    consent = current.proof(rotation_audience(node_id, key.thumbprint)) if current else ""
    return {"proof": key.proof(node_id), **({"consent": consent} if consent else {})}


def rotate(api: Api, name: str, key: HeldKey, current: HeldKey | None = None) -> Answer:
    return api.ask("POST", api.path(name, "rotateKey"), rotation(name, key, current))


def test_rotation_keeps_the_earlier_key_until_the_new_one_is_used(node: NodeWithKey) -> None:
    machine, new = node.joined(), HeldKey()

    rotated = rotate(machine.api(), node.name, new, machine.key)

    assert (rotated.status, rotated.json["audience"]) == (200, AUDIENCE)
    assert machine.get().status == 200  # the agent stopped before it stored the response
    assert rotate(machine.api(), node.name, new, machine.key).status == 200
    old, machine.key = machine.key, new
    assert machine.get().status == 200
    assert node.status["nodeKey"]["thumbprint"] == new.thumbprint
    machine.key = old
    assert (machine.get().status, machine.get().error["code"]) == (403, "NodeKeyRevoked")
    assert rotate(machine.api(), node.name, HeldKey(), machine.key).status == 403
    assert len(node.events("rotateKey")) == 1


def test_rotation_needs_a_proof_for_this_node(service: Running, node: NodeWithKey, name: str) -> None:
    machine = node.joined()
    other = NodeWithKey(service, f"{name}-other")
    key, api = HeldKey(), machine.api()
    path = api.path(node.name, "rotateKey")
    foreign = key.proof(PLANT.node(other.name).lower())
    stolen = with_header(key.proof(PLANT.node(node.name).lower()), jwk=HeldKey().public.jwk)
    for body in ({"proof": foreign}, {"proof": stolen}, {"proof": 1}, {}, {"proof": foreign, "more": 1}):
        assert api.ask("POST", path, body).status == 400
    assert node.status["nodeKey"]["thumbprint"] == machine.key.thumbprint


def test_node_with_an_azure_identity_gets_a_key_by_it(service: Running, tenant: Tenant, name: str) -> None:
    """The machine has its configuration from a file, so no fetch has bound its key."""
    node = NodeWithKey(service, name, principal())
    machine = node.machine()
    azure = node.admin.as_somebody(tenant.application(callers.NODE))

    assert rotate(azure, name, machine.key).json["audience"] == AUDIENCE

    assert machine.get().status == 200
    assert machine.api().credentials(name).json["servicePrincipal"]["clientSecret"] == SECRET
    assert azure.get(name).status == 200


def test_node_gets_a_new_token_for_itself_after_months(node: NodeWithKey) -> None:
    """A key does not expire: the node asks for a URL by it, and only this key may fetch the URL."""
    machine = node.joined()

    url = machine.api().regenerate(node.name).json["configUrl"]

    assert node.machine(TWO).fetch(url).status == 409
    fetched = machine.fetch(url)
    assert fetched.status == 200
    assert fetched.json["config"]["azure"]["bootstrapToken"]["token"]
