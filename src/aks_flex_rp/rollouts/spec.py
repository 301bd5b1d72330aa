"""The body of a roll-out, which is its plan. The fields are the table of its options: forms and command
lines read `option_data`, as JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator
from pydantic_core import PydanticCustomError, PydanticKnownError

from aks_flex_node.api import kubernetes_rules
from aks_flex_node.api.contract import ENVELOPE
from aks_flex_node.api.rollout_options import written
from aks_flex_rp.arm.errors import Problem, unknown_properties
from aks_flex_rp.resource.models import WireModel
from aks_flex_rp.rollouts.gate_specs import Gates  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.settings.setting import Rule

MAX_LABELS = 16
MAX_WAVES = 20
WEEK = 604_800
READ_ONLY = (
    *("provisioningState", "state", "paused", "wave", "reason", "waitsFor", "failures", "startedAt", "stateSince"),
    *("endedAt", "createdBy", "waveProgress", "gateResults"),
)


@dataclass(frozen=True)
class Share:
    """A number of nodes, or a percentage of them."""

    count: int = 0
    percent: int = 0

    def of(self, total: int) -> int:
        """Returns the number of nodes, at least 1: a share that rounds to none would never begin."""
        found = self.count or -(-total * self.percent // 100)
        return max(1, min(found, total)) if total else 0

    def __str__(self) -> str:
        return f"{self.percent}%" if self.percent else str(self.count)


def _share(text: object) -> Share:
    if not isinstance(text, str):
        raise PydanticKnownError("string_type")
    share = Share()
    if _SHARE.fullmatch(text):
        share = Share(percent=int(text[:-1])) if text.endswith("%") else Share(int(text))
    if not (0 < share.percent <= 100 or 0 < share.count <= 1_000_000):
        reason = "'{value}' is not a number of nodes such as 3, nor a percentage from 1% to 100%"
        raise PydanticCustomError("share", reason, {"value": text[:20]})
    return share


def _checked_by(rule: Rule) -> AfterValidator:
    def check(text: str) -> str:
        if reason := rule(text):
            raise PydanticCustomError("label", "'{value}' {reason}", {"value": text[:80], "reason": reason})
        return text

    return AfterValidator(check)


_SHARE = re.compile(r"[0-9]{1,7}%?")
ShareText = Annotated[Share, PlainValidator(_share, json_schema_input_type=str), PlainSerializer(str)]
LabelKey = Annotated[str, _checked_by(kubernetes_rules.label_key)]
LabelValue = Annotated[str, _checked_by(kubernetes_rules.label_value)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS)]
Seconds = Annotated[int, Field(ge=0, le=WEEK)]


def _ascending(shares: list[Share]) -> list[Share]:
    if shares[-1].percent != 100:
        raise PydanticCustomError("waves", "must end with 100%, so that no node is left out")
    for kind in ([each.count for each in shares if each.count], [each.percent for each in shares if each.percent]):
        if any(later <= earlier for earlier, later in pairwise(kind)):
            raise PydanticCustomError("waves", "must be ascending: each wave includes the earlier ones")
    return shares


class FailureDomainSpec(WireModel):
    label: LabelKey
    max_unavailable: ShareText = Share(1)


class RolloutOption(NamedTuple):
    """What command lines and forms need of a property, besides its path, type and default."""

    flag: str  # on all command lines; the first one is its name
    kind: str  # how people write it
    help: str
    group: str = ""
    form: str = ""  # the label of its field in the form


class RolloutProperties(WireModel):
    revision: Annotated[
        int,
        Field(ge=1, lt=2**53),
        RolloutOption("--revision", "number", "Number of the revision. Default: the newest."),
    ] = 0
    waves: Annotated[
        list[ShareText],
        Field(min_length=1, max_length=MAX_WAVES),
        AfterValidator(_ascending),
        RolloutOption(
            "--waves --wave",
            "waves",
            "How many nodes are reached after each wave: numbers or percentages, the last 100%.",
            "Waves",
            "Waves",
        ),
    ] = Field(default_factory=lambda: [Share(1), *(Share(percent=each) for each in (10, 50, 100))])
    canary_selector: Annotated[
        Labels | None,
        RolloutOption(
            "--canary",
            "map",
            "Labels, KEY=VALUE, of the nodes of the first wave.",
            "Waves",
            "Labels of the first wave",
        ),
    ] = None
    node_selector: Annotated[
        Labels | None,
        RolloutOption(
            "--selector",
            "map",
            "Labels, KEY=VALUE, of the nodes that take part. Default: all nodes of the pool.",
            "Waves",
            "Only nodes with these labels",
        ),
    ] = None
    soak_seconds: Annotated[
        Seconds,
        RolloutOption(
            "--soak",
            "duration",
            "How long the nodes of a wave must stay healthy, for example 90s or 10m.",
            "Waves",
            "Soak time",
        ),
    ] = 600
    max_unavailable: Annotated[
        ShareText,
        RolloutOption(
            "--max-unavailable",
            "share",
            "How many nodes may be unavailable at once, a number or a percentage.",
            "Limits",
            "Unavailable nodes",
        ),
    ] = Share(percent=10)
    failure_domain: Annotated[
        FailureDomainSpec | None,
        RolloutOption(
            "--failure-domain",
            "domain",
            "LABEL or LABEL=N: how many nodes with the same value of a label may be unavailable at once. Default of "
            "N: 1.",
            "Limits",
            "Failure domain",
        ),
    ] = None
    on_failure: Annotated[
        Literal["halt", "reverse"],
        RolloutOption(
            "--on-failure",
            "text",
            "After a failure: keep what nodes have (halt), or bring them back (reverse).",
            "Limits",
            "On failure",
        ),
    ] = "reverse"
    max_failures: Annotated[
        int,
        Field(ge=0, le=1_000_000),
        RolloutOption("--max-failures", "number", "How many nodes may fail.", "Limits", "Tolerated failures"),
    ] = 0
    gates: Annotated[
        Gates,
        RolloutOption(
            "--gates-file", "gates", "List of gates: checks after the soak time of each wave.", "Checks", "Gates"
        ),
    ] = Field(default_factory=list)
    node_timeout_seconds: Annotated[
        int,
        Field(ge=30, le=WEEK),
        RolloutOption(
            "--node-timeout",
            "duration",
            "Time limit of the update of a node.",
            "Checks",
            "Limit for a node",
        ),
    ] = 3600
    stage_timeout_seconds: Annotated[
        Seconds,
        RolloutOption(
            "--stage-timeout",
            "duration",
            "How long a wave waits for the downloads of its nodes. 0: no downloads ahead.",
            "Checks",
            "Limit for downloads ahead",
        ),
    ] = 600
    allow_downgrade: Annotated[
        bool,
        RolloutOption(
            "--allow-downgrade", "switch", "Allow older versions than the nodes have.", "Checks", "Allow downgrade"
        ),
    ] = False
    replace_active: Annotated[
        bool,
        RolloutOption(
            "--replace-active",
            "switch",
            "Abort the active roll-out of the pool.",
            form="Abort the active roll-out, and start this one",
        ),
    ] = False

    def domain_of(self, labels: Mapping[str, str]) -> str:
        """Returns the failure domain of a node with these labels; empty if there are none."""
        return labels.get(self.failure_domain.label, "") if self.failure_domain else ""

    def document(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)


def option_data() -> list[dict[str, Any]]:
    """Returns the table of options, with their defaults as people write them."""
    return [
        {
            "path": field.alias,
            **option._asdict(),
            "default": written(option.kind, field.get_default(call_default_factory=True)),
        }
        | ({"choices": get_args(field.annotation)} if option.kind == "text" else {})
        for field in RolloutProperties.model_fields.values()
        for option in field.metadata
        if isinstance(option, RolloutOption)
    ]


def parse_rollout(body: dict[str, Any]) -> RolloutProperties | list[Problem]:
    problems = unknown_properties(body, {"properties", *ENVELOPE})
    properties = body.get("properties", {})
    if not isinstance(properties, dict):
        return [*problems, Problem("properties", "The value must be an object.")]
    found = RolloutProperties.parse(
        {key: value for key, value in properties.items() if key not in READ_ONLY}, "properties"
    )
    return [*problems, *found] if isinstance(found, list) else problems or found
