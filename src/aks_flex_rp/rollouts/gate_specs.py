"""Gates in the plan of a roll-out: pydantic models of `gates`, and the checks against the service's settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from aks_flex_rp.arm.errors import Problem, json_path, quoted
from aks_flex_rp.resource.models import WireModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_rp.rollout_settings import GateServerSettings, RolloutSettings

MOST_GATES = 10
MAX_TEMPLATE_BYTES = 1 << 14  # each Job contains it
MAX_QUERY_LENGTH = 4096
DAYS_7 = 604_800
KINDS = ("job", "webhook", "prometheus", "approval")

GateName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
PeerName = Annotated[str, Field(min_length=1, max_length=40)]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Comparison = Literal["<", "<=", ">", ">=", "==", "!="]


def _template(template: dict[str, Any]) -> dict[str, Any]:
    """Checks what the gate itself relies on. The API server checks the rest."""
    if len(json.dumps(template)) > MAX_TEMPLATE_BYTES:
        raise PydanticCustomError(
            "template_size", "must be at most {bytes} bytes of JSON, because each Job contains it", _BYTES
        )
    if problem := next(_template_problems(template), ""):
        raise PydanticCustomError("template", "{problem}", {"problem": problem})
    return template


_BYTES = {"bytes": MAX_TEMPLATE_BYTES}
_PINNED = "is not allowed here, because the gate runs a pod on each updated node and chooses the node itself"


def _template_problems(template: dict[str, Any]) -> Iterator[str]:
    """Yields the problems of a template, of which the caller reports the first."""
    if set(template) - {"metadata", "spec"}:
        yield "must be a PodTemplateSpec, with the properties metadata and spec only"
    metadata = template.get("metadata", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(metadata.get(each, {}), dict) for each in ("labels", "annotations")
    ):
        yield "has a metadata that is not an object with labels and annotations"
    spec = template.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list) or not spec["containers"]:
        yield "must have spec.containers with at least one container"
    else:
        yield from _spec_problems(spec)


def _spec_problems(spec: dict[str, Any]) -> Iterator[str]:
    for name in ("nodeName", "nodeSelector"):
        if spec.get(name):
            yield f"spec.{name} {_PINNED}"
    affinity = spec.get("affinity") or {}
    if not isinstance(affinity, dict) or affinity.get("nodeAffinity"):
        yield f"spec.affinity.nodeAffinity {_PINNED}"
    if spec.get("restartPolicy", "Never") != "Never":
        yield "spec.restartPolicy must be Never, so that a failure is seen"
    if not isinstance(spec.get("tolerations") or [], list):
        yield "spec.tolerations must be a list"


class JobGate(WireModel):
    """Runs a Job on each updated node of the wave. Passes when all have succeeded."""

    namespace: Namespace
    template: Annotated[dict[str, Any], AfterValidator(_template)]


class WebhookGate(WireModel):
    """Asks a receiver of the service's settings whether the wave may pass."""

    receiver: PeerName


class PrometheusGate(WireModel):
    """Passes when each value of a query satisfies the comparison, `successes` times in a row."""

    server: PeerName
    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_LENGTH)]
    comparison: Comparison
    threshold: Annotated[float, Field(allow_inf_nan=False)]
    successes: Annotated[int, Field(ge=1, le=100)] = 3
    interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 10


class ApprovalGate(WireModel):
    """Passes when a person approves it."""


class GateSpec(WireModel):
    """A gate between two waves: its name, its time limit, and exactly one kind."""

    name: GateName
    timeout_seconds: Annotated[int, Field(ge=1, le=DAYS_7)] = 3600
    job: JobGate | None = None
    webhook: WebhookGate | None = None
    prometheus: PrometheusGate | None = None
    approval: ApprovalGate | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> GateSpec:
        if len([each for each in KINDS if getattr(self, each) is not None]) != 1:
            raise PydanticCustomError(
                "gate_kind", "A gate must have exactly one of job, webhook, prometheus and approval"
            )
        return self

    @model_validator(mode="after")
    def _can_pass(self) -> GateSpec:
        query = self.prometheus
        needed = (query.successes - 1) * query.interval_seconds if query else 0
        if needed >= self.timeout_seconds:
            raise PydanticCustomError(
                "gate_time",
                "timeoutSeconds ({seconds}) is too short: successes and intervalSeconds alone take {needed} s",
                {"seconds": self.timeout_seconds, "needed": needed},
            )
        return self

    @property
    def needs_approval(self) -> bool:
        return self.approval is not None

    @property
    def kind(self) -> str:
        return next(each for each in KINDS if getattr(self, each) is not None)


def _unique_names(gates: list[GateSpec]) -> list[GateSpec]:
    names = [gate.name for gate in gates]
    for name in names:
        if names.count(name) > 1:
            raise PydanticCustomError("gate_names", "contains two gates of the name {name}", {"name": name})
    return gates


Gates = Annotated[list[GateSpec], Field(max_length=MOST_GATES), AfterValidator(_unique_names)]


def check_gates(specs: Sequence[GateSpec], settings: RolloutSettings) -> list[Problem]:
    """Returns a problem for each receiver or server that the service's settings do not name."""
    return list(_unknown_names(specs, settings))


def _unknown_names(specs: Sequence[GateSpec], settings: RolloutSettings) -> Iterator[Problem]:
    known: Sequence[GateServerSettings]
    for number, spec in enumerate(specs):
        if spec.webhook:
            known, name, path = settings.webhooks, spec.webhook.receiver, ("webhook", "receiver")
        elif spec.prometheus:
            known, name, path = settings.prometheus, spec.prometheus.server, ("prometheus", "server")
        else:
            continue
        names = sorted(each.name for each in known)
        if name not in names:
            setting = "rollouts.webhooks" if spec.webhook else "rollouts.prometheus"
            there = f"It knows {', '.join(names)}." if names else "It knows none."
            yield Problem(
                json_path("properties", "gates", number, *path),
                f"The service has no {path[1]} {quoted(name)}. {there} An administrator adds it to {setting} in the "
                "service's settings.",
            )
