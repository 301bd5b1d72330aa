"""Tests of the approver with replicas, other approvers and failures that are rare in a real cluster."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from aks_flex_node.api.contract import LEFT_ANNOTATION
from aks_flex_rp.clusters import bootstrap_tokens
from aks_flex_rp.clusters.csr_policy import ACCEPTED, REQUESTS
from aks_flex_rp.clusters.node_controller import NODES
from tests.unit.rp.clusters.fakes import merged
from tests.unit.rp.clusters.harness import APPROVED, DENIED, Scene


async def test_csr_is_approved_only_after_attempt_is_recorded(scene: Scene) -> None:
    request = scene.ask()
    scene.heard.deaf = True
    with pytest.raises(ConnectionError):
        await scene.approver.changed("ADDED", request)
    assert scene.decisions() == []

    scene.heard.deaf = False
    await scene.approver.changed("ADDED", request)
    assert scene.decisions() == APPROVED
    assert scene.heard.about("edge-1") == ["attempted"]


async def test_denied_csr_is_reported_again_after_failed_report(scene: Scene) -> None:
    scene.heard.deaf = True
    with pytest.raises(ConnectionError):
        await scene.send(as_user="system:node:edge-2")
    assert scene.decisions() == DENIED
    assert await scene.has_token()

    scene.heard.deaf = False
    await scene.approver.clean_up()
    await scene.approver.clean_up()
    assert scene.heard.about("edge-1") == ["refused", "failed"]
    assert not await scene.has_token()


async def test_invalid_first_csr_revokes_bootstrap_token(scene: Scene) -> None:
    await scene.send(as_user="system:node:edge-2")
    why = "It requests the name 'system:node:edge-2'; only system:node:edge-1 is allowed."
    assert scene.heard.told == [("refused", "edge-1", "csr-1", why), ("failed", "edge-1", why)]
    assert not await scene.has_token()

    await scene.send("csr-2")
    assert scene.decisions("csr-2") == DENIED


async def test_invalid_later_csr_keeps_token_claimed_by_earlier_csr(scene: Scene) -> None:
    await scene.send()
    await scene.send("csr-2", as_user="system:node:edge-2")

    assert scene.decisions("csr-2") == DENIED
    assert "already used for request csr-1" in scene.heard.told[-1][3]
    assert scene.heard.about("edge-1") == ["attempted", "refused"]
    assert await scene.has_token()


async def test_csr_is_denied_when_node_is_deleted_after_claim(scene: Scene) -> None:
    token = await bootstrap_tokens.find_token(scene.client, scene.token)
    assert token
    await bootstrap_tokens.claim_token(scene.client, token, "csr-1", "uid-csr-1", datetime.now(timezone.utc))
    del scene.heard.tokens["edge-1"]
    await scene.send()

    assert scene.decisions() == DENIED
    assert scene.heard.told == [
        ("refused", "edge-1", "csr-1", "Node edge-1 has another bootstrap token or was deleted.")
    ]
    assert not await scene.has_token()


@pytest.mark.parametrize(
    ("metadata", "decision"),
    [
        ({}, "Denied"),
        ({"labels": {"kubernetes.azure.com/managed": "true"}}, "Denied"),
        ({"labels": {"kubernetes.azure.com/managed": "false"}}, "Approved"),
        ({"annotations": {LEFT_ANNOTATION: "then"}}, "Approved"),
    ],
    ids=["foreign", "of azure", "ours", "has left"],
)
async def test_csr_for_name_of_foreign_node_is_denied_but_rejoin_is_approved(
    scene: Scene, metadata: dict[str, Any], decision: str
) -> None:
    scene.api.put(f"{NODES}/edge-1", {"metadata": metadata})
    await scene.send()

    assert [one for one, _ in scene.decisions()] == [decision]
    assert await scene.has_token() == (decision == "Approved")
    if decision == "Denied":
        why = "The cluster already has a Node edge-1 that is not a flex node."
        assert scene.heard.told == [("refused", "edge-1", "csr-1", why), ("failed", "edge-1", why)]


async def test_broken_csr_does_not_block_others(scene: Scene) -> None:
    broken: dict[str, Any] = {"metadata": {}}
    with pytest.raises(KeyError):
        await scene.approver.listed([broken, scene.ask()])

    assert scene.decisions() == APPROVED


async def test_signer_failure_revokes_bootstrap_token(scene: Scene) -> None:
    await scene.send()
    await scene.approver.changed("MODIFIED", scene.has("csr-1", "Failed", message="no key"))

    assert scene.heard.told[-1] == ("failed", "edge-1", "The cluster's signer rejected the request: no key")
    assert not await scene.has_token()


async def test_valid_csr_approved_by_another_controller_is_accepted(scene: Scene) -> None:
    scene.ask()
    stale = scene.has("csr-1", "Approved", certificate="signed")
    await scene.approver.changed("MODIFIED", stale)
    assert scene.heard.about("edge-1") == ["attempted", "issued"]

    lagging = scene.replica()
    await lagging.changed("MODIFIED", stale)  # the token is deleted, and this event is outdated
    assert scene.decisions() == [("Approved", "AutoApproved")]
    assert scene.heard.about("edge-1") == ["attempted", "issued"]


async def test_forged_accepted_annotation_does_not_protect_invalid_csr(scene: Scene) -> None:
    request = scene.ask(as_user="system:node:edge-2")
    request["metadata"]["annotations"] = {ACCEPTED: scene.token}
    scene.api.put(f"{REQUESTS}/csr-1", request)
    await scene.approver.changed("MODIFIED", scene.has("csr-1", "Approved", certificate="signed"))

    assert f"{REQUESTS}/csr-1" not in scene.api.objects
    assert not await scene.has_token()
    assert "Its certificate was already issued" in scene.heard.told[0][3]


async def test_token_renewal_during_join_does_not_interrupt_it(scene: Scene) -> None:
    await scene.send()
    scene.heard.tokens["edge-1"] = "another"
    signed = {**scene.now(), "status": {**scene.now()["status"], "certificate": "signed"}}
    await scene.approver.changed("MODIFIED", scene.api.put(f"{REQUESTS}/csr-1", signed))

    assert scene.heard.about("edge-1") == ["attempted", "issued"]


async def test_csr_is_denied_when_another_replica_claimed_the_token(scene: Scene) -> None:
    token = await bootstrap_tokens.find_token(scene.client, scene.token)
    assert token
    at = datetime.now(timezone.utc)
    first = await bootstrap_tokens.claim_token(scene.client, token, "csr-1", "uid-csr-1", at)
    second = await bootstrap_tokens.claim_token(
        scene.client, token, "csr-2", "uid-csr-2", at
    )  # from its earlier read

    assert first
    assert second
    assert first.claim == second.claim
    await scene.send("csr-2")
    assert scene.decisions("csr-2") == DENIED


@pytest.mark.parametrize(
    ("outcome", "told"),
    [({"certificate": "signed"}, "issued"), ({"conditions": [{"type": "Failed", "message": "no key"}]}, "failed")],
    ids=["issued", "failed"],
)
async def test_bootstrap_token_is_deleted_only_after_outcome_is_recorded(
    scene: Scene, outcome: dict[str, Any], told: str
) -> None:
    await scene.send()
    ended = scene.api.put(f"{REQUESTS}/csr-1", merged(scene.now(), {"status": outcome}))
    scene.heard.deaf = True
    with pytest.raises(ConnectionError):
        await scene.approver.changed("MODIFIED", ended)
    with pytest.raises(ConnectionError):
        await scene.approver.clean_up()
    assert await scene.has_token()

    scene.heard.deaf = False
    later = scene.replica()  # a replica with an empty cache
    await later.sweep()
    await later.clean_up()
    assert scene.heard.about("edge-1") == ["attempted", told]
    assert not await scene.has_token()


async def test_token_claim_expires_even_if_csr_is_deleted(scene: Scene) -> None:
    approver = scene.replica(grace=0)
    await approver.changed("ADDED", scene.ask())
    del scene.api.objects[f"{REQUESTS}/csr-1"]
    await approver.clean_up()

    assert scene.heard.told[-1] == ("failed", "edge-1", "No certificate was issued within 0 s.")
    assert not await scene.has_token()


async def test_csrs_of_other_users_are_ignored(scene: Scene) -> None:
    request = scene.ask()
    request["spec"] |= {"username": "system:bootstrap:kubeadm", "groups": ["system:bootstrappers"]}
    await scene.approver.changed("ADDED", request)
    request["spec"] |= {"username": "system:node:cloud-1", "signerName": "kubernetes.io/kubelet-serving"}
    await scene.approver.changed("ADDED", request)

    assert scene.decisions() == []
    assert scene.heard.told == []
