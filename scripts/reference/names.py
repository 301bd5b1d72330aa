"""The page names.md: conditions, reasons, states, events, audit actions, metrics and errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from scripts.reference.errors import TITLES

from aks_flex_node.error_catalog import CONDITIONS_FILE, StatusName, load_catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCES = Path(__file__).parents[2] / "src"
HEAD = """# Names

Every name that the programs print or report: conditions and their reasons, provider states, events, audit actions,
metrics and errors. `aks-flex-node explain NAME` prints the entry of a condition, reason, state or error.
"""
AGENT_METRIC = re.compile(r'add\("(\w+)", "([^"]+)"')
PROVIDER_METRIC = re.compile(
    r"(?:(counter|gauge|histogram)\(\s*|self\.(_outcomes)\(\s*|metrics\.(watch)\(\s*)"
    r'"(?:aks_flex_rp_)?(\w+)",\s*"([^"]+)"'
)


def names_page() -> str:
    document = yaml.safe_load((SOURCES / "aks_flex_node" / CONDITIONS_FILE).read_text())
    reasons = {name: StatusName(name, "reason", **fields) for name, fields in document["reasons"].items()}
    parts = [
        HEAD,
        "## Conditions\n",
        "A status report, `aks-flex-rp node show`, `az aks flex-node show` and the dashboard show them.\n",
    ]
    rows = [(f"`{name}`", f"`{of['healthy']}`", of["meaning"]) for name, of in document["conditions"].items()]
    parts.append(table(("type", "healthy", "meaning"), rows))
    parts.append(
        "## Condition reasons\n\n"
        "A reason that is not listed is the name of an [error](errors.md): `DiskFull` is `disk-full`.\n"
    )
    parts += [status_section(reason) for reason in reasons.values()]
    parts.append(
        "## Provider states\n\n"
        "`aks-flex-node status` shows the state of the daemon's connection to the provider. "
        "Only `Deleted`, `Replaced` and `OnAnotherMachine` change the node.\n"
    )
    parts += [status_section(StatusName(name, "state", **fields)) for name, fields in document["states"].items()]
    parts.append("## Job results\n\n`aks-flex-node status` shows the result of the last job.\n")
    parts += [status_section(StatusName(name, "result", **fields)) for name, fields in document["results"].items()]
    for key, title in (("events", "Events"), ("audit", "Audit actions")):
        parts.append(f"## {title}\n")
        parts.append(table(("name", "meaning"), [(f"`{name}`", of["meaning"]) for name, of in document[key].items()]))
    parts.append("## Metrics\n")
    parts.append(table(("metric", "meaning"), metric_rows()))
    parts.append("## Errors\n")
    for package, title in TITLES.items():
        links = ", ".join(f"[{name}](errors.md#{name})" for name in sorted(load_catalog(package)))
        parts.append(f"{title}: {links}.\n")
    return "\n".join(parts)


def status_section(entry: StatusName) -> str:
    of = f"Reason of {entry.condition}. " if entry.condition else ""
    remedy = f"\n\n- Remedy: {entry.remedy.strip()}" if entry.remedy else ""
    return f"### {entry.name}\n\n{of}{entry.meaning.strip()}{remedy}\n"


def metric_rows() -> list[tuple[str, str]]:
    """Returns the name and help text of every metric, from the code."""
    agent = (SOURCES / "aks_flex_node/agent/daemon/conditions.py").read_text()
    provider = "".join(
        (SOURCES / "aks_flex_rp" / name).read_text() for name in ("api/metrics.py", "service.py", "server.py")
    )
    rows = [(f"`aks_flex_node_{name}`", text) for name, text in AGENT_METRIC.findall(agent)]
    for kind, outcomes, _, name, text in PROVIDER_METRIC.findall(provider):
        suffix = "_total" if kind == "counter" or outcomes else ""
        rows.append((f"`aks_flex_rp_{name}{suffix}`", text))
    return rows


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(cell.strip() for cell in row)} |" for row in lines) + "\n"
