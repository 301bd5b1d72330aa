"""The body of a roll-out, and the plan that it describes. The fields are the table of its options: forms and command
lines read `option_data`, as JSON.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from aks_flex_node.api import kubernetes_rules
from aks_flex_node.api.rollout_options import written
from aks_flex_rp.arm.errors import Problem, unknown_properties
from aks_flex_rp.resource.models import ENVELOPE, WireModel
from aks_flex_rp.rollouts.gate_specs import Gates  # noqa: TC001 - pydantic reads it
from aks_flex_rp.rollouts.plan import FailureDomain, OnFailure, PlannedGate, RolloutPlan, Share

if TYPE_CHECKING:
    from aks_flex_node.settings.setting import Rule

MAX_LABELS = 16
MAX_WAVES = 20
WEEK = 604_800
READ_ONLY = (
    *("provisioningState", "state", "paused", "wave", "reason", "waitsFor", "failures", "startedAt", "stateSince"),
    *("endedAt", "createdBy", "waveProgress", "gateResults"),
)


def _share(text: str) -> str:
    share = Share.parse(text) if _SHARE.fullmatch(text) else Share()
    if not (0 < share.percent <= 100 or 0 < share.count <= 1_000_000):
        reason = "'{value}' is not a number of nodes such as 3, nor a percentage from 1% to 100%"
        raise PydanticCustomError("share", reason, {"value": text[:20]})
    return text


def _checked_by(rule: Rule) -> AfterValidator:
    def check(text: str) -> str:
        if reason := rule(text):
            raise PydanticCustomError("label", "'{value}' {reason}", {"value": text[:80], "reason": reason})
        return text

    return AfterValidator(check)


_SHARE = re.compile(r"[0-9]{1,7}%?")
ShareText = Annotated[str, AfterValidator(_share)]
LabelKey = Annotated[str, _checked_by(kubernetes_rules.label_key)]
LabelValue = Annotated[str, _checked_by(kubernetes_rules.label_value)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS)]
Seconds = Annotated[int, Field(ge=0, le=WEEK)]


def _ascending(waves: list[str]) -> list[str]:
    shares = [Share.parse(each) for each in waves]
    if shares[-1].percent != 100:
        raise PydanticCustomError("waves", "must end with 100%, so that no node is left out")
    for kind in ([each.count for each in shares if each.count], [each.percent for each in shares if each.percent]):
        if any(later <= earlier for earlier, later in pairwise(kind)):
            raise PydanticCustomError("waves", "must be ascending: each wave includes the earlier ones")
    return waves


class FailureDomainSpec(WireModel):
    label: LabelKey
    max_unavailable: ShareText = "1"


class RolloutOption(NamedTuple):
    """What command lines and forms need of a property, besides its path, type and default."""

    flag: str  # on all command lines; the first one is its name
    kind: str  # how people write it
    help: str
    group: str = ""
    form: str = ""  # the label of its field in the form


class RolloutProperties(WireModel):
    revision: Annotated[
        Annotated[int, Field(ge=1, lt=2**53)] | None,
        RolloutOption("--revision", "number", "Number of the revision. Default: the newest."),
    ] = None
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
    ] = Field(default_factory=lambda: ["1", "10%", "50%", "100%"])
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
    ] = "10%"
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

    def plan(self, revision: int) -> RolloutPlan:
        domain = self.failure_domain
        return RolloutPlan(
            revision,
            tuple(map(Share.parse, self.waves)),
            self.canary_selector or {},
            Share.parse(self.max_unavailable),
            FailureDomain(domain.label, Share.parse(domain.max_unavailable)) if domain else None,
            float(self.soak_seconds),
            self.max_failures,
            OnFailure(self.on_failure),
            tuple(
                PlannedGate(each.name, float(each.timeout_seconds), each.kind == "approval") for each in self.gates
            ),
            float(self.node_timeout_seconds),
            float(self.stage_timeout_seconds),
        )

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
