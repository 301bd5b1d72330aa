"""Tests of the formats of times and nodes."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from aks_flex_node.api.node_summary import time_ago
from aks_flex_node.errors import CommandUsageError
from aks_flex_rp.cli import parse_since
from aks_flex_rp.cli.output import format_events, format_node, format_nodes, format_rows, with_command_name

NOW = datetime(2026, 5, 10, 12, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("30m", "2026-05-10T11:30:00.000000Z"),
        ("7d", "2026-05-03T12:00:00.000000Z"),
        ("2026-05-01", "2026-05-01T00:00:00.000000Z"),
        ("2026-05-01T14:00:00+02:00", "2026-05-01T12:00:00.000000Z"),
        ("2026-05-01T12:00Z", "2026-05-01T12:00:00.000000Z"),
    ],
)
def test_since_accepts_age_or_timestamp(text: str, meant: str) -> None:
    assert parse_since(text, NOW) == meant


@pytest.mark.parametrize("text", ["yesterday", "5x", "-3d", "2026-13-01"])
def test_invalid_since_value_is_refused(text: str) -> None:
    with pytest.raises(CommandUsageError):
        parse_since(text, NOW)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-5, "0 s ago"), (119, "119 s ago"), (120, "2 min ago"), (7200, "2 h ago"), (10**6, "11 d ago")],
)
def test_age_is_formatted_in_one_unit(seconds: int, said: str) -> None:
    assert time_ago("2026-05-10T12:00:00Z", NOW.timestamp() + seconds) == said


def test_node_that_never_reported_is_listed_with_placeholders() -> None:
    created = {"name": "edge-1", "properties": {"status": {"joinState": "Created"}}}

    assert format_nodes([created]).splitlines()[1].split() == ["edge-1", "Unknown", "Created", "-", "never", "-"]


def node(**properties: object) -> dict[str, object]:
    return {"name": "edge-1", "id": "/x", "properties": {"configVersion": "1", **properties}}


CONDITIONS = [
    {"type": "ConfigApplied", "status": "True", "reason": "Applied"},
    {"type": "Drifted", "status": "False"},
]
MACHINE = {"id": "0123", "hostName": "press-4", "address": "10.0.0.4", "os": "Debian 13"}
WINDOW = {"days": ["Sunday"], "start": "22:00", "timeZone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("properties", "lines"),
    [
        (
            {"nodeConfig": {"updatePolicy": {"maintenanceWindow": WINDOW}}},
            {"setting": 'nodeConfig.updatePolicy.maintenanceWindow.days ["Sunday"]'},
        ),
        ({"status": {"conditions": CONDITIONS}}, {"condition": "ConfigApplied is True (Applied)"}),
        (
            {"status": {"machine": MACHINE}},
            {"machine": "press-4 (10.0.0.4, Debian 13)", "machine ID": "0123"},
        ),
        (
            {"status": {"nodeKey": {"fingerprint": "1a2b-3c4d", "state": "Bound"}}},
            {"node key": "1a2b-3c4d (bound)"},
        ),
        (
            {"effective": {"versions": {"runc": "1.3.0"}}, "origins": {"versions.runc": "default"}},
            {"setting": "versions.runc 1.3.0 (default)"},
        ),
    ],
)
def test_node_output_shows_properties_and_status(properties: dict[str, object], lines: dict[str, str]) -> None:
    lines_of = format_node(node(**properties)).splitlines()
    shown = {line[:15].rstrip(): line[15:] for line in reversed(lines_of)}
    assert {name: shown.get(name, "") for name in lines} == lines


def test_failed_update_is_visible_in_node_show_and_list() -> None:
    failed = {"type": "ConfigApplied", "status": "False", "reason": "DiskFull", "message": "The disk is full."}
    ready = {"type": "Ready", "status": "True"}
    found = node(status={"joinState": "Joined", "conditions": [ready, failed]})

    assert (
        format_node(found).splitlines()[-1] == "condition      ConfigApplied is False (DiskFull: The disk is full.)"
    )
    assert format_nodes([found]).splitlines()[1].endswith("ConfigApplied=False (DiskFull)")


def test_printed_commands_use_name_of_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Run `aks-flex-rp node list`. The user is aks-flex-rp."

    assert with_command_name(text) == text
    monkeypatch.setenv("AKS_FLEX_RP_COMMAND", "aks-flex-lab --lab x rp")
    assert with_command_name(text) == "Run `aks-flex-lab --lab x rp node list`. The user is aks-flex-rp."


def test_audit_output_contains_no_control_characters() -> None:
    event = {
        "at": "2026-02-26T15:30:45Z",
        "who": "bearer of the URL",
        "what": "node.joinFailed",
        "outcome": "ok",
        "resource": "/x/edge-1",
        "source": "",
        "detail": {"why": "\x1b[2Jcleared"},
    }
    assert "\x1b" not in format_events([event])


def test_audit_output_shows_facts_of_a_machine_shortened() -> None:
    facts = {"hostname": "pump-7", "serialNumber": "", "os": "x" * 80, "macAddresses": ["00:00:5e:00:53:01"]}
    event = {
        "at": "2026-02-26T15:30:45Z",
        "who": "ops",
        "what": "machine.approved",
        "outcome": "ok",
        "resource": "/x/k7m2p9xq",
        "source": "",
        "detail": {"facts": facts, "before": {"versions": {}}},
    }
    shown = format_events([event])

    assert f"facts=hostname:pump-7 os:{'x' * 35}… macAddresses:00:00:5e:00:53:01, before=versions" in shown


def test_node_list_has_pools_only_if_a_node_has_one() -> None:
    alone, member = node(), node(poolName="edge", poolRevision=2)

    assert "POOL" not in format_nodes([alone])
    assert format_nodes([alone, member], revisions={"edge": 3}).splitlines()[2].split()[-3:] == ["edge", "2/3", "-"]
    assert format_nodes([member]).splitlines()[1].split()[-3:] == ["edge", "r2", "-"]


def test_only_a_whole_timestamp_is_shown_as_a_time() -> None:
    text = "2026-11-19Tuesday window for site north"
    table = format_rows([{"Started": "2026-11-19T10:20:30.5Z", "Description": text}])
    assert "2026-11-19 10:20:30 " in table
    assert text in table
