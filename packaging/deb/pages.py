"""Man pages and completions, from the commands themselves, so that they cannot say anything else."""

from __future__ import annotations

import inspect
import re
import time
from typing import TYPE_CHECKING, Any

from typer._completion_shared import get_completion_script
from typer.main import get_command

from aks_flex_node.agent.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = "aks-flex-node"
COMPLETIONS = {
    "bash": f"usr/share/bash-completion/completions/{COMMAND}",
    "zsh": f"usr/share/zsh/vendor-completions/_{COMMAND}",
    "fish": f"usr/share/fish/vendor_completions.d/{COMMAND}.fish",
}
EXITS = "What each exit code means, and every error by its name: docs/troubleshooting.md of the project."

Way = tuple[str, ...]  # the words of a command


def completions() -> dict[str, str]:
    """The scripts by the places where shells look for them."""
    words = {"prog_name": COMMAND, "complete_var": "_AKS_FLEX_NODE_COMPLETE"}
    return {place: get_completion_script(shell=shell, **words) + "\n" for shell, place in COMPLETIONS.items()}


def manual(version: str, when: int) -> dict[str, str]:
    """One page for the program and one for each of its commands, by file name."""
    root = get_command(app)
    found = list(_commands(root, (COMMAND,), root.context_class(root, info_name=COMMAND)))
    head = f'{time.strftime("%Y-%m-%d", time.gmtime(when))}" "aks-flex-node {version}" "AKS Flex Node'
    return {f"{'-'.join(way)}.1": _page(way, context, head, _neighbours(way, found)) for way, context in found}


def _commands(command: Any, way: Way, context: Any) -> Iterator[tuple[Way, Any]]:
    yield way, context
    for word, below in sorted(getattr(command, "commands", {}).items()):
        if not below.hidden:
            yield from _commands(below, (*way, word), below.context_class(below, info_name=word, parent=context))


def _neighbours(way: Way, found: list[tuple[Way, Any]]) -> list[str]:
    """The page above and those right below."""
    names = [other for other, _ in found if other in {way[:-1], *(one for one, _ in found if one[:-1] == way)}]
    return ["-".join(name) for name in names if name]


def _page(way: Way, context: Any, head: str, neighbours: list[str]) -> str:
    name, command = "-".join(way), context.command
    text = inspect.cleandoc(command.help or "")
    lines = [f'.TH "{name.upper()}" "1" "{head}"', ".SH NAME"]
    lines += [f"{_escaped(name)} \\- {_escaped(_first(text))}", ".SH SYNOPSIS"]
    usage = " ".join([*way, *command.collect_usage_pieces(context)])
    lines += [f".B {_escaped(usage)}", ".SH DESCRIPTION", *_paragraphs(text), *_options(context)]
    lines += [".SH EXIT STATUS", _escaped(EXITS), ".SH SEE ALSO"]
    lines += [", ".join(f"\\fB{_escaped(one)}\\fR(1)" for one in neighbours) or f"\\fB{COMMAND}\\fR(1)"]
    return "\n".join(lines) + "\n"


def _first(text: str) -> str:
    return text.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.replace("\b", "").split("\n\n"):
        yield ".PP"
        yield _escaped(" ".join(paragraph.split()))


def _options(context: Any) -> Iterator[str]:
    records = [record for each in context.command.get_params(context) if (record := each.get_help_record(context))]
    if records:
        yield ".SH OPTIONS"
    for words, meaning in records:
        yield from (".TP", f"\\fB{_escaped(words)}\\fR", _escaped(" ".join(meaning.split())))


def _escaped(text: str) -> str:
    """Text that roff takes for nothing but text: a line of it must not begin with a dot or a quote, either."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", plain)
