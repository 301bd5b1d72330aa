"""Tests of the sweep of bootstrap tokens: expired, unused and orphaned ones."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.timestamps import format_utc, parse_utc
from aks_flex_rp.clusters import bootstrap_tokens
from tests.unit.rp.clusters.fakes import merged, refusal
from tests.unit.rp.clusters.harness import APPROVED, DENIED, Scene

if TYPE_CHECKING:
    import httpx2


async def test_tokens_are_not_listed_when_nothing_is_pending(scene: Scene) -> None:
    await scene.approver.clean_up()
    await scene.send()
    await scene.approver.clean_up()

    assert f"GET {bootstrap_tokens.SECRETS}" not in scene.api.calls


async def test_sweep_deletes_only_orphaned_tokens_without_reporting(scene: Scene) -> None:
    orphan = await bootstrap_tokens.mint_token(
        scene.client, "edge-2", datetime.now(timezone.utc) + timedelta(hours=24)
    )
    fresh = await bootstrap_tokens.mint_token(
        scene.client, "edge-3", datetime.now(timezone.utc) + timedelta(hours=24)
    )
    young = {"metadata": {"creationTimestamp": format_utc()}}
    path = f"{bootstrap_tokens.SECRETS}/bootstrap-token-{fresh.id}"
    scene.api.put(path, merged(scene.api.objects[path], young))
    scene.api.put(f"{bootstrap_tokens.SECRETS}/bootstrap-token-foreign", {"type": "theirs"})
    await scene.approver.sweep()

    assert await scene.has_token()
    assert await bootstrap_tokens.find_token(scene.client, fresh.id)  # its creation may be in progress
    assert await bootstrap_tokens.find_token(scene.client, orphan.id) is None
    assert f"{bootstrap_tokens.SECRETS}/bootstrap-token-foreign" in scene.api.objects
    assert scene.heard.told == []


async def test_expired_unused_token_is_reported_before_it_is_deleted() -> None:
    scene = Scene()
    await scene.mint(timedelta(seconds=-1))
    scene.heard.deaf = True
    with pytest.raises(ConnectionError):
        await scene.approver.sweep()
    assert await scene.has_token()

    scene.heard.deaf = False
    await scene.approver.sweep()
    await scene.approver.sweep()
    assert scene.heard.told == [("failed", "edge-1", "The bootstrap token expired before it was used.")]
    assert not await scene.has_token()


async def test_expired_token_deleted_by_cluster_is_reported_as_failed() -> None:
    scene = Scene()
    await scene.mint(timedelta(seconds=2))  # at least one: its record has whole seconds
    await scene.approver.sweep()
    path = f"{bootstrap_tokens.SECRETS}/bootstrap-token-{scene.token}"
    expires = parse_utc(scene.api.objects[path]["metadata"]["annotations"][bootstrap_tokens.EXPIRES])
    del scene.api.objects[path]
    while datetime.now(timezone.utc) < expires:
        await asyncio.sleep(0.05)
    await scene.approver.sweep()
    await scene.approver.sweep()

    assert scene.heard.told == [("failed", "edge-1", "The bootstrap token expired before it was used.")]


def narrow(scene: Scene) -> None:
    """Takes the permission to read Secrets, and creates the namespace of the records."""
    scene.api.put(bootstrap_tokens.RECORDS.rpartition("/")[0], {})
    handle = scene.api.handle

    def guarded(request: httpx2.Request) -> httpx2.Response:
        reads = request.method in {"GET", "PATCH"} and request.url.path.startswith(bootstrap_tokens.SECRETS)
        return refusal(403, "Forbidden") if reads else handle(request)

    scene.api.handle = guarded  # type: ignore[method-assign]
    scene.client = scene.api.client()
    scene.approver = scene.replica()


async def test_token_is_used_once_without_reading_secrets() -> None:
    """The service may not read the Secrets of kube-system, in which are those of others."""
    scene = Scene()
    narrow(scene)
    await scene.mint()
    await scene.send()
    await scene.send("csr-2")
    assert scene.decisions() == APPROVED
    assert scene.decisions("csr-2") == DENIED

    await scene.approver.changed("MODIFIED", scene.has("csr-1", certificate="signed"))
    assert not [path for path in scene.api.objects if "bootstrap-token-" in path]


async def test_expired_token_is_swept_without_reading_secrets() -> None:
    scene = Scene()
    narrow(scene)
    await scene.mint(timedelta(seconds=-1))
    await scene.approver.sweep()

    assert scene.heard.told == [("failed", "edge-1", "The bootstrap token expired before it was used.")]
    assert not [path for path in scene.api.objects if "bootstrap-token-" in path]


async def test_token_created_before_role_was_narrowed_is_used_once(scene: Scene) -> None:
    narrow(scene)
    await scene.send()
    await scene.replica().changed("ADDED", scene.ask("csr-2"))

    assert scene.decisions() == APPROVED
    assert scene.decisions("csr-2") == DENIED


@pytest.mark.parametrize("holder", [None, "edge-2"])
async def test_unknown_token_is_not_adopted_for_another_node(scene: Scene, holder: str | None) -> None:
    """A request with the token of edge-2, or of no node, for the name edge-1."""
    narrow(scene)
    scene.heard.tokens.clear()
    if holder:
        scene.heard.tokens[holder] = scene.token
    await scene.send()

    assert scene.decisions() == DENIED
