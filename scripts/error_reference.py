"""Completes the error catalogues from the code, and writes docs/reference/errors.md and names.md from them.

Exit codes, messages and whether a retry can help are read from the source by its syntax tree, so that the catalogue
cannot differ from what the programs do. usage: python scripts/error_reference.py
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from aks_flex_node.error_catalog import CONDITIONS_FILE, FILE_NAME, ErrorEntry, StatusName, load_catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/errors.md"
NAMES_PAGE = ROOT / "docs/reference/names.md"
PACKAGES = ("aks_flex_node", "aks_flex_rp", "aks_flex_lab")
KEBAB = re.compile(r"[a-z]+(-[a-z0-9]+)+")
HEAD = """# Errors

Every error of the three programs: cause, checks and remedy. The programs print the name of an error under its
message. `aks-flex-node explain NAME` (also `aks-flex-rp explain`, `aks-flex-lab explain`) prints its entry with its
messages. `scripts/docs references` writes this page from the catalogues in `src`; do not edit it by hand.
"""
TITLES = {
    "aks_flex_node": "The agent, aks-flex-node",
    "aks_flex_rp": "The resource provider, aks-flex-rp",
    "aks_flex_lab": "The lab, aks-flex-lab",
}


@dataclass
class RaisedError:
    """Exit codes, messages and retryability of one error name, from the code."""

    exits: set[int] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    retry: bool = False


@functools.cache
def parsed(source: Path) -> ast.Module:
    return ast.parse(source.read_text())


@functools.cache
def raised_errors(package: str) -> dict[str, RaisedError]:
    """Returns all errors that a package raises, by name."""
    exits = exit_codes()
    found: dict[str, RaisedError] = {}
    for source in sorted((ROOT / "src" / package).rglob("*.py")):
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Call) and (name := error_name(node, exits)):
                add(found.setdefault(name, RaisedError()), node, exits, source)
    return found


@functools.cache
def exit_codes() -> dict[str, int]:
    """Returns the exit code of every error class, from the class or its bases."""
    bases: dict[str, str] = {}
    codes: dict[str, int] = {"FlexError": 1}
    for package in PACKAGES:
        for source in (ROOT / "src" / package).rglob("*.py"):
            for node in ast.walk(parsed(source)):
                if isinstance(node, ast.ClassDef) and node.bases and isinstance(node.bases[0], ast.Name):
                    bases[node.name] = node.bases[0].id
                    for code in own_code(node):
                        codes[node.name] = code
    for _ in range(5):  # deeper than any hierarchy of error classes
        codes |= {name: codes[base] for name, base in bases.items() if base in codes and name not in codes}
    return codes


def own_code(node: ast.ClassDef) -> list[int]:
    return [
        each.value.value
        for each in node.body
        if isinstance(each, ast.Assign)
        and isinstance(each.targets[0], ast.Name)
        and each.targets[0].id == "exit_code"
        and isinstance(each.value, ast.Constant)
        and isinstance(each.value.value, int)
    ]


def error_name(node: ast.Call, exits: dict[str, int]) -> str:
    """Returns the error name in a call; empty when the call creates no error."""
    first = node.args[0] if node.args else None
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str) or not KEBAB.fullmatch(first.value):
        return ""
    made = isinstance(node.func, ast.Name) and node.func.id in exits
    named_by_class = isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"
    return first.value if made or named_by_class else ""


def add(raised: RaisedError, node: ast.Call, exits: dict[str, int], source: Path) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else class_around(node, source)
    raised.exits.add(exits[name])
    message = message_text(node.args[1]) if len(node.args) > 1 else ""
    if message and message not in raised.messages:
        raised.messages.append(message)
    raised.retry |= any(
        word.arg == "retryable" and not (isinstance(word.value, ast.Constant) and word.value.value is False)
        for word in node.keywords
    )


def class_around(node: ast.Call, source: Path) -> str:
    around = [
        each.name
        for each in ast.walk(parsed(source))
        if isinstance(each, ast.ClassDef) and each.lineno <= node.lineno <= (each.end_lineno or 0)
    ]
    return around[-1]


def message_text(node: ast.expr) -> str:
    """Returns a message with its values as `<name>`; empty when it is not a literal."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = message_text(node.left), message_text(node.right)
        return left + right if left and right else left or right
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = [
        str(each.value) if isinstance(each, ast.Constant) else f"<{value_name(each)}>"
        for each in node.values
        if isinstance(each, (ast.Constant, ast.FormattedValue))
    ]
    return "" if all(part.startswith("<") or not part.strip(" .") for part in parts) else "".join(parts)


def value_name(node: ast.FormattedValue) -> str:
    names = [each for each in ast.walk(node.value) if isinstance(each, (ast.Attribute, ast.Name))]
    names = [each for each in names if not (isinstance(each, ast.Name) and each.id.startswith("redact"))]
    if not names:
        return "value"
    name = names[0].attr if isinstance(names[0], ast.Attribute) else names[0].id
    return name.strip("_").replace("_", " ").lower()


def completed(package: str) -> dict[str, ErrorEntry]:
    """Returns the catalogue of a package, completed from the code."""
    catalog, raised = load_catalog(package), raised_errors(package)
    shared = {} if package == "aks_flex_node" else load_catalog("aks_flex_node")
    missing = sorted(set(raised) - set(catalog) - set(shared))
    if missing:
        raise SystemExit(f"src/{package}/{FILE_NAME} lacks: {', '.join(missing)}")
    elsewhere = {name for each in PACKAGES if each != package for name in raised_errors(each)}
    unused = sorted(set(catalog) - set(raised) - elsewhere)
    if unused:
        raise SystemExit(f"src/{package}/{FILE_NAME} has names that no code raises: {', '.join(unused)}")
    return {
        name: ErrorEntry(
            name,
            entry.group,
            entry.cause,
            entry.check,
            entry.remedy,
            tuple(sorted(raised[name].exits)) if name in raised else (),
            raised[name].retry if name in raised else False,
            tuple(raised[name].messages) if name in raised else (),
        )
        for name, entry in catalog.items()
    }


def catalog_text(entries: dict[str, ErrorEntry]) -> str:
    """Returns the YAML text of a catalogue."""
    return "\n".join(entry_text(entry) for entry in entries.values())


def entry_text(entry: ErrorEntry) -> str:
    lines = [f"{entry.name}:", f"  group: {entry.group}", f"  exit: [{', '.join(map(str, entry.exit))}]"]
    lines.append(f"  retry: {str(entry.retry).lower()}")
    lines += ["  messages:", *(folded("    - >-", message) for message in entry.messages)] if entry.messages else []
    for key in ("cause", "check", "remedy"):
        text = getattr(entry, key)
        lines += [folded(f"  {key}: >-", text)] if text else []
    return "\n".join(lines) + "\n"


def folded(head: str, text: str) -> str:
    indent = " " * (len(head) - len(head.lstrip()) + 2)
    flat = " ".join(text.split())
    return (
        head
        + "\n"
        + textwrap.fill(
            flat, 118, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    )


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
    catalogs = {package: completed(package) for package in PACKAGES}
    for package, entries in catalogs.items():
        (ROOT / "src" / package / FILE_NAME).write_text(catalog_text(entries))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page_text(catalogs))
    NAMES_PAGE.write_text(names_text(catalogs))


if __name__ == "__main__":
    main()
