"""Tests of the lookup of node keys: which failures stop it, and which keys it remembers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aks_flex_rp.api.authorization import NodeKeyLookup
from aks_flex_rp.auth.auth_errors import TooManyFailures
from aks_flex_rp.auth.auth_settings import LimitSettings
from aks_flex_rp.auth.node_assertions import KnownNode, SignedAssertion
from aks_flex_rp.auth.rate_limit import RateLimiter
from aks_flex_rp.node_keys import NodeKeys

SITE = "198.51.100.7"
NODE = ("cluster", "edge-1")


class StoreFailedError(Exception):
    pass


class Scene:
    """A node whose keys are in the store only, and a client at the same address that has no valid key."""

    def __init__(self) -> None:
        self.fails, self.keys = False, NodeKeys("own")
        self.limits = RateLimiter(LimitSettings(), clock=lambda: 0.0)
        poll_cache = SimpleNamespace(cached=lambda _: None, refresh=self.refresh)
        clusters = SimpleNamespace(find=self.find_cluster)
        self.lookup = NodeKeyLookup(cast("Any", clusters), cast("Any", poll_cache), self.limits)

    async def find_cluster(self, _: str) -> Any:
        return SimpleNamespace(key_audience="audience")

    async def refresh(self, _: Any) -> Any:
        if self.fails:
            raise StoreFailedError
        return SimpleNamespace(keys=self.keys)

    def find(self, key: str) -> KnownNode | None:
        return asyncio.run(self.lookup.find(SignedAssertion(NODE, key, "audience", SITE)))

    def exhaust(self) -> None:
        with suppress(TooManyFailures):
            while True:
                self.find("unknown")


def test_invalid_urls_do_not_stop_nodes_of_the_same_address() -> None:
    """Someone at a site sends invalid URLs without pause after a restart of the provider."""
    scene = Scene()
    while not scene.limits.acquire(f"address {SITE}", "read"):
        pass
    assert scene.find("own") == KnownNode("audience", scene.keys)


def test_key_that_was_found_is_known_after_a_failure_of_the_store() -> None:
    scene = Scene()
    scene.find("own")
    scene.fails = True
    with pytest.raises(StoreFailedError):
        scene.find("own")
    scene.fails = False
    scene.exhaust()
    assert scene.find("own") is not None


def test_key_that_a_node_has_no_more_is_forgotten() -> None:
    scene = Scene()
    scene.find("own")
    scene.keys = NodeKeys("other")
    scene.find("own")
    scene.exhaust()
    with pytest.raises(TooManyFailures):
        scene.find("own")
