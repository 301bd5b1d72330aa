"""The body of a roll-out, and the plan that it describes."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from aks_flex_node.api import kubernetes_rules
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


class RolloutProperties(WireModel):
    revision: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    node_selector: Labels | None = None
    waves: Annotated[list[ShareText], Field(min_length=1, max_length=MAX_WAVES), AfterValidator(_ascending)] = Field(
        default_factory=lambda: ["1", "10%", "50%", "100%"]
    )
    canary_selector: Labels | None = None
    max_unavailable: ShareText = "10%"
    failure_domain: FailureDomainSpec | None = None
    soak_seconds: Seconds = 600
    max_failures: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    on_failure: Literal["halt", "reverse"] = "reverse"
    node_timeout_seconds: Annotated[int, Field(ge=30, le=WEEK)] = 3600
    stage_timeout_seconds: Seconds = 600
    allow_downgrade: bool = False
    gates: Gates = Field(default_factory=list)
    replace_active: bool = False

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


def parse_rollout(body: dict[str, Any]) -> RolloutProperties | list[Problem]:
    problems = unknown_properties(body, {"properties", *ENVELOPE})
    properties = body.get("properties", {})
    if not isinstance(properties, dict):
        return [*problems, Problem("properties", "The value must be an object.")]
    found = RolloutProperties.parse(
        {key: value for key, value in properties.items() if key not in READ_ONLY}, "properties"
    )
    return [*problems, *found] if isinstance(found, list) else problems or found
