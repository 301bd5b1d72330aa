"""The same for Prometheus: a text file that its node exporter collects. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.following.verdicts import Standing

if TYPE_CHECKING:
    from aks_flex_node.agent.following.notes import Notes
    from aks_flex_node.agent.following.sights import Sight

PREFIX = "aks_flex_node"


def text(notes: Notes, sight: Sight, report: dict[str, Any]) -> bytes:
    lines: list[str] = []

    def say(name: str, what: str, values: dict[str, float], kind: str = "gauge") -> None:
        lines.extend((f"# HELP {PREFIX}_{name} {what}", f"# TYPE {PREFIX}_{name} {kind}"))
        lines.extend(f"{PREFIX}_{name}{labels} {value:.0f}" for labels, value in values.items())

    version = report.get("agentVersion", "")
    say("info", "The agent.", {f'{{version="{version}"}}': 1})
    standings = {f'{{standing="{each.value}"}}': float(each.value == notes.standing) for each in Standing}
    say("standing", "How it stands with the resource provider: 1 for the one that holds.", standings)
    conditions = {f'{{type="{each["type"]}"}}': float(each["status"] == "True") for each in report["conditions"]}
    say("condition", "Conditions of the node: 1 when one holds.", conditions)
    if not sight.by_token:
        say("certificate_seconds", "Until the kubelet's certificate ends.", {"": round(sight.seconds)})
    say("drift_total", "Changes by hand that were found.", {"": notes.drifts}, "counter")
    say("drift", "Things that differ from the configuration now.", {"": len(notes.drift)})
    if (applied := report.get("appliedConfigVersion", "")).isdecimal():
        say("applied_config_version", "The configuration in effect.", {"": int(applied)})
    return ("\n".join(lines) + "\n").encode()
