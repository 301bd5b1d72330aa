"""Writes docs/reference/errors.md and names.md from the error catalogues and the code.

usage: python scripts/error_reference.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from aks_flex_node.error_catalog import CONDITIONS_FILE, ErrorEntry, StatusName, load_catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/errors.md"
NAMES_PAGE = ROOT / "docs/reference/names.md"
PACKAGES = ("aks_flex_node", "aks_flex_rp")
HEAD = """# Errors

The errors that an operator of nodes or of a provider meets in practice: cause, checks and remedy. The programs print
the name of an error under its message; the message and the hint of any other error are all there is to say about it.
`aks-flex-node explain NAME` (also `aks-flex-rp explain`) prints its entry. `scripts/docs references` writes this page
from the catalogues in `src`; do not edit it by hand.
"""
TITLES = {
    "aks_flex_node": "The agent, aks-flex-node",
    "aks_flex_rp": "The resource provider, aks-flex-rp",
}


def page_text(catalogs: dict[str, dict[str, ErrorEntry]]) -> str:
    parts = [HEAD]
    for package, entries in catalogs.items():
        parts.append(f"## {TITLES[package]}\n")
        for group in dict.fromkeys(entry.group for entry in entries.values()):
            parts.append(f"### {group}\n")
            parts += [section(entry) for entry in entries.values() if entry.group == group]
    return "\n".join(parts)


def section(entry: ErrorEntry) -> str:
    codes = f" Exit code {' or '.join(map(str, entry.exit))}." if entry.exit else ""
    retry = " Retrying can help." if entry.retry else ""
    actions = [f"- Check: {entry.check}"] * bool(entry.check) + [f"- Remedy: {entry.remedy}"]
    return "\n\n".join([f"#### {entry.name}", f"{entry.cause}{retry}{codes}", "\n".join(actions)]) + "\n"


NAMES_HEAD = """# Names

Every name that the programs print or report: conditions and their reasons, provider states, events, audit actions,
metrics and errors. `aks-flex-node explain NAME` prints the entry of a condition, reason, state or error.
`scripts/docs references` writes this page from `src/aks_flex_node/conditions.yaml`, the error catalogues and the
code; do not edit it by hand.
"""
AGENT_METRIC = re.compile(r'add\("(\w+)", "([^"]+)"')
PROVIDER_METRIC = re.compile(
    r"(?:(Counter|Gauge|Histogram)\(\s*|self\.(_outcomes)\(\s*|metrics\.(watch)\(\s*)"
    r'"(?:aks_flex_rp_)?(\w+)",\s*"([^"]+)"'
)


def names_text(catalogs: dict[str, dict[str, ErrorEntry]]) -> str:
    """Returns the page with all names."""
    document = yaml.safe_load((ROOT / "src/aks_flex_node" / CONDITIONS_FILE).read_text())
    reasons = {name: StatusName(name, "reason", **fields) for name, fields in document["reasons"].items()}
    parts = [
        NAMES_HEAD,
        "## Conditions\n",
        "A status report, `aks-flex-rp node show`, `az aks flex-node show` and the dashboard show them.\n",
    ]
    rows = [(f"`{name}`", f"`{of['healthy']}`", of["meaning"]) for name, of in document["conditions"].items()]
    parts.append(table(("type", "healthy", "meaning"), rows))
    parts.append(
        "## Condition reasons\n\n"
        "A reason that is not listed is the name of an [error](errors.md): `DiskFull` is `disk-full`.\n"
    )
    parts += [status_section(each) for each in reasons.values()]
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
    for package, entries in catalogs.items():
        links = ", ".join(f"[{name}](errors.md#{name})" for name in sorted(entries))
        parts.append(f"{TITLES[package]}: {links}.\n")
    return "\n".join(parts)


def status_section(entry: StatusName) -> str:
    of = f"Reason of {entry.condition}. " if entry.condition else ""
    remedy = f"\n\n- Remedy: {entry.remedy.strip()}" if entry.remedy else ""
    return f"### {entry.name}\n\n{of}{entry.meaning.strip()}{remedy}\n"


def metric_rows() -> list[tuple[str, str]]:
    """Returns the name and help text of every metric, from the code."""
    agent = (ROOT / "src/aks_flex_node/agent/daemon/conditions.py").read_text()
    provider = "".join(
        (ROOT / "src/aks_flex_rp" / name).read_text() for name in ("api/metrics.py", "service.py", "server.py")
    )
    rows = [(f"`aks_flex_node_{name}`", text) for name, text in AGENT_METRIC.findall(agent)]
    for kind, outcomes, _, name, text in PROVIDER_METRIC.findall(provider):
        suffix = "_total" if kind == "Counter" or outcomes else ""
        rows.append((f"`aks_flex_rp_{name}{suffix}`", text))
    return rows


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(cell.strip() for cell in row)} |" for row in lines) + "\n"


def main() -> None:
    catalogs = {package: load_catalog(package) for package in PACKAGES}
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page_text(catalogs))
    NAMES_PAGE.write_text(names_text(catalogs))


if __name__ == "__main__":
    main()
