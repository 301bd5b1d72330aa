"""Tests of state, events, the lock, and ownership without a ledger."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent import event_log
from aks_flex_node.agent.event_log import EventLog, JournalSink, LogFileSink
from aks_flex_node.agent.ledger_rebuild import find_owned
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import NodeState, Phase
from aks_flex_node.agent.reconcile.resources import (
    MANAGED_MARK,
    Directory,
    File,
    ProgramTree,
    RuntimePath,
    Service,
    Spec,
    Symlink,
)
from aks_flex_node.host.actions import MakeLink, WriteFile
from tests.hosts.recorded import RecordedHost

if TYPE_CHECKING:
    from pathlib import Path

STATE = "/var/lib/x/state.json"


def test_node_state_round_trips_and_is_mode_0600() -> None:
    host = RecordedHost()
    kept = NodeState().with_phase(Phase.NODE_FAILED, step="cni", error="disk-full", message="no room", node="edge-1")
    node_state.write(host, STATE, kept)
    assert host.mode_of(STATE) == 0o600
    assert node_state.read(host, STATE) == kept


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '{"unheard": 1}'])
def test_damaged_node_state_reads_as_not_started(text: str) -> None:
    assert node_state.read(RecordedHost({STATE: text}), STATE) == NodeState()


def test_new_phase_clears_the_error_and_step_of_the_previous_one() -> None:
    failed = NodeState(node="edge-1", pod_cidr="10.0.0.0/24").with_phase(
        Phase.NODE_FAILED, step="cni", error="e", message="m"
    )
    joined = failed.with_phase(Phase.NODE_JOINED)
    assert replace(joined, since="") == NodeState(Phase.NODE_JOINED, node="edge-1", pod_cidr="10.0.0.0/24")


class Heard:
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def __call__(self, level: str, line: str, text: str) -> None:
        self.records.append({**json.loads(line), "told": (level, text)})


@pytest.mark.parametrize(("least", "heard"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_event_log_filters_by_level_but_the_watcher_gets_all_events(least: str, heard: int) -> None:
    sink, watched = Heard(), list[dict[str, Any]]()
    told = EventLog(sink, level=least, watch=watched.append)
    for level in event_log.LEVELS:
        told.emit("event", "it happened", level)
    assert len(sink.records) == heard
    assert len(watched) == 4


def test_events_of_one_command_share_a_request_id() -> None:
    sink = Heard()
    told = EventLog(sink)
    told.emit("one", "first", component="cni")
    told.emit("two", "second")
    assert {record["requestId"] for record in sink.records} == {told.request_id}
    assert sink.records[0]["component"] == "cni"
    assert EventLog().request_id != told.request_id


def test_failing_event_sink_does_not_stop_the_others() -> None:
    def full(level: str, line: str, text: str) -> None:
        raise OSError("no space left")

    sink = Heard()
    EventLog(full, sink).emit("event", "it happened")
    assert len(sink.records) == 1


def test_log_file_is_mode_0640(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    before = os.umask(0)
    try:
        LogFileSink(str(log))("info", '{"a": 1}', "")
    finally:
        os.umask(before)
    assert stat.S_IMODE(log.stat().st_mode) == 0o640
    assert log.read_text() == '{"a": 1}\n'


def test_large_log_file_is_rotated_once(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    with log.open("wb") as file:
        file.truncate(event_log.MAX_LOG_BYTES + 1)
    sink = LogFileSink(str(log))
    sink("info", "{}", "")
    sink("info", "{}", "")
    assert log.read_text() == "{}\n{}\n"
    assert (tmp_path / "agent.log.1").stat().st_size == event_log.MAX_LOG_BYTES + 1


def test_log_file_symlink_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "agent.log").symlink_to(tmp_path / "elsewhere")
    EventLog(LogFileSink(str(tmp_path / "agent.log"))).emit("event", "it happened")
    assert not (tmp_path / "elsewhere").exists()


def test_last_events_skip_unreadable_lines(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    log.write_bytes(b'{"event": 1}\n{"event": 2}\n{"cut off\n5\n\xff\n{"event": 3}\n')
    assert event_log.read_last(str(log), 10) == [{"event": 1}, {"event": 2}, {"event": 3}]
    assert event_log.read_last(str(log), 1) == [{"event": 3}]
    assert event_log.read_last(str(tmp_path / "none"), 5) == []


def test_journal_sink_sends_one_datagram_with_priority_and_event(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        JournalSink(str(tmp_path / "journal"))("warning", '{"event": "x"}', "two\nlines")
        fields = journal.recv(4096).decode()
    assert fields == ('PRIORITY=4\nSYSLOG_IDENTIFIER=aks-flex-node\nMESSAGE=two lines\nFLEX_EVENT={"event": "x"}\n')


def test_hanging_journal_is_waited_for_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        sink, start = JournalSink(str(tmp_path / "journal"), 0.05), time.monotonic()
        for _ in range(2000):  # more than the queue of a socket without a reader
            sink("info", "{}", "x" * 1000)
    assert time.monotonic() - start < 60  # a wait for each would take 100 seconds


def test_missing_journal_does_not_fail_events(tmp_path: Path) -> None:
    seen: list[str] = []
    log = EventLog(JournalSink(str(tmp_path / "none")), lambda _level, _document, message: seen.append(message))
    log.emit("event", "it happened")
    assert seen == ["it happened"]


INSTALL = "/opt/flex"
SPEC = Spec(
    (
        Directory("/opt/flex/x", ours=True),
        Directory("/var/lib/x", ours=True),
        Directory("/etc/x"),
        RuntimePath("/run/x"),
        ProgramTree("/opt/flex/x/1", "x", "1", ()),
        Symlink("/usr/bin/x", "/opt/flex/x/1/bin/x"),
        File("/etc/x/x.conf", b"wanted"),
        Service("x.service", (), ""),
    )
)
UNIT = "/etc/systemd/system/x.service"


def test_marked_files_and_their_data_are_owned_without_a_ledger() -> None:
    host = RecordedHost(
        {UNIT: f"# {MANAGED_MARK}\n", "/etc/x/x.conf": f"# {MANAGED_MARK}", "/var/lib/x/image": "", "/run/x/s": ""}
    )
    owned = find_owned(host, SPEC, INSTALL)
    assert set(owned.paths) == {"/etc/x", "/etc/x/x.conf", "/var/lib/x", "/run/x"}
    assert [path for path, record in owned.paths.items() if record.get("ours")] == ["/var/lib/x", "/run/x"]
    assert set(owned.services) == {"x.service"}


def test_foreign_files_are_not_owned_without_a_ledger() -> None:
    host = RecordedHost({UNIT: "[Unit]", "/etc/x/x.conf": "theirs", "/var/lib/x/image": "", "/usr/bin/x": "theirs"})
    host.apply(MakeLink("/usr/bin/x", "/usr/lib/x"))
    assert find_owned(host, SPEC, INSTALL).empty


def test_installed_programs_and_links_are_owned_without_a_ledger() -> None:
    host = RecordedHost({"/opt/flex/x/1/bin/x": "", "/opt/flex/x/0/bin/x": ""})
    host.apply(MakeLink("/usr/bin/x", "/opt/flex/x/0/bin/x"))
    owned = find_owned(host, SPEC, INSTALL)
    assert owned.paths["/opt/flex/x/1"]["kind"] == "program"
    assert owned.paths["/usr/bin/x"]["kind"] == "link"
    assert owned.paths["/opt/flex/x"]["ours"]


def test_directory_with_a_marked_file_is_owned_without_a_ledger() -> None:
    host = RecordedHost({"/var/lib/x/key.pem": "secret", "/var/lib/x/x.yaml": f"# {MANAGED_MARK}"})
    host.apply(WriteFile("/var/lib/x/key.pem", b"secret", 0o600))
    assert find_owned(host, SPEC, INSTALL).paths["/var/lib/x"]["ours"]
