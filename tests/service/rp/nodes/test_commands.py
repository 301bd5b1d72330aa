"""Tests of PUTs that change nothing and of avoided store reads, on a real store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.service.rp.nodes.harness import Site

ROME: dict[str, Any] = {"nodeConfig": {"labels": {"site": "rome"}}}


async def test_a_put_with_the_same_body_is_a_new_version_that_changes_nothing(site: Site) -> None:
    first, second = await site.put(**ROME), await site.put(**ROME)

    assert (first.created, second.created) == (True, False)
    assert second.node.version == first.node.version + 1, "also within the same second"
    assert second.node.properties == first.node.properties
    assert second.node.created == first.node.created
    assert (await site.store.audit())[0].detail["changed"] == {}


async def test_only_a_first_write_with_a_url_looks_for_a_deleted_node(site: Site) -> None:
    await site.put()
    await site.put(url=True)
    assert site.store.lookups == 0, "the node itself has the version"

    await site.delete()
    await site.put(url=True)
    assert site.store.lookups == 1


async def test_a_node_made_again_in_the_same_second_gets_a_higher_version(site: Site) -> None:
    first = await site.put()
    await site.delete()

    again = await site.put()

    assert again.created
    assert site.store.lookups == 1, "the store refused it once, and then it was looked for"
    assert again.node.version > first.node.version
