"""Converts the options of `rollout create` to the properties of a roll-out.

`aks-flex-rp` imports this module, and the wheel of `az aks flex-node` contains a copy of it and of `option_error`. It
imports only that one, by its place, and the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .option_error import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Document = dict[str, Any]

ON_FAILURE = ("halt", "reverse")
NODE_STATES = ("Pending", "Updating", "Updated", "Failed", "Reversing", "Reversed", "NotReversed", "Gone")
_DURATION = re.compile(r"(\d{1,9})([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION_HINT = "Use seconds, or a number with s, m, h or d, for example 10m."
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_WEEK = 7 * _UNITS["d"]
_LABEL_HINT = "Use KEY=VALUE, for example site=north."
_SHARE = re.compile(r"0*[1-9]\d{0,6}|0*([1-9]\d?|100)%", re.ASCII)
_SHARE_HINT = "Use a number of nodes such as 3, or a percentage from 1% to 100%."


def invalid_name(name: str) -> str | None:
    """Returns why a roll-out cannot have this name, and what to do, or None if it can."""
    if _NAME.fullmatch(name):
        return None
    return "is not a name of a roll-out. Use up to 40 lowercase letters, digits and '-', and no '-' at the ends."


class RolloutOptionError(OptionError):
    """An option of a roll-out with an invalid value."""


@dataclass(frozen=True)
class RolloutOptions:
    """The options of the command. None or empty means that an option is not set."""

    revision: int | None = None
    selector: Sequence[str] = ()
    waves: Sequence[str] = ()
    canary: Sequence[str] = ()
    max_unavailable: str | None = None
    failure_domain: str | None = None
    soak: str | None = None
    max_failures: int | None = None
    on_failure: str | None = None
    node_timeout: str | None = None
    stage_timeout: str | None = None
    gates: Sequence[Document] = ()
    allow_downgrade: bool = False
    replace_active: bool = False


def rollout_properties(options: RolloutOptions) -> Document:
    """Returns the properties of the options that are set. Raises RolloutOptionError."""
    properties: Document = {
        "revision": options.revision,
        "nodeSelector": _labels("selector", options.selector),
        "waves": _waves(options.waves),
        "canarySelector": _labels("canary", options.canary),
        "maxUnavailable": _share("max-unavailable", options.max_unavailable),
        "failureDomain": _failure_domain(options.failure_domain),
        "soakSeconds": _seconds("soak", options.soak),
        "maxFailures": options.max_failures,
        "onFailure": options.on_failure,
        "nodeTimeoutSeconds": _seconds("node-timeout", options.node_timeout, least=30),
        "stageTimeoutSeconds": _seconds("stage-timeout", options.stage_timeout),
        "gates": list(options.gates),
        "allowDowngrade": options.allow_downgrade or None,
        "replaceActive": options.replace_active or None,
    }
    return {name: value for name, value in properties.items() if value not in (None, {}, [])}


def _share(option: str, text: str | None) -> str | None:
    if text is not None and not _SHARE.fullmatch(text):
        raise RolloutOptionError(option, text, "is not a share of the nodes", _SHARE_HINT)
    return text


def _waves(texts: Sequence[str]) -> list[str]:
    for text in texts:
        _share("wave", text)
    if texts and texts[-1] != "100%":
        raise RolloutOptionError("wave", texts[-1], "leaves nodes out", "Add a last wave of 100%.")
    return list(texts)


def _seconds(option: str, text: str | None, least: int = 0) -> int | None:
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise RolloutOptionError(option, text, "is not a duration", _DURATION_HINT)
    seconds = int(found[1]) * _UNITS[found[2]]
    if not least <= seconds <= _WEEK:
        raise RolloutOptionError(option, text, "is too short or too long", f"Use {least}s to 7d, for example 10m.")
    return seconds


def _labels(option: str, texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise RolloutOptionError(option, text, "is not a label", _LABEL_HINT)
        if found.setdefault(key, value) != value:
            raise RolloutOptionError(option, text, f"contradicts {key}={found[key]}", "Use each label once.")
    return found


def _failure_domain(text: str | None) -> Document | None:
    """Parses LABEL or LABEL=N."""
    if text is None:
        return None
    label, separator, limit = text.partition("=")
    if not label or (separator and not limit):
        raise RolloutOptionError(
            "failure-domain", text, "is not a label", "Use LABEL or LABEL=N, for example site or site=2."
        )
    if limit and not _SHARE.fullmatch(limit):
        raise RolloutOptionError("failure-domain", text, f"has the limit {limit!r}, which is no share", _SHARE_HINT)
    return {"label": label, **({"maxUnavailable": limit} if limit else {})}


def parse_gates(content: object, file: str) -> list[Document]:
    """Returns the gates of a file: a list, or a mapping with `gates`. The service checks each gate."""
    found = content.get("gates") if isinstance(content, dict) else content
    if isinstance(found, list) and all(isinstance(each, dict) for each in found):
        return found
    hint = "Use a list of gates, each with a name and one of job, webhook, prometheus and approval."
    raise RolloutOptionError("gates-file", file, "is not a list of gates", hint)
