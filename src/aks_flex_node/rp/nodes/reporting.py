"""What a node says of itself, and the credentials that it is given."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.problems import from_pydantic
from aks_flex_node.rp.arm.times import iso
from aks_flex_node.rp.notifying import changes
from aks_flex_node.rp.notifying.hooks import Notices
from aks_flex_node.rp.resource.models import Part
from aks_flex_node.rp.store.store import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.rp.nodes.around import Known, Request, Workshop
    from aks_flex_node.rp.nodes.granting import Granting
    from aks_flex_node.rp.store.store import Node

MOST_CONDITIONS = 64
ATTEMPTS = 5  # at a node of which others report, too
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.IGNORECASE)


def _moment(given: object) -> object:
    """A time without a zone is nobody's, and a number may be seconds or milliseconds."""
    if isinstance(given, str) and _MOMENT.fullmatch(given):
        return given
    raise PydanticCustomError("moment", "should be a time with its zone, such as 2026-02-26T15:30:45Z")


Moment = Annotated[datetime, BeforeValidator(_moment), Field(strict=False)]
ConfigVersion = Annotated[str, Field(pattern=r"^[0-9]{1,19}$")]
Words = Annotated[str, Field(max_length=256)]


class Condition(Part):
    type: Annotated[str, Field(min_length=1, max_length=316)]
    status: Literal["True", "False", "Unknown"]
    last_transition_time: Moment | None = None
    reason: Annotated[str, Field(max_length=1024)] | None = None
    message: Annotated[str, Field(max_length=32768)] | None = None


class Report(Part):
    conditions: Annotated[list[Condition], Field(max_length=MOST_CONDITIONS)] | None = None
    last_config_applied: Moment | None = None
    applied_config_version: ConfigVersion | None = None
    join_state: Literal["Created", "ConfigFetched", "BootstrapAttempted", "Joined", "Failed"] | None = None
    join_failure: Annotated[str, Field(max_length=32768)] | None = None
    agent_version: Words | None = None
    kubelet_version: Words | None = None
    drift_count: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    last_drift_detected: Moment | None = None


def read(document: dict[str, Any]) -> Report:
    try:
        return Report.model_validate({key: value for key, value in document.items() if value is not None})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise errors.invalid([from_pydantic(each) for each in found]) from None


def merged(report: Report, earlier: dict[str, Any], now: float, *, monitored: bool = True) -> dict[str, Any]:
    """What a node leaves out stays as it was; conditions, when it tells any, are all it has to tell.

    Of a node that is not `monitored` the service itself keeps Ready, and only a newer word replaces that.
    """
    told = report.model_dump(mode="json", exclude_none=True, exclude={"conditions", "join_state", "join_failure"})
    if report.conditions is not None:
        before = {each["type"]: each for each in earlier.get("conditions", ())}
        latest = {each.type: _condition(each, before.get(each.type), now) for each in report.conditions}
        kept = {} if monitored else {kind: each for kind, each in before.items() if kind == "Ready"}
        told["conditions"] = [*{**kept, **latest}.values()]
    return {**earlier, **told}


def _condition(condition: Condition, before: dict[str, Any] | None, now: float) -> dict[str, Any]:
    shown = condition.model_dump(mode="json", exclude_none=True)
    if "lastTransitionTime" not in shown:
        same = before is not None and before["status"] == condition.status
        shown["lastTransitionTime"] = before["lastTransitionTime"] if before and same else iso(now)
    return shown


@dataclass(frozen=True)
class Reporting:
    shop: Workshop
    granting: Granting
    saw: Callable[[str, str, float], None]  # that a node was heard of; written with many others
    notices: Notices = field(default_factory=Notices)

    async def report(self, cluster: Known, name: str, document: dict[str, Any], request: Request) -> dict[str, str]:
        """A node that is about to join says ConfigFetched, and is let into its cluster before it is answered."""
        report, now = read(document), self.shop.now()
        node = await self.shop.store.node(cluster.id.key, name.lower())
        if node is None:
            raise errors.no_node(cluster.id, name)
        introduction = report.join_state == "ConfigFetched"
        node = await self.granting.let_in(cluster, node, request, introduction=introduction)
        node = await self._note(cluster, node, report, now)
        if report.join_state == "Failed":
            await self._failed(node, report.join_failure or "The agent gave no reason.")
        return {"configVersion": str(node.version), "lastSeen": iso(now)}

    async def _note(self, cluster: Known, node: Node, report: Report, now: float) -> Node:
        """The node as it was before. What is told of it is a difference from that, so it must still be there."""
        found: Node | None = node
        for _ in range(ATTEMPTS):
            if found is None:
                raise errors.no_node(cluster.id, node.name)
            monitored = bool(found.properties.get("continuousMonitoring"))
            status = merged(report, found.status, now, monitored=monitored)
            if status == found.status:
                self.saw(found.cluster, found.key, now)  # a heartbeat writes no row of its own
                return found
            messages = self.notices.of(found, changes.of_status(found.status, status), now)
            before = found.status if messages else None
            try:
                if await self.shop.store.report(found.cluster, found.key, status, now, messages, before):
                    return found
                found = None
            except Conflict:
                found = await self.shop.store.node(node.cluster, node.key)
        raise errors.busy(node.name)

    async def _failed(self, node: Node, why: str) -> None:
        """That it could not join is the node's to say; that it has joined is the cluster's."""
        if node.join.get("state") == "Joined" or node.join.get("failure") == why:
            return
        failed = replace(node, join={**node.join, "state": "Failed", "failure": why})
        messages = self.notices.of(node, changes.of_join(node.join, failed.join), self.shop.now())
        try:
            await self.shop.store.put_node(failed, node.etag, (), messages)
        except Conflict:
            return  # it was written anew meanwhile, and begins from there

    async def credentials(self, cluster: Known, name: str, request: Request) -> dict[str, Any]:
        shop = self.shop
        node = await shop.store.node(cluster.id.key, name.lower())
        if node is None:
            raise errors.no_node(cluster.id, name)
        method = node.properties["azureAuth"]["method"]
        answer: dict[str, Any] = {"configVersion": str(node.version), "method": method}
        if method == "servicePrincipal":
            principal = node.config["azure"]["servicePrincipal"]
            secret = shop.open_secrets(node).client_secret  # none where the machine has a certificate
            answer["servicePrincipal"] = {
                "clientId": principal["clientId"],
                **({"clientSecret": secret} if secret else {}),
                "clientTenant": principal.get("clientTenant", ""),
            }
        event = request.event(shop.now(), "listCredentials", cluster.id.node(node.name), method=method)
        await shop.store.record(event)
        return answer
