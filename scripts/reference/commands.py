"""The page cli.md: all commands and options of the three programs, from their definitions."""

from __future__ import annotations

import re
from typing import Any

from typer.main import get_command

from aks_flex_lab.cli import app as lab
from aks_flex_node.agent.cli.app import app as agent
from aks_flex_rp.cli import app as provider

HEAD = """# Commands

Every command and option, as `--help` prints them. Those of `az aks flex-node` are on [a page of their own](az.md).

| program | what it is | commands |
|---|---|---|
"""
PROGRAMS = (
    ("aks-flex-node", "the agent, as root on the machine that becomes a node"),
    ("aks-flex-rp", "the resource provider, where you run it"),
    ("aks-flex-lab", "the lab, as root on a developer's machine"),
)
MARKUP = re.compile(r"\[/?(?:bold|dim|italic|cyan|red|green|yellow)\]")


def apps() -> dict[str, Any]:
    return dict(zip((name for name, _ in PROGRAMS), map(get_command, (agent, provider, lab)), strict=True))


def commands_page() -> str:
    commands = apps()
    rows = [f"| `{name}` | {what} | {command_line(commands[name], name)} |" for name, what in PROGRAMS]
    parts = [part for name, _ in PROGRAMS for part in described(commands[name], name, 2)]
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join(parts) + "\n"


def described(command: Any, name: str, depth: int) -> list[str]:
    """Returns the section of a command and of its subcommands."""
    if command.hidden:
        return []
    parts = [f"{'#' * depth} {name}", prose(command.help or "")]
    below = getattr(command, "commands", {})
    if not below:
        parts.append(f"    {usage(command, name)}")
    parts.append(table(command, command.context_class(command, info_name=name)))
    parts.append(prose(command.epilog or ""))
    for word, each in below.items():
        parts += described(each, f"{name} {word}", 3)
    return [part for part in parts if part]


def usage(command: Any, name: str) -> str:
    parts = [name, *(["[OPTIONS]"] if any(option(each) for each in command.params) else [])]
    return " ".join([*parts, *(argument(each) for each in command.params if each.param_type_name == "argument")])


def argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    name = f"{name}…" if parameter.nargs == -1 and not name.endswith("…") else name
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def option(parameter: Any) -> bool:
    own = {"install_completion", "show_completion"}
    return parameter.param_type_name == "option" and not parameter.hidden and parameter.name not in own


def table(command: Any, context: Any) -> str:
    """Returns a table of arguments and options with their help texts."""
    parameters = [each for each in command.params if each.param_type_name == "argument" or option(each)]
    records = [each.get_help_record(context) for each in parameters]
    rows = [f"| `{name(record[0])}` | {cell(record[1])} |" for record in records if record and record[1]]
    return "\n".join(["| | |", "|---|---|", *rows]) if rows else ""


def name(option: str) -> str:
    """Escapes bars, which end a table cell in some renderers even within code."""
    return re.sub(r"[\[\]*]", "", option).strip().replace("|", " or ")


def prose(text: str) -> str:
    """Returns the help text of a command without terminal markup."""
    text = MARKUP.sub("", text.replace("\b", "").replace("\f", ""))
    return re.sub(r"(?<!`)<(?=\w)", r"\\<", text.strip())


def cell(text: str | None) -> str:
    return prose(" ".join((text or "").split())).replace("|", "\\|")


def command_line(command: Any, name: str) -> str:
    shown = [word for word, each in command.commands.items() if not each.hidden]
    return ", ".join(f"[`{word}`](#{name}-{word})" for word in shown)
