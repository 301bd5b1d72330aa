"""Tests of the resource provider with a real control plane: a token is valid once and for one node."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509

from aks_flex_lab.components.resource_provider import resolv_conf
from aks_flex_node.api.contract import LEFT_ANNOTATION, MANAGED_LABEL
from aks_flex_rp.clusters import bootstrap_tokens, prerequisites
from aks_flex_rp.clusters.admission_policies import SINGLE_USE_POLICY
from aks_flex_rp.clusters.client import ApiRefused, FixedConnection, KubeClient
from aks_flex_rp.clusters.connections import load_kubeconfig
from aks_flex_rp.clusters.csr_policy import REQUESTS, SERVING_SIGNER
from aks_flex_rp.clusters.facts import FactOverrides, read_facts
from aks_flex_rp.clusters.managed_cluster import open_client
from aks_flex_rp.clusters.taints import DesiredTaints
from tests.lab.cluster_harness import PACE, POLICY, RIVAL, policy_holds, send, until, watched
from tests.lab_machines import without_provider
from tests.unit.rp.clusters.builders import request_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.supervisor import LabComponent


@pytest.fixture(scope="module", autouse=True)
def _alone(lab: Lab) -> Iterator[None]:
    with without_provider(lab):
        yield


async def test_cluster_facts_for_nodes_are_read_from_cluster(lab: Lab) -> None:
    client = open_client(load_kubeconfig(lab.admin_kubeconfig))
    try:
        facts = await read_facts(client, FactOverrides(server_url="https://api.flex.internal:443", location="here"))
    finally:
        await client.close()

    assert facts.version == "1.36.3"
    assert facts.server_url == "https://api.flex.internal:443"
    assert base64.b64decode(facts.ca_cert_data) == lab.authority.certificate.read_bytes()
    assert facts.dns_service_ip == "198.19.128.10"
    assert (facts.location, facts.cluster_domain) == ("here", "cluster.local")


async def test_node_gets_certificate_and_its_bootstrap_token_is_deleted(lab: Lab) -> None:
    async with watched(lab) as site:
        token = await site.mint("edge-1")
        name = await site.ask(token, "edge-1")
        certificate = await site.certificate(name)
        await site.secret_gone(token)
        await site.hears("issued", "edge-1", name)

        assert certificate.subject.rfc4514_string() == "CN=system:node:edge-1,O=system:nodes"
        assert site.told_of("edge-1") == ["attempted", "issued"]
        assert (await site.decision(name))["reason"] == "FlexNodeApproved"
        assert token.secret not in repr(token)
        late = ""
        with suppress(ApiRefused):  # the API server caches a token for some seconds
            late = await site.ask(token, "edge-1")
        assert not late or (await site.decision(late))["type"] == "Denied"


async def test_second_csr_with_same_token_is_denied(lab: Lab) -> None:
    async with watched(lab) as site:
        token = await site.mint("edge-2")
        kubelet = site.bearing(token)
        names = await asyncio.gather(*(send(kubelet, request_for("edge-2")) for _ in range(4)))
        decisions = [(await site.decision(name)) for name in names]
        await kubelet.close()
        await site.hears("issued", "edge-2")

        assert sorted(one["type"] for one in decisions) == ["Approved", "Denied", "Denied", "Denied"]
        assert site.heard.about("edge-2").count("attempted") == 1
        refused = [words for words in site.heard.told if words[0] == "refused"]
        assert len(refused) == 3


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"as_user": "system:node:somebody-else"}, "only system:node:edge-3 is allowed"),
        ({"groups": ("system:nodes", "system:masters")}, "only system:nodes is allowed"),
        ({"as_user": "kubernetes-admin", "groups": ("system:masters",)}, "only system:node:edge-3 is allowed"),
        ({"names": (x509.DNSName("api.flex.internal"),)}, "alternative names"),
        ({"usages": ("digital signature", "client auth", "server auth")}, "usages"),
    ],
)
async def test_csr_not_matching_bootstrap_token_is_denied(lab: Lab, odd: dict[str, Any], words: str) -> None:
    async with watched(lab) as site:
        token = await site.mint("edge-3")
        bad = await site.ask(token, "edge-3", **odd)
        decision = await site.decision(bad)
        await site.hears("refused", "edge-3", bad)

        assert (decision["type"], decision["reason"]) == ("Denied", "FlexNodeDenied")
        assert words in decision["message"]
        assert not (await site.csr(bad))["status"].get("certificate")
        await site.secret_gone(token)
        assert site.told_of("edge-3") == ["refused", "failed"]


async def test_bootstrap_token_cannot_be_used_for_another_signer(lab: Lab) -> None:
    async with watched(lab) as site:
        token = await site.mint("edge-3")

        with pytest.raises(ApiRefused, match="for the kubelet's client certificate only"):
            await site.ask(token, "edge-3", signer="kubernetes.io/kube-apiserver-client")


async def test_expired_unknown_and_replaced_tokens_are_rejected(lab: Lab) -> None:
    async with watched(lab) as site:
        expired = await site.mint("edge-4", timedelta(seconds=-1))
        replaced = await site.mint("edge-5")
        await site.mint("edge-5")

        for token in ("abcdef.0123456789abcdef", expired):
            with pytest.raises(ApiRefused) as refusal:
                await site.ask(token, "edge-4")
            assert refusal.value.status == 401
        await site.secret_gone(expired)
        decision = await site.decision(await site.ask(replaced, "edge-5"))
        assert decision["type"] == "Denied"
        assert "another bootstrap token" in decision["message"]


async def test_two_replicas_approve_exactly_one_csr(lab: Lab) -> None:
    async with watched(lab, replicas=2) as site:
        token = await site.mint("edge-6")
        kubelet = site.bearing(token)
        names = await asyncio.gather(*(send(kubelet, request_for("edge-6")) for _ in range(6)))
        decisions = {name: (await site.decision(name))["type"] for name in names}
        await kubelet.close()
        await site.hears("issued", "edge-6", *[name for name, one in decisions.items() if one == "Approved"])

        (winner,) = [name for name, decision in decisions.items() if decision == "Approved"]
        assert {words[2] for words in site.heard.told if words[0] == "attempted"} == {winner}
        assert site.heard.about("edge-6").count("refused") == 5


async def test_csr_claimed_by_another_replica_is_completed(lab: Lab) -> None:
    async with watched(lab) as site:
        minted = await site.mint("edge-7")
    client = open_client(site.direct)
    name = await site.ask(minted, "edge-7")
    token = await bootstrap_tokens.find_token(client, minted.id)
    assert token
    uid = (await client.get(f"{REQUESTS}/{name}"))["metadata"]["uid"]
    await bootstrap_tokens.claim_token(client, token, name, uid, datetime.now(timezone.utc))
    await client.close()

    async with watched(lab) as later:
        later.heard.tokens = site.heard.tokens
        await later.certificate(name)


async def test_csr_is_not_approved_until_attempt_is_recorded(lab: Lab) -> None:
    async with watched(lab) as site:
        site.heard.deaf = True
        token = await site.mint("edge-8")
        name = await site.ask(token, "edge-8")

        async def claimed() -> bool:
            found = await bootstrap_tokens.find_token(site.client, token.id)
            return bool(found and found.claim)

        await until(claimed, "the claim")
        assert not (await site.csr(name))["status"].get("conditions")
        site.heard.deaf = False
        await site.certificate(name)
        assert site.heard.about("edge-8")[0] == "attempted"


async def test_admission_policy_blocks_other_csr_approver(lab: Lab) -> None:
    async with watched(lab) as site:
        token, other = await site.mint("edge-9"), await site.mint("edge-19")
    client = open_client(site.direct)
    try:
        await client.apply(f"{prerequisites.BINDINGS}/rival-approver", RIVAL)
        found = await prerequisites.check_cluster(client)
        rivals = [one.what for one in found if one.level == "warning" and one.what != "permissions"]
        name = await site.ask(token, "edge-9")
        bad = await site.ask(other, "edge-19", as_user="system:node:edge-1")

        async def both_refused() -> bool:
            said = lab.supervisor.log("kube-controller-manager").read_text()
            return all(f"{one}" in said for one in (name, bad)) and "only the aks flex node" in said.lower()

        await until(both_refused, "the controller manager is refused")
        for one in (name, bad):
            assert not (await client.get(f"{REQUESTS}/{one}"))["status"].get("conditions")
        async with watched(lab) as later:
            later.heard.tokens = site.heard.tokens
            assert (await later.decision(name))["reason"] == "FlexNodeApproved"
            assert (await later.decision(bad))["reason"] == "FlexNodeDenied"
            await later.certificate(name)
    finally:
        await client.delete(f"{prerequisites.BINDINGS}/rival-approver")
        await client.close()
    assert rivals == ["ClusterRoleBinding rival-approver"]


async def test_foreign_csr_approval_is_revoked_without_admission_policy(lab: Lab) -> None:
    async with watched(lab) as site:
        token = await site.mint("edge-10")
        good = await site.mint("edge-11")
    client = open_client(site.direct)
    try:
        await client.delete(POLICY)
        await policy_holds(site.direct, holds=False)
        await client.apply(f"{prerequisites.BINDINGS}/rival-approver", RIVAL)
        bad = await site.ask(token, "edge-10", as_user="system:node:edge-1")
        fine = await site.ask(good, "edge-11")
        for one in (bad, fine):

            async def approved(name: str = one) -> bool:
                return bool((await client.get(f"{REQUESTS}/{name}"))["status"].get("conditions"))

            await until(approved, "the controller manager approves")
        async with watched(lab) as later:
            later.heard.tokens = site.heard.tokens
            await later.hears("refused", "edge-10", bad)
            await later.hears("issued", "edge-11", fine)
            assert await client.find(f"{REQUESTS}/{bad}") is None
            await later.secret_gone(token)
            (told,) = [words for words in later.heard.told if words[:2] == ("refused", "edge-10")]
            assert "Another approver had approved it (AutoApproved)" in told[3]
    finally:
        await client.delete(f"{prerequisites.BINDINGS}/rival-approver")
        await client.close()


async def test_serving_certificate_is_approved_for_own_names_only(lab: Lab) -> None:
    pair = lab.authority.issue("edge-12", "system:node:edge-12", "system:nodes")
    certificate, key = pair.certificate.read_text(), pair.key.read_text()
    serving: dict[str, Any] = {"signer": SERVING_SIGNER, "usages": ("digital signature", "server auth")}
    async with watched(lab) as site:
        site.heard.tokens["edge-12"] = ""
        kubelet = KubeClient(FixedConnection(replace(site.direct, certificate=certificate, key=key)))
        await make_node(site.client, "edge-13", "192.0.2.13")
        early = await send(kubelet, request_for("edge-12", names=(name("edge-12"), address("192.0.2.12")), **serving))
        bad = {
            words: await send(kubelet, request_for("edge-12", names=names, **serving))
            for words, names in NOT_ITS_OWN.items()
        }
        await kubelet.close()
        await make_node(site.client, "edge-12", "192.0.2.12", "192.0.2.13", "198.19.128.1", "127.0.0.1")

        assert (await site.decision(early))["type"] == "Approved"
        for words, one in bad.items():
            decision = await site.decision(one)
            assert (decision["type"], words in decision["message"]) == ("Denied", True), decision
        for node in ("edge-12", "edge-13"):
            await site.client.delete(f"/api/v1/nodes/{node}")


async def test_csr_for_existing_node_is_approved_only_for_flex_node(lab: Lab) -> None:
    async with watched(lab) as site:
        await make_node(site.client, "edge-17", "192.0.2.17")
        token = await site.mint("edge-17")
        decision = await site.decision(await site.ask(token, "edge-17"))
        await site.secret_gone(token)
        assert decision["type"] == "Denied"
        assert "a Node edge-17 that is not a flex node" in decision["message"]

        ours = {"metadata": {"labels": {"kubernetes.azure.com/managed": "false"}}}
        await site.client.merge("/api/v1/nodes/edge-17", ours)
        await site.certificate(await site.ask(await site.mint("edge-17"), "edge-17"))
        await site.client.delete("/api/v1/nodes/edge-17")


async def test_expiry_of_unused_token_is_reported(lab: Lab) -> None:
    async with watched(lab, pace=replace(PACE, refresh=0.3)) as site:
        token = await site.mint("edge-18", timedelta(seconds=3))
        await site.hears("failed", "edge-18", "The bootstrap token expired before it was used.")
        await site.secret_gone(token)
        assert site.told_of("edge-18") == ["failed"]


async def test_readiness_changes_are_reported_and_left_node_is_deleted(lab: Lab) -> None:
    async with watched(lab) as site:
        site.heard.tokens["edge-14"] = ""
        await make_node(site.client, "edge-14", "192.0.2.14")
        await site.hears("observed", "edge-14", "Truev1.36.3")
        for status in ("True", "True", "False"):
            await site.client.merge("/api/v1/nodes/edge-14/status", {"status": {"conditions": [ready(status)]}})
        await site.hears("observed", "edge-14", "Falsev1.36.3")
        last_word = {"metadata": {"annotations": {LEFT_ANNOTATION: "now"}}, "spec": {"unschedulable": True}}
        await site.client.merge("/api/v1/nodes/edge-14", last_word)
        await site.hears("observed", "edge-14", "gone")

        assert site.heard.about("edge-14") == ["observed"] * 3
        assert await site.client.find("/api/v1/nodes/edge-14") is None


async def test_desired_taints_are_applied_and_other_taints_are_kept(lab: Lab) -> None:
    one, other = {"key": "one", "value": "1", "effect": "NoSchedule"}, {"key": "other", "effect": "PreferNoSchedule"}
    operators = {"key": "operator", "effect": "NoSchedule"}
    async with watched(lab, replicas=2) as site:
        await make_node(site.client, "edge-20", "192.0.2.20")

        async def has(*taints: dict[str, str]) -> None:
            async def right() -> bool:
                spec = (await site.client.get("/api/v1/nodes/edge-20"))["spec"]
                found = [each for each in spec.get("taints", []) if not each["key"].startswith("node.kubernetes.io/")]
                return sorted(found, key=str) == sorted(taints, key=str)

            await until(right, f"the taints {taints}")

        site.wants("edge-20", DesiredTaints((one,)))
        await site.client.merge(
            "/api/v1/nodes/edge-20", {"metadata": {"labels": MANAGED_LABEL}}
        )  # now it is a flex node
        await has(one)
        await site.client.merge("/api/v1/nodes/edge-20", {"spec": {"taints": [operators, one]}})
        former = frozenset({("one", "NoSchedule")})
        site.wants("edge-20", DesiredTaints((other,), former))
        await has(operators, other)
        site.wants("edge-20", DesiredTaints((), former | {("other", "PreferNoSchedule")}))
        await has(operators)
        await site.client.delete("/api/v1/nodes/edge-20")


async def test_node_of_deleted_resource_is_removed_when_machine_is_gone(lab: Lab) -> None:
    async with watched(lab, pace=replace(PACE, refresh=0.3, gone_after=1)) as site:
        for node in ("edge-21", "edge-22"):
            await make_node(site.client, node, f"192.0.2.{node[-2:]}")
            await site.client.merge(f"/api/v1/nodes/{node}", {"metadata": {"labels": MANAGED_LABEL}})
            site.heard.deletions[node] = time.time()
        await site.client.merge("/api/v1/nodes/edge-22/status", {"status": {"conditions": [ready("Unknown")]}})
        await site.hears("removed", "edge-22")

        assert await site.client.find("/api/v1/nodes/edge-22") is None
        assert await site.client.find("/api/v1/nodes/edge-21")  # it is Ready
        await site.client.delete("/api/v1/nodes/edge-21")


async def test_cluster_prerequisites_are_checked_and_repaired(lab: Lab) -> None:
    client = open_client(load_kubeconfig(lab.admin_kubeconfig))
    try:
        await prerequisites.ensure_objects(client)
        assert await levels(client) == {"ok"}
        await client.delete(f"{prerequisites.BINDINGS}/aks-flex-node:ask-for-certificate")
        await client.merge(POLICY, {"spec": {"failurePolicy": "Ignore"}})
        found = {one.what: one.why for one in await prerequisites.check_cluster(client) if one.level == "problem"}
        assert found == {
            "ClusterRoleBinding aks-flex-node:ask-for-certificate": "The object does not exist.",
            f"ValidatingAdmissionPolicy {SINGLE_USE_POLICY}": "The object differs from the required one.",
        }
        await prerequisites.ensure_objects(client)
        assert await levels(client) == {"ok"}
    finally:
        await client.close()


async def levels(client: KubeClient) -> set[str]:
    """Returns the levels of all findings, but for the warning that the lab's account is an administrator."""
    found = await prerequisites.check_cluster(client)
    return {one.level for one in found if (one.level, one.what) != ("warning", "permissions")}


async def test_informer_reconnects_after_api_server_restart(lab: Lab) -> None:
    async with watched(lab) as site:
        server = lab.supervisor.process("kube-apiserver")
        assert server
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(start, lab, lab.control_plane.api_server(resolv_conf(lab.layout)))
        token = await site.mint("edge-15")
        await site.certificate(await site.ask(token, "edge-15"))
        await site.hears("issued", "edge-15")


async def test_token_is_deleted_when_certificate_is_not_issued_in_time(lab: Lab) -> None:
    async with watched(lab, pace=replace(PACE, grace=2)) as site:
        token = await site.mint("edge-16")
        signer = lab.supervisor.process("kube-controller-manager")
        assert signer
        await asyncio.to_thread(signer.stop)
        try:
            name = await site.ask(token, "edge-16")
            assert (await site.decision(name))["type"] == "Approved"
            await site.secret_gone(token)
            await site.hears("failed", "edge-16")
        finally:
            await asyncio.to_thread(start, lab, lab.control_plane.controller_manager())


def name(text: str) -> x509.DNSName:
    return x509.DNSName(text)


def address(text: str) -> x509.IPAddress:
    return x509.IPAddress(ipaddress.ip_address(text))


NOT_ITS_OWN: dict[str, tuple[x509.GeneralName, ...]] = {
    "192.0.2.99 is not an address of node edge-12": (address("192.0.2.99"),),
    "192.0.2.13 belongs to node edge-13": (address("192.0.2.13"),),
    "198.19.128.1 belongs to the API server": (address("198.19.128.1"),),
    "127.0.0.1 is loopback": (address("127.0.0.1"),),
    "'edge-13' is not a name of node edge-12": (name("edge-13"),),
    "'edge-12.default.svc' is in the cluster's service domain .svc": (name("edge-12.default.svc"),),
    "no DNS name and no IP address": (),
    "a RFC822Name": (x509.RFC822Name("a@example.com"),),
}


async def make_node(client: KubeClient, node: str, *at: str) -> None:
    await client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    addresses = [
        *({"type": "InternalIP", "address": one} for one in at),
        {"type": "Hostname", "address": node},
    ]
    status = {"addresses": addresses, "nodeInfo": {"kubeletVersion": "v1.36.3"}, "conditions": [ready("True")]}
    await client.merge(f"/api/v1/nodes/{node}/status", {"status": status})


def ready(status: str) -> dict[str, str]:
    beat = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "Ready", "status": status, "reason": "KubeletReady", "message": "", "lastHeartbeatTime": beat}


def start(lab: Lab, part: LabComponent) -> None:
    lab.supervisor.start(part)
    lab.supervisor.wait(part)
