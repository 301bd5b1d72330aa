"""The page errors.md: cause, checks and remedy of every error of the catalogues."""

from __future__ import annotations

from aks_flex_node.error_catalog import ErrorEntry, load_catalog

HEAD = """# Errors

The errors that an operator of nodes or of a provider meets in practice: cause, checks and remedy. The programs print
the name of an error under its message; the message and the hint of any other error are all there is to say about it.
`aks-flex-node explain NAME` (also `aks-flex-rp explain`) prints its entry.
"""
TITLES = {
    "aks_flex_node": "The agent, aks-flex-node",
    "aks_flex_rp": "The resource provider, aks-flex-rp",
}


def errors_page() -> str:
    parts = [HEAD]
    for package, title in TITLES.items():
        parts.append(f"## {title}\n")
        entries = load_catalog(package)
        for group in dict.fromkeys(entry.group for entry in entries.values()):
            parts.append(f"### {group}\n")
            parts += [section(entry) for entry in entries.values() if entry.group == group]
    return "\n".join(parts)


def section(entry: ErrorEntry) -> str:
    codes = f" Exit code {' or '.join(map(str, entry.exit))}." if entry.exit else ""
    retry = " Retrying can help." if entry.retry else ""
    actions = [f"- Check: {entry.check}"] * bool(entry.check) + [f"- Remedy: {entry.remedy}"]
    return "\n\n".join([f"#### {entry.name}", f"{entry.cause}{retry}{codes}", "\n".join(actions)]) + "\n"
