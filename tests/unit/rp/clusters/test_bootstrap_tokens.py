"""Tests of the sweep of bootstrap tokens: expired, unused and orphaned ones."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest

from aks_flex_node.timestamps import format_utc, parse_utc
from aks_flex_rp.clusters import bootstrap_tokens
from tests.unit.rp.clusters.builders import in_loop
from tests.unit.rp.clusters.fakes import merged
from tests.unit.rp.clusters.harness import Scene


@in_loop
async def test_tokens_are_not_listed_when_nothing_is_pending() -> None:
    scene = Scene()
    await scene.mint()
    await scene.approver.clean_up()
    await scene.approver.changed("ADDED", scene.ask())
    await scene.approver.clean_up()

    assert f"GET {bootstrap_tokens.SECRETS}" not in scene.api.calls


@in_loop
async def test_sweep_deletes_only_orphaned_tokens_without_reporting() -> None:
    scene = Scene()
    await scene.mint()
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


@in_loop
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


@in_loop
async def test_expired_token_deleted_by_cluster_is_reported_as_failed() -> None:
    scene = Scene()
    await scene.mint(timedelta(seconds=1))
    await scene.approver.sweep()
    path = f"{bootstrap_tokens.SECRETS}/bootstrap-token-{scene.token}"
    expires = parse_utc(scene.api.objects[path]["metadata"]["annotations"][bootstrap_tokens.EXPIRES])
    del scene.api.objects[path]
    while datetime.now(timezone.utc) < expires:
        await asyncio.sleep(0.05)
    await scene.approver.sweep()
    await scene.approver.sweep()

    assert scene.heard.told == [("failed", "edge-1", "The bootstrap token expired before it was used.")]
