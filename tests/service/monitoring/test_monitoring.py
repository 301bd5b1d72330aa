"""Tests of the alert rules and the dashboard with promtool and the metrics of a real service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from aks_flex_rp.api.metrics import Metrics
from aks_flex_rp.rollouts.view import RolloutCounts
from tests.service.monitoring.promtool import Promtool, promtool

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "docs" / "how-to" / "monitoring"
PANELS: list[dict[str, Any]] = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
RULES: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
EXPRESSIONS = [
    *(rule["expr"] for rule in RULES),
    *(target["expr"].replace("$__rate_interval", "5m") for panel in PANELS for target in panel["targets"]),
]
WATCHED = {"aks_flex_rp_held_polls", "aks_flex_rp_clusters"}  # added by the service at start


@pytest.fixture(scope="module")
def tool() -> Promtool:
    return promtool()


def test_alert_rules_pass_promtool_tests(tool: Promtool) -> None:
    done = tool("test", "rules", MONITORING / "alerts_test.yaml")
    assert done.ok, done.out + done.err


def test_every_alert_has_a_promtool_test() -> None:
    tested = set(re.findall(r'alertname="(\w+)"', (MONITORING / "alerts_test.yaml").read_text()))
    assert tested == {rule["alert"] for rule in RULES}


def test_every_expression_is_valid_promql(tool: Promtool, tmp_path: Path) -> None:
    """Expressions of the dashboard are checked as rules, which promtool can read."""
    rules = [{"record": f"aks_flex:{number}", "expr": each} for number, each in enumerate(EXPRESSIONS)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    done = tool("check", "rules", file)
    assert done.ok, done.out + done.err


def test_every_queried_metric_exists() -> None:
    text = Metrics().text().decode()
    there = {*WATCHED, *re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    there |= {f"{name}_bucket" for name in there}
    for expression in EXPRESSIONS:
        asked = set(re.findall(r"\b(?:aks_flex_rp|process)_\w+", expression))
        assert asked <= there, expression


def test_every_queried_outcome_and_state_exists() -> None:
    metrics = Metrics()
    metrics.set_fleet((), ())
    metrics.set_rollouts(RolloutCounts({}, {}, 0, 0.0, 0))
    text = metrics.text().decode()
    for label in ("outcome", "state"):
        known = set(re.findall(rf'{label}="(\w+)"', text))
        asked = re.findall(rf'{label}=~?"([\w|]+)"', "\n".join(EXPRESSIONS))
        assert {each for words in asked for each in words.split("|")} <= known


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_severity_description_and_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (\w+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in [each.lower() for each in headings]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_has_description_unit_and_selected_datasource(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    for each in (panel, *panel["targets"]):
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        assert 'job=~"$job"' in target["expr"]


def test_dashboard_panels_do_not_overlap_or_exceed_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
