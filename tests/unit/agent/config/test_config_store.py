"""Tests of the config store: related files are written together, also after a crash."""

from __future__ import annotations

import json

import pytest

from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.remote import ConfigBundle
from aks_flex_node.agent.paths import (
    APPLIED_CONFIG,
    CONFIG_COPY,
    CONFIG_JOURNAL,
    CONFIG_VERSION_FILE,
    CURRENT_CONFIG,
    NEXT_CONFIG,
)
from aks_flex_node.api import config_urls
from aks_flex_node.host.actions import MakeDirectory, Remove, SetAside, WriteFile
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import config_of
from tests.unit.agent.config.builders import TOKEN

OLD, NEW = b'{"config": {}, "configVersion": "1"}', b'{"config": {}, "configVersion": "2"}'


@pytest.fixture
def updating() -> RecordedHost:
    return RecordedHost({CURRENT_CONFIG: OLD, CONFIG_VERSION_FILE: b"1\n", APPLIED_CONFIG: b"{}", NEXT_CONFIG: NEW})


def settle(host: RecordedHost) -> None:
    config_store.commit_update(host, ConfigBundle(NEW.decode(), "2"), config_of(), NEW)


def kept(host: RecordedHost) -> tuple[bytes | None, bytes | None, bool]:
    return host.read(CURRENT_CONFIG), host.read(CONFIG_VERSION_FILE), host.stat(NEXT_CONFIG) is not None


@pytest.mark.parametrize("at", range(6))
def test_interrupted_config_switch_ends_with_all_old_or_all_new_files(updating: RecordedHost, at: int) -> None:
    updating.refuses, updating.failure = lambda _: len(updating.done) == at, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        settle(updating)
    updating.refuses = None
    config_store.finish_interrupted(updating)
    assert kept(updating) == ((OLD, b"1\n", True) if at == 0 else (NEW, b"2\n", False))
    assert (updating.read(APPLIED_CONFIG) == b"{}") is (at == 0)
    assert updating.stat(CONFIG_JOURNAL) is None


def test_newer_pending_config_survives_a_config_switch(updating: RecordedHost) -> None:
    updating.apply(WriteFile(NEXT_CONFIG, b"newer", 0o600))
    settle(updating)
    assert kept(updating) == (NEW, b"2\n", True)


def test_pending_config_is_dropped_when_a_new_config_is_fetched(updating: RecordedHost) -> None:
    config_store.save_fetched(
        updating, ConfigBundle(NEW.decode(), "2"), config_urls.parse("https://rp.example/configs/a")
    )
    assert kept(updating) == (NEW, b"2\n", False)


def test_config_files_are_mode_0600_and_marked_secret(updating: RecordedHost) -> None:
    settle(updating)
    written = [one for one in updating.done if isinstance(one, WriteFile)]
    assert {one.mode for one in written} == {0o600}
    assert all(one.secret for one in written if one.path in {CURRENT_CONFIG, CONFIG_COPY, CONFIG_JOURNAL})


def test_copy_is_written_together_with_the_configuration(updating: RecordedHost) -> None:
    settle(updating)
    assert updating.read(CONFIG_COPY) == updating.read(CURRENT_CONFIG) == NEW


def test_applied_config_is_stored_without_secrets() -> None:
    config = config_of({"proxy.https": "http://me:secret@proxy:3128", "node.maxPods": 5})
    text = config_store.applied_config_text(config)
    assert TOKEN not in text
    assert "secret" not in text
    assert json.loads(text)["config"]["node"]["maxPods"] == 5


WRONG_TYPE = b'{"files": {"/etc/x": {}}, "pending_digest": ""}'
DAMAGED = (b"", b"\0" * 40, OLD[:-5], b"[]", b'{"config": 1}')


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_configuration_is_restored_from_its_copy(content: bytes) -> None:
    host = RecordedHost({CURRENT_CONFIG: OLD})
    config_store.keep_copy(host)
    host.apply(WriteFile(CURRENT_CONFIG, content, 0o600))
    config_store.keep_copy(host)  # a damaged one is not copied
    assert config_store.restore_damaged(host)
    assert host.read(CURRENT_CONFIG) == OLD
    assert not config_store.restore_damaged(host)


def test_configuration_of_a_machine_that_has_left_is_not_restored() -> None:
    host = RecordedHost({CURRENT_CONFIG: OLD})
    config_store.keep_copy(host)
    host.apply(Remove(CURRENT_CONFIG))
    assert not config_store.restore_damaged(host)
    assert host.stat(CURRENT_CONFIG) is None


def test_configuration_that_was_set_aside_is_restored_after_a_crash() -> None:
    host = RecordedHost({CURRENT_CONFIG: b"damaged", CONFIG_COPY: OLD})
    host.apply(SetAside(CURRENT_CONFIG))
    assert config_store.exists(host)
    assert config_store.restore_damaged(host)
    assert host.read(CURRENT_CONFIG) == OLD


def test_directory_in_place_of_the_copy_does_not_stop_an_update(updating: RecordedHost) -> None:
    updating.apply(MakeDirectory(CONFIG_COPY))
    settle(updating)
    assert updating.read(CONFIG_COPY) == NEW


@pytest.mark.parametrize("copy", [b"", b"garbage"])
def test_damaged_copy_does_not_replace_a_damaged_configuration(copy: bytes) -> None:
    host = RecordedHost({CURRENT_CONFIG: b"damaged", CONFIG_COPY: copy})
    assert not config_store.restore_damaged(host)
    assert host.read(CURRENT_CONFIG) == b"damaged"


@pytest.mark.parametrize(
    "content", [b"", b"\0\xff", b"[]", b'{"files": 3, "pending_digest": ""}', b'{"files": {}}', WRONG_TYPE]
)
def test_damaged_journal_is_set_aside(content: bytes) -> None:
    host = RecordedHost({CURRENT_CONFIG: OLD, CONFIG_JOURNAL: content})
    config_store.finish_interrupted(host)
    assert (host.read(CURRENT_CONFIG), host.stat(CONFIG_JOURNAL)) == (OLD, None)
    assert host.read(f"{CONFIG_JOURNAL}.damaged") == content
