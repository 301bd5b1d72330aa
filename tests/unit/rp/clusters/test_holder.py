"""A cluster has one resource provider, and a second one is told so."""

from __future__ import annotations

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.clusters import holder
from aks_flex_rp.clusters.holder import ClusterHolder
from tests.unit.rp.clusters.fakes import FakeApi, refusal

SERVER = "https://api.example.com"
OURS = ClusterHolder("ours", "/clusters/plant")
THEIRS = ClusterHolder("theirs", "/clusters/other")


async def test_mark_is_written_read_and_removed_by_its_provider_alone() -> None:
    api = FakeApi()
    async with api.client() as client:
        assert await holder.read_holder(client) is None
        await holder.write_holder(client, OURS)
        assert await holder.read_holder(client) == OURS

        await holder.remove_holder(client, "theirs")
        assert await holder.read_holder(client) == OURS
        await holder.remove_holder(client, "ours")
        assert await holder.read_holder(client) is None


async def test_cluster_that_hides_the_mark_is_used_as_before() -> None:
    api = FakeApi()
    api.answers[f"GET {holder.MARK}"] = lambda _: refusal(403, "Forbidden")
    async with api.client() as client:
        assert await holder.read_holder(client) is None


@pytest.mark.parametrize(
    ("found", "others", "error"),
    [
        (None, [], None),
        (OURS, [], None),
        (OURS, [("/clusters/far", {"server_url": "https://far.example.com", "holder": "far"})], None),
        (THEIRS, [], "cluster-already-managed"),
        (
            THEIRS,
            [("/clusters/other", {"server_url": "https://vpn.example.com", "holder": "theirs"})],
            "cluster-already-added",
        ),
        (None, [("/clusters/other", {"server_url": SERVER})], "cluster-already-added"),
    ],
)
def test_cluster_with_another_provider_or_id_is_refused(
    found: ClusterHolder | None, others: list[tuple[str, dict[str, str]]], error: str | None
) -> None:
    if error is None:
        holder.refuse_held_cluster(found, "ours", SERVER, others)
        return
    with pytest.raises(ConfigError) as caught:
        holder.refuse_held_cluster(found, "ours", SERVER, others)
    assert caught.value.name == error
    assert "/clusters/other" in caught.value.message


@pytest.mark.parametrize(("found", "level"), [(None, "warning"), (OURS, "ok"), (THEIRS, "problem")])
async def test_cluster_check_reports_the_provider_of_the_cluster(found: ClusterHolder | None, level: str) -> None:
    api = FakeApi()
    async with api.client() as client:
        if found:
            await holder.write_holder(client, found)
        assert (await holder.check_holder(client, "ours")).level == level


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("https://127.0.0.1:6443", True),
        ("https://localhost:6443", True),
        ("https://[::1]:6443", True),
        ("https://10.0.0.4:6443", False),
        ("https://api.example.com", False),
    ],
)
def test_loopback_address_of_a_cluster_names_the_server_option(url: str, warned: bool) -> None:
    assert ("--server" in holder.loopback_warning(url)) is warned
