"""Tests of the config store: related files are written together, also after a crash."""

from __future__ import annotations

import json

import pytest

from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.remote import ConfigBundle
from aks_flex_node.agent.paths import APPLIED_CONFIG, CONFIG_VERSION_FILE, CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.api import config_urls
from aks_flex_node.host.actions import Action, WriteFile
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import config_of
from tests.unit.agent.config.builders import TOKEN

OLD, NEW = b'{"config": {}, "configVersion": "1"}', b'{"config": {}, "configVersion": "2"}'


class CrashingHost(RecordedHost):
    """A host that raises before the given action."""

    def __init__(self, at: int) -> None:
        super().__init__({CURRENT_CONFIG: OLD, CONFIG_VERSION_FILE: b"1\n", APPLIED_CONFIG: b"{}", NEXT_CONFIG: NEW})
        self.at = at

    def apply(self, action: Action) -> None:
        if len(self.done) == self.at:
            raise KeyboardInterrupt
        super().apply(action)


def settle(host: RecordedHost) -> None:
    config_store.commit_update(host, ConfigBundle(NEW.decode(), "2"), config_of(), NEW)


def kept(host: RecordedHost) -> tuple[bytes | None, bytes | None, bool]:
    return host.read(CURRENT_CONFIG), host.read(CONFIG_VERSION_FILE), host.stat(NEXT_CONFIG) is not None


@pytest.mark.parametrize("at", range(6))
def test_interrupted_config_switch_ends_with_all_old_or_all_new_files(at: int) -> None:
    host = CrashingHost(at)
    with pytest.raises(KeyboardInterrupt):
        settle(host)
    host.at = -1
    config_store.finish_interrupted(host)
    assert kept(host) == ((OLD, b"1\n", True) if at == 0 else (NEW, b"2\n", False))
    assert (host.read(APPLIED_CONFIG) == b"{}") is (at == 0)
    assert host.stat(config_store.JOURNAL_FILE) is None


def test_newer_pending_config_survives_a_config_switch() -> None:
    host = CrashingHost(-1)
    host.apply(WriteFile(NEXT_CONFIG, b"newer", 0o600))
    settle(host)
    assert kept(host) == (NEW, b"2\n", True)


def test_pending_config_is_dropped_when_a_new_config_is_fetched() -> None:
    host = CrashingHost(-1)
    config_store.save_fetched(
        host, ConfigBundle(NEW.decode(), "2"), config_urls.parse("https://rp.example/configs/a")
    )
    assert kept(host) == (NEW, b"2\n", False)


def test_config_files_are_mode_0600_and_marked_secret() -> None:
    host = CrashingHost(-1)
    settle(host)
    written = [one for one in host.done if isinstance(one, WriteFile)]
    assert {one.mode for one in written} == {0o600}
    assert all(one.secret for one in written if one.path in {CURRENT_CONFIG, config_store.JOURNAL_FILE})


def test_finish_interrupted_is_idempotent() -> None:
    host = CrashingHost(-1)
    settle(host)
    host.done.clear()
    config_store.finish_interrupted(host)
    assert host.done == []


def test_applied_config_is_stored_without_secrets() -> None:
    config = config_of({"proxy.https": "http://me:secret@proxy:3128", "node.maxPods": 5})
    text = config_store.applied_config_text(config)
    assert TOKEN not in text
    assert "secret" not in text
    assert json.loads(text)["config"]["node"]["maxPods"] == 5
