"""The status that everyone may read: what is in it, who may write it, how old it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent import public_status, status
from aks_flex_node.agent.cli.status_commands import age_lines, approval_lines, show_status
from aks_flex_node.agent.machine import UNIT_FILE
from aks_flex_node.agent.paths import PUBLIC_STATUS, PUBLIC_STATUS_DIR, STATE_DIR
from aks_flex_node.agent.public_status import MAX_AGE_SECONDS, PUBLISH_SECONDS, StatusPublisher
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import Remove, WriteFile
from aks_flex_node.host.host import UnitState
from aks_flex_node.timestamps import parse_utc
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import empty_host
from tests.unit.agent.config.builders import TOKEN
from tests.unit.agent.daemon.fakes import OLD, FakeHost, settings
from tests.unit.agent.daemon.harness import CHANGED, Life, begun

if TYPE_CHECKING:
    from collections.abc import Iterator

CANARY = "canary-8Q~never-to-be-seen"
AGENT = "aks-flex-node.service"
ACTIVE = {name: UnitState(name, exists=True, active="active") for name in ("kubelet.service", AGENT)}
FOUND: dict[str, Any] = {
    "timestamp": "2026-01-02T03:04:05Z",
    "phase": "NodeJoined",
    "error": None,
    "arc": {"status": "disabled", "principalId": CANARY},
    "vpn": {"status": "disabled"},
    "node": {"name": "edge-1", "status": "Ready", "message": CANARY},
    "versions": {"kubernetes": "1.34.4"},
    "services": {"kubelet": {"active": "active", "enabled": True, "restarts": 0}},
    "certificate": {"expires": "2027-01-01T00:00:00Z", "days": 300.0},
    "daemon": {
        "agent": "running",
        "providerState": "Connected",
        "message": "",
        "since": "",
        "lastPoll": "",
        "configVersion": "7",
        "pending": None,
        "credentials": None,
        "lastJob": {"hint": CANARY},
        "driftFound": 0,
        "agentUpdate": None,
    },
    "drift": [],
    "damaged": [],
    "events": [{"message": CANARY}],
}
NOW = parse_utc(FOUND["timestamp"]).timestamp()


def published(found: dict[str, Any], units: dict[str, UnitState] | None = None) -> RecordedHost:
    host = RecordedHost({UNIT_FILE: "unit", f"{STATE_DIR}/state.json": "{}"}, units=units or ACTIVE)
    public_status.publish(host, found)
    return host


def test_published_status_is_readable_by_all_and_writable_by_root_only() -> None:
    host = published(FOUND)
    file, folder = host.stat(PUBLIC_STATUS), host.stat(PUBLIC_STATUS_DIR)
    assert file
    assert folder
    assert (file.mode, folder.mode) == (0o644, 0o755)


@pytest.mark.parametrize(
    "text",
    [
        f"token {TOKEN} was refused",
        f"https://me:{CANARY}@proxy:3128 does not answer",
        f"GET https://rp.example:8443/configs/{CANARY}#ca=sha256:00 failed",
        f"https://store.example?sig={CANARY}",
        f'"clientSecret": "{CANARY}"',
        f"Authorization: Bearer {CANARY}",
    ],
)
def test_published_status_contains_no_secret(text: str) -> None:
    daemon = {**FOUND["daemon"], "message": text, "pending": {"message": text}, "credentials": text}
    host = published({**FOUND, "error": {"name": "n", "message": text}, "drift": [text], "daemon": daemon})
    content = (host.read(PUBLIC_STATUS) or b"").decode()
    assert CANARY not in content
    assert TOKEN not in content
    assert "edge-1" in content


def test_status_without_root_shows_the_published_status_and_its_age(capsys: pytest.CaptureFixture[str]) -> None:
    found = public_status.read_public(published(FOUND), NOW + 42)
    assert found["ageSeconds"] == 42
    show_status(found)
    shown = capsys.readouterr().out
    assert "edge-1  Ready" in shown
    assert "42 s ago; `sudo aks-flex-node status` shows more" in shown
    assert status.health_problems(found) == public_status.age_problems(found) == []


@pytest.mark.parametrize(
    ("age", "problems"),
    [
        (MAX_AGE_SECONDS, []),
        (MAX_AGE_SECONDS + 1, ["the status is 3 min old: run `sudo aks-flex-node health`"]),
        (3 * 86400, ["the status is 3 d old: run `sudo aks-flex-node health`"]),
        (-50, []),  # the clock was set back
    ],
    ids=str,
)
def test_health_without_root_fails_when_the_status_is_old(age: float, problems: list[str]) -> None:
    assert public_status.age_problems(public_status.read_public(published(FOUND), NOW + age)) == problems


@pytest.mark.parametrize(
    ("stopped", "problem"),
    [
        ("kubelet.service", "kubelet is failed"),
        (AGENT, "the daemon is failed, so nothing manages this node: run `sudo systemctl start aks-flex-node`"),
    ],
)
def test_health_without_root_sees_stopped_services_at_once(stopped: str, problem: str) -> None:
    units = {**ACTIVE, stopped: UnitState(stopped, exists=True, active="failed")}
    found = public_status.read_public(published(FOUND, units), NOW)
    assert status.health_problems(found) == [problem]
    assert (found["daemon"]["providerState"] == "Unknown") is (stopped == AGENT)


@pytest.mark.parametrize("content", [None, "", "[]", '{"timestamp": 5}', '{"timestamp": "soon"}'])
def test_status_that_was_not_published_is_an_error_with_a_remedy(content: str | None) -> None:
    host = RecordedHost({f"{STATE_DIR}/state.json": "{}", **({PUBLIC_STATUS: content} if content else {})})
    with pytest.raises(MachineError) as caught:
        public_status.read_public(host)
    assert (caught.value.name, caught.value.hint) == ("status-not-published", "Run `sudo aks-flex-node status`.")


def test_machine_that_is_not_a_node_has_a_status_without_root(capsys: pytest.CaptureFixture[str]) -> None:
    found = public_status.read_public(RecordedHost({}))
    show_status(found)
    assert "NotStarted" in capsys.readouterr().out
    assert status.health_problems(found)
    assert age_lines(found) == []


def test_full_disk_does_not_fail_the_command_that_publishes() -> None:
    full = RecordedHost()
    full.refuses = lambda action: isinstance(action, WriteFile)
    public_status.publish(full, FOUND)


@pytest.fixture
def life() -> Iterator[Life]:
    one = begun(Life(FakeHost({**settings(secret=OLD), "continuousMonitoring": False})))
    yield one
    one.controller.shut_down()


def test_daemon_publishes_changes_at_once_and_else_every_minute(life: Life) -> None:
    now = [0.0]
    publish = StatusPublisher(lambda: now[0])

    def written() -> dict[str, Any] | None:
        publish(life.session, None)
        content = life.host.read(PUBLIC_STATUS)
        life.host.apply(Remove(PUBLIC_STATUS))
        return None if content is None else dict(json.loads(content))

    first = written()
    assert first
    assert (first["node"]["name"], first["node"]["status"]) == ("edge-1", "Ready")
    assert first["daemon"]["configVersion"] == "1"
    assert OLD not in json.dumps(first)
    now[0] += PUBLISH_SECONDS - 1
    assert written() is None
    life.drift = (CHANGED,)
    life.waits(1000)
    changed = written()
    assert changed
    assert changed["drift"] == [f"{CHANGED.component}: {CHANGED.description}"]
    now[0] += PUBLISH_SECONDS
    assert written() is not None


def test_publishing_creates_the_directory_after_a_reboot() -> None:
    host = empty_host()
    public_status.publish(host, FOUND)
    host.apply(Remove(PUBLIC_STATUS))
    host.apply(Remove(PUBLIC_STATUS_DIR))
    public_status.publish(host, FOUND)
    assert public_status.read_public(host, NOW)["phase"] == "NodeJoined"


def test_status_says_that_the_machine_waits_for_an_approval() -> None:
    assert approval_lines(None) == []
    [(name, text)] = approval_lines({"pid": "7", "fingerprint": "1a2b-3c4d"})
    assert (name, text) == ("approval", "waiting (process 7); the key has the fingerprint 1a2b-3c4d")
