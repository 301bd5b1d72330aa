"""Converts the options of `rollout create` to the properties of a roll-out.

The options are those of the provider's table, whose data is in rollout_options.json. `aks-flex-rp` imports this
module, and the wheel of `az aks flex-node` contains a copy of both and of `node_changes`. It imports only that one,
by its place, and the standard library.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .node_changes import OptionError, SettingOption

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .node_changes import NodeOptions

    Document = dict[str, Any]

_DURATION = re.compile(r"(\d{1,9})([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@cache
def table() -> tuple[Document, ...]:
    """Returns what a person may set of a roll-out, with the default as it is written."""
    return tuple(json.loads(Path(__file__).with_name("rollout_options.json").read_bytes()))


@cache
def rollout_options() -> tuple[SettingOption, ...]:
    """Returns the options of `rollout create`."""
    return tuple(
        SettingOption(
            tuple(row["flag"].split()),
            (row["path"],),
            row["kind"],
            row["help"]
            + (f" Default: {row['default']}." if row["default"] and "Default" not in row["help"] else "")
            + (" A file, JSON or YAML." if row["kind"] == "gates" else ""),
            row["group"],
            tuple(row.get("choices", ())),
        )
        for row in table()
    )


def invalid_name(name: str) -> str | None:
    """Returns why a roll-out cannot have this name, and what to do, or None if it can."""
    if _NAME.fullmatch(name):
        return None
    return "is not a name of a roll-out. Use up to 40 lowercase letters, digits and '-', and no '-' at the ends."


def rollout_properties(given: NodeOptions, read: Callable[[Any, str], object]) -> Document:
    """Returns the properties of the given options. `read` reads the file of an option. Raises OptionError."""
    found = {
        option.paths[0]: CONVERSIONS.get(option.kind, _plain)(option.flags[0].removeprefix("--"), given[option.name])
        for option in rollout_options()
        if option.name in given
    }
    if file := found.get("gates"):
        found["gates"] = _gates(read(file, "--gates-file"), str(file))
    return found


def _plain(_: str, value: Any) -> Any:
    return value


def written(kind: str, value: Any) -> str:
    """Returns a value as people write it; empty if it is not set."""
    if value is False or value in (None, {}, []):
        return ""
    match kind:
        case "duration":
            return f"{value // 60}m" if value and value % 60 == 0 else f"{value}s"
        case "map":
            return ", ".join(f"{key}={each}" for key, each in sorted(value.items()))
        case "domain":
            return f"{value['label']}={value['maxUnavailable']}"
        case "gates":
            return ", ".join(each["name"] for each in value)
    return ", ".join(map(str, value)) if isinstance(value, list) else "yes" if value is True else str(value)


def seconds(option: str, text: str) -> int:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        hint = "Use seconds, or a number with s, m, h or d, for example 10m."
        raise OptionError(option, text, "is not a duration", hint)
    return int(found[1]) * _UNITS[found[2]]


def _labels(option: str, texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise OptionError(option, text, "is not a label", "Use KEY=VALUE, for example site=north.")
        if found.setdefault(key, value) != value:
            raise OptionError(option, text, f"contradicts {key}={found[key]}", "Use each label once.")
    return found


def failure_domain(option: str, text: str) -> Document:
    """Parses LABEL or LABEL=N."""
    label, separator, limit = text.partition("=")
    if not label or (separator and not limit):
        raise OptionError(option, text, "is not a label", "Use LABEL or LABEL=N, for example site or site=2.")
    return {"label": label, **({"maxUnavailable": limit} if limit else {})}


CONVERSIONS: dict[str, Callable[[str, Any], Any]] = {
    "duration": seconds,
    "map": _labels,
    "domain": failure_domain,
}


def _gates(content: object, file: str) -> list[Document]:
    """Returns the gates of a file: a list, or a mapping with `gates`. The service checks each gate."""
    found = content.get("gates") if isinstance(content, dict) else content
    if isinstance(found, list) and all(isinstance(each, dict) for each in found):
        return found
    hint = "Use a list of gates, each with a name and one of job, webhook, prometheus and approval."
    raise OptionError("gates-file", file, "is not a list of gates", hint)
