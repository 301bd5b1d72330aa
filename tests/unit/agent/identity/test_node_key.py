"""Tests of the node key on the disk: two files, damage, and the age of a key."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from aks_flex_node.agent.identity.node_key import ROTATION_SECONDS, NodeKeyStore, new_key
from aks_flex_node.agent.paths import NODE_KEY, NODE_KEY_COPY, STATE_DIR
from aks_flex_node.api.node_keys import public_key
from aks_flex_node.host.actions import MakeDirectory, Remove, WriteFile, aside_path
from aks_flex_node.timestamps import format_utc
from tests.unit.agent.builders import empty_host

if TYPE_CHECKING:
    from tests.hosts.recorded import RecordedHost


def machine() -> RecordedHost:
    host = empty_host()
    host.apply(MakeDirectory(STATE_DIR, 0o700))
    return host


def test_key_is_made_once_and_kept() -> None:
    store = NodeKeyStore(machine())
    assert store.read() is None
    key = store.ensure()
    assert store.ensure() == key == store.read()
    assert public_key(key.private_key).thumbprint == key.thumbprint
    assert not key.is_bound
    assert "PRIVATE" not in repr(key)


@pytest.mark.parametrize("path", [NODE_KEY, NODE_KEY_COPY])
@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"null", b"\xff", b"{", b'{"digest": 1, "revision": 1}', None])
def test_one_damaged_file_never_loses_the_key(path: str, damage: bytes | None) -> None:
    host = machine()
    key = NodeKeyStore(host).ensure()
    host.apply(Remove(path) if damage is None else WriteFile(path, damage))

    assert NodeKeyStore(host).read() == key
    assert NodeKeyStore(host).ensure() == key

    assert host.read(NODE_KEY) == host.read(NODE_KEY_COPY)
    assert (host.read(aside_path(path)) is None) is (damage is None)


@pytest.mark.parametrize("name", ["privateKey", "thumbprint", "audience", "revision"])
def test_changed_content_counts_as_damage(name: str) -> None:
    host = machine()
    key = NodeKeyStore(host).ensure()
    document = json.loads(host.read(NODE_KEY) or b"")
    host.apply(WriteFile(NODE_KEY, json.dumps({**document, name: 9 if name == "revision" else "other"}).encode()))
    assert NodeKeyStore(host).read() == key


def test_newest_file_wins_after_an_interrupted_write() -> None:
    host = machine()
    store = NodeKeyStore(host)
    store.ensure()
    earlier = host.read(NODE_KEY_COPY) or b""
    store.bind("aks-flex-rp:x")
    host.apply(WriteFile(NODE_KEY_COPY, earlier))
    found = store.read()
    assert found is not None
    assert found.audience == "aks-flex-rp:x"


def test_key_is_due_for_rotation_after_a_year_or_an_interrupted_one() -> None:
    now = time.time()
    fresh = new_key(now)
    old = replace(fresh, created=format_utc(now - ROTATION_SECONDS))
    assert not fresh.is_rotation_due(now)
    assert old.is_rotation_due(now)
    assert replace(fresh, next=new_key(now)).is_rotation_due(now)
    assert not replace(fresh, created="never").is_rotation_due(now)
