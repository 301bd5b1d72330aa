"""Converts the options of `rollout create` to the properties of a roll-out.

`aks-flex-rp` imports this module, and the wheel of `az aks flex-node` contains a copy. It imports only the standard
library, so that the wheel needs no dependency.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    Document = dict[str, Any]

ON_FAILURE = ("halt", "reverse")
NODE_STATES = ("Pending", "Updating", "Updated", "Failed", "Reversing", "Reversed", "NotReversed", "Gone")
_DURATION = re.compile(r"(\d{1,9})([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION_HINT = "Use seconds, or a number with s, m, h or d, for example 10m."
_LABEL_HINT = "Use KEY=VALUE, for example site=north."


class RolloutOptionError(ValueError):
    """An option with an invalid value: its name, value, reason and hint. Each front end formats its own message."""

    def __init__(self, option: str, value: str, reason: str, hint: str) -> None:
        super().__init__(f"{option}: {value!r} {reason}")
        self.option = option
        self.value = value
        self.reason = reason
        self.hint = hint


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
        "waves": list(options.waves),
        "canarySelector": _labels("canary", options.canary),
        "maxUnavailable": options.max_unavailable,
        "failureDomain": _failure_domain(options.failure_domain),
        "soakSeconds": _seconds("soak", options.soak),
        "maxFailures": options.max_failures,
        "onFailure": options.on_failure,
        "nodeTimeoutSeconds": _seconds("node-timeout", options.node_timeout),
        "stageTimeoutSeconds": _seconds("stage-timeout", options.stage_timeout),
        "gates": list(options.gates),
        "allowDowngrade": options.allow_downgrade or None,
        "replaceActive": options.replace_active or None,
    }
    return {name: value for name, value in properties.items() if value not in (None, {}, [])}


def _seconds(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise RolloutOptionError(option, text, "is not a duration", _DURATION_HINT)
    return int(found[1]) * _UNITS[found[2]]


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
    return {"label": label, **({"maxUnavailable": limit} if limit else {})}


def parse_gates(content: object, file: str) -> list[Document]:
    """Returns the gates of a file: a list, or a mapping with `gates`. The service checks each gate."""
    found = content.get("gates") if isinstance(content, dict) else content
    if isinstance(found, list) and all(isinstance(each, dict) for each in found):
        return found
    hint = "Use a list of gates, each with a name and one of job, webhook, prometheus and approval."
    raise RolloutOptionError("gates-file", file, "is not a list of gates", hint)
