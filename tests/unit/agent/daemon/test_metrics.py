"""Tests of the daemon's Prometheus metrics."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from aks_flex_node.agent.daemon.conditions import ReportInput, build_report, render_metrics
from aks_flex_node.agent.daemon.daemon_state import DaemonState
from aks_flex_node.agent.provider.poll_result import ProviderState
from tests.unit.agent.daemon.fakes import WELL

NOTES = DaemonState(provider_state=ProviderState.THROTTLED, drift_count=1234567, drift=("a", "b"))


def values(notes: DaemonState = NOTES, current: str = "1770000123") -> dict[str, str]:
    sight = replace(WELL, certificate_seconds=31535999.4)
    lines = render_metrics(notes, sight, build_report(ReportInput(notes, sight, current))).decode().splitlines()
    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]*"\})? -?\d+', one) for one in lines if not one.startswith("#"))
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_metrics_write_large_numbers_in_full() -> None:
    found = values()
    assert found["aks_flex_node_applied_config_version"] == "1770000123"
    assert found["aks_flex_node_certificate_expiry_seconds"] == "31535999"
    assert found["aks_flex_node_drift_total"] == "1234567"
    assert found["aks_flex_node_drift"] == "2"


def test_metrics_report_exactly_one_provider_state() -> None:
    found = {name: value for name, value in values().items() if name.startswith("aks_flex_node_provider_state")}
    assert len(found) == len(ProviderState)
    assert [name for name, value in found.items() if value == "1"] == [
        'aks_flex_node_provider_state{state="Throttled"}'
    ]


def test_metrics_contain_conditions_by_type() -> None:
    found = values()
    assert found['aks_flex_node_condition{type="Ready"}'] == "1"
    assert found['aks_flex_node_condition{type="UpgradeFailed"}'] == "0"


def test_every_metric_has_help_and_type_once() -> None:
    lines = render_metrics(NOTES, WELL, build_report(ReportInput(NOTES, WELL))).decode().splitlines()
    helped = [line.split()[2] for line in lines if line.startswith("# HELP")]
    typed = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert helped == typed
    assert len(set(helped)) == len(helped)


@pytest.mark.parametrize("version", ["", "from-a-file"])
def test_non_numeric_config_version_is_omitted_from_metrics(version: str) -> None:
    assert "aks_flex_node_applied_config_version" not in values(current=version)
