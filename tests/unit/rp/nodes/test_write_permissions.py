"""The authorization matrix: what only an owner can change, for each setting of the table, place and kind of change.

The tests of `tests/service/rp/api/test_write_permissions.py` show that each write path asks these functions, and that
owners are not asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from aks_flex_node.settings.api import POOL_NAME, ApiSetting, api_settings
from aks_flex_node.settings.setting import CLUSTER, CONTRIBUTOR, FILES, IMAGES, ISOLATION, OWNER, PROGRAMS
from aks_flex_rp.nodes.write_permissions import IDENTITY, node_changes, owner_changes, owner_settings
from aks_flex_rp.resource.properties import Properties
from aks_flex_rp.resource.validation import DesiredNode, PoolTemplate, stay_in_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

Document = dict[str, Any]
Change = Literal["set", "change", "remove", "bring back"]
CHANGES: tuple[Change, ...] = ("set", "change", "remove", "bring back")
OTHER = "another value"
SETTINGS = {path: entry for path, entry in api_settings().items() if path != POOL_NAME}
JOIN_METHOD = "kubernetesAuth.method"
EXEC: Document = {"kubernetesAuth": {"method": "exec"}}


def document(entry: ApiSetting, value: object) -> Document:
    """Returns properties with one value; none if it is None."""
    found: Any = value
    for name in reversed(entry.steps):
        found = {name: found}
    return {} if value is None else found


def values(entry: ApiSetting, change: Change) -> tuple[Document, Document]:
    """Returns the properties before and after a change. Brought back is what an owner has replaced."""
    value = entry.setting.owner_value or "a value"
    pairs: dict[Change, tuple[object, object]] = {
        "set": (None, value),
        "change": (OTHER, value),
        "remove": (value, None),
        "bring back": ([], value),
    }
    before, after = pairs[change]
    return document(entry, before), document(entry, after)


def needs_owner(entry: ApiSetting, change: Change) -> bool:
    return entry.setting.who == OWNER or (bool(entry.setting.owner_value) and change != "remove")


def single(own: Document) -> DesiredNode:
    return DesiredNode(Properties(own))


def member(template: Document, own: Document | None = None, pool: str = "p", revision: int = 1) -> DesiredNode:
    return stay_in_pool(own or {}, PoolTemplate(pool, revision, template))


def asked(before: DesiredNode | None, after: DesiredNode, *, new_identity: bool = False) -> set[str]:
    return set(node_changes(before, after, new_identity=new_identity)) - {IDENTITY}


def places(before: Document, after: Document) -> Iterator[tuple[str, set[str]]]:
    """Yields what needs an owner in each place in which a value can be changed."""
    yield "node", asked(single(before), single(after))
    yield "node of a pool", asked(member({}, before), member({}, after))
    yield (
        "template of a pool, or revision that a roll-out, a reversal or an apply gives",
        {*owner_changes(before, after)},
    )
    if not before:
        yield "new node", asked(None, single(after))
        yield "new node of a pool", asked(None, member({}, after))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("path", SETTINGS)
def test_only_owners_change_what_the_table_gives_them(path: str, change: Change) -> None:
    expected = {path} if needs_owner(SETTINGS[path], change) else set()
    for place, needed in places(*values(SETTINGS[path], change)):
        assert needed == expected, place


@pytest.mark.parametrize("path", SETTINGS)
def test_value_that_stays_needs_no_owner(path: str) -> None:
    _, value = values(SETTINGS[path], "set")
    for place, needed in places(value, value):
        assert needed == set(), place
    assert asked(member(value), member(value)) == set(), "the release of a machine writes what the node has"


@pytest.mark.parametrize("path", SETTINGS)
def test_node_moves_with_a_value_of_an_owner(path: str) -> None:
    """A template's value is an owner's decision. That another pool has none is no decision about this node."""
    entry = SETTINGS[path]
    _, value = values(entry, "set")
    lost = {path} if entry.setting.who == OWNER else set()
    assert asked(None, member(value)) == set(), "an enrolment"
    assert asked(single({}), member(value)) == set(), "into the pool"
    assert asked(member(value), member(value, pool="q")) == set(), "to another pool with the same value"
    assert asked(member(value), member({}, pool="q")) == lost, "to a pool without it"
    assert asked(member(value), single({})) == lost, "out of the pool"
    assert asked(member(value), member({}, revision=2)) == set(), "an apply of what the owner has decided"
    assert asked(single(value), member({})) == lost, "an own value is not lost in a pool"


@pytest.mark.parametrize("value", [1, 1.0, "true"])
def test_value_of_an_owner_is_compared_as_json(value: object) -> None:
    """Python takes true for 1, but the kubelet does not start with a number in place of true."""
    entry = SETTINGS["nodeConfig.kubelet.extraConfig"]
    before, after = (document(entry, {"cpuCFSQuota": each}) for each in (True, value))
    assert list(owner_changes(before, after)) == [entry.path]


def test_safer_join_method_needs_no_owner() -> None:
    safer = document(SETTINGS[JOIN_METHOD], "certificate")
    assert set(node_changes(single(EXEC), single(safer), new_identity=True)) == set()


def test_identity_of_a_node_that_joins_by_exec_needs_an_owner() -> None:
    """The contributor's own application would be bound to the role of exec nodes at its first report."""
    node = single(EXEC)
    assert list(node_changes(node, node, new_identity=True)) == [IDENTITY]
    assert list(node_changes(node, node, new_identity=False)) == []
    for before in (single({}), member({}, pool="q"), None):
        for identity in (True, False):
            assert IDENTITY in node_changes(before, member(EXEC), new_identity=identity)
    token = single(document(SETTINGS[JOIN_METHOD], "bootstrapToken"))
    assert list(node_changes(node, token, new_identity=True)) == []


def test_contributors_set_nothing_that_could_cost_more_than_their_nodes() -> None:
    """A change of the table that gives contributors more must be one of this list as well."""
    dangerous = {PROGRAMS, IMAGES, FILES, CLUSTER, ISOLATION}
    open_to_contributors = {
        path: entry.setting.reaches
        for path, entry in SETTINGS.items()
        if entry.setting.reaches in dangerous and entry.setting.who == CONTRIBUTOR
    }
    assert open_to_contributors == {"nodeConfig.kubelet.podPidsLimit": ISOLATION}, "a number with bounds"
    assert {each.path for each in owner_settings()} == {
        "nodeConfig.artifacts.baseURL",
        "nodeConfig.registryMirrors",
        "nodeConfig.kubelet.extraConfig",
        "nodeConfig.kubelet.serverURL",
        JOIN_METHOD,
    }
    assert {entry.setting.who for entry in SETTINGS.values()} == {OWNER, CONTRIBUTOR}
