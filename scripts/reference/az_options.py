"""The page az.md: all commands and options of `az aks flex-node`, as the az of the tests loads them."""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from aks_flex_lab.processes import run
from tests.az_extension.warm_az import python_of
from tests.azure_cli import Az, build_extension, program

DESCRIBING = Path(__file__).parents[2] / "tests/az_extension/describe_commands.py"
OWN = "aks flex-node"
HEAD = """# Options of az aks flex-node

Every command and option of [the extension](../how-to/azure-cli.md), as `--help` prints them. az's own options work
everywhere (`--output`, `--query`, `--subscription`, `--debug`, …).
"""


def az_page() -> str:
    with tempfile.TemporaryDirectory() as directory:
        return page_of(az_commands(Path(directory)))


def az_commands(directory: Path) -> dict[str, Any]:
    """Returns az's description of the extension, which is unpacked in az's extension directory."""
    az = Az(program(), directory, "")
    with zipfile.ZipFile(build_extension(directory)) as wheel:
        wheel.extractall(directory / "cliextensions/az-aks-flex-node")
    environment = {**az.environment, "REQUESTS_CA_BUNDLE": ""}
    commands: dict[str, Any] = json.loads(
        run(python_of(az), "-I", DESCRIBING, az.program.parent / "packages", env=environment).out
    )
    if not commands:
        raise SystemExit("az has loaded no command of the extension.")
    return commands


def page_of(commands: dict[str, Any]) -> str:
    parts = [HEAD]
    for name, command in sorted(commands.items()):
        help_text = command["help"]
        options = sorted(command["arguments"].values(), key=order)
        parts += [f"## {name.removeprefix(f'{OWN} ')}\n", prose(help_text)]
        parts += ["| option | |", "|---|---|", *map(row, options), ""]
        parts += [example(each) for each in help_text["examples"]]
    return "\n".join(parts).rstrip() + "\n"


def order(option: dict[str, Any]) -> tuple[bool, str, str]:
    """Sorts options: required ones first, then by group."""
    return not option["required"], option["group"] or "", longest(option)


def longest(option: dict[str, Any]) -> str:
    return str(max(option["options"], key=len))


def prose(help_text: dict[str, Any]) -> str:
    more = " ".join(str(help_text.get("long-summary") or "").split())
    return f"{help_text['short-summary']} {more}".strip() + "\n"


def row(option: dict[str, Any]) -> str:
    if "--ids" in option["options"]:
        return "| `--ids` | Resource IDs of one or several nodes, space-separated, instead of the needed options. |"
    names = ", ".join(f"`{each}`" for each in sorted(option["options"], key=len, reverse=True))
    text = " ".join(option["help"].split())
    if "true" in option["choices"]:
        text += " `true` when nothing follows it."
    elif option["choices"]:
        text += f" One of {', '.join(f'`{each}`' for each in option['choices'])}."
    needed = "**Needed.** " if option["required"] else ""
    return f"| {names} | {needed}{text.replace('|', ' or ')} |"


def example(document: dict[str, str]) -> str:
    lines = "\n".join(line.rstrip() for line in document["text"].strip().splitlines())
    return f"{document['name']}:\n\n```bash\n{lines}\n```\n"
