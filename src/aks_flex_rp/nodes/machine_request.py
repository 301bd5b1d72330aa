"""A machine that asks to be enrolled: the caller that it acts as, and the audit events of its request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.api import enrolments as wire
from aks_flex_node.api.node_keys import fingerprint
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.nodes.context import RequestContext

if TYPE_CHECKING:
    from aks_flex_node.api.enrolments import MachineFacts
    from aks_flex_node.api.machine_identity import MachineIdentity
    from aks_flex_rp.store.model import AuditAction, AuditEvent
    from aks_flex_rp.store.pool_model import Enrolment


@dataclass(frozen=True)
class MachineRequest:
    """A machine that asks to be enrolled, and has proved that it has its key."""

    thumbprint: str
    facts: MachineFacts
    machine: MachineIdentity | None
    source: str
    request_id: str

    @property
    def system_uuid(self) -> str:
        return wire.normalized_uuid(self.facts.system_uuid)

    def context(self, enrolment: Enrolment) -> RequestContext:
        """Returns the request as which the node is written. The machine may see the secrets of its own node."""
        caller = Caller(self.thumbprint, f"enrolment {enrolment.pool}/{enrolment.key}", CallerKind.NODE_KEY)
        return RequestContext(caller, self.request_id, self.source, may_see_secrets=True)

    def event(self, now: float, enrolment: Enrolment, what: AuditAction, **detail: object) -> AuditEvent:
        cluster = parse_cluster_id(enrolment.cluster)
        above = cluster.pool(enrolment.pool) if cluster else enrolment.cluster
        shown = {"fingerprint": fingerprint(self.thumbprint), "facts": self.facts.to_document()}
        return self.context(enrolment).event(now, what, f"{above}/enrolments/{enrolment.key}", **shown, **detail)
