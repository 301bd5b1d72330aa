"""Rules of an enrolment, without I/O: its request body, the names of nodes, the allow list, and the resource."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from aks_flex_node.api.allow_lists import FACTS
from aks_flex_node.api.enrolments import normalized_serial, normalized_uuid
from aks_flex_node.api.node_keys import fingerprint
from aks_flex_node.timestamps import format_utc, parse_timestamp
from aks_flex_rp.arm.errors import invalid, json_path
from aks_flex_rp.arm.ids import POOL_TYPE
from aks_flex_rp.resource.models import WireModel
from aks_flex_rp.store.pool_model import ApprovalMode, Enrolment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.api.enrolments import MachineFacts
    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.store.model import Document
    from aks_flex_rp.store.pool_model import EnrolledMachine

MAX_USES = 100_000
MAX_ALLOWED = 10_000
MAX_SECONDS = 366 * 86400.0
DEFAULT_RULE = "{hostname}"

_RULE = re.compile(
    r"(?P<before>[a-z0-9.-]*)(?:\{(?P<fact>hostname|serial)\}|\{number(?::0(?P<digits>[1-8]))?\})(?P<after>[a-z0-9.-]*)"
)
_NODE_NAME = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class NameInvalidError(ValueError):
    """The facts of a machine do not make a name for its node."""


def is_numbered(rule: str) -> bool:
    return "{number" in rule


def node_name(rule: str, facts: MachineFacts, number: int) -> str:
    """Returns the name of a node. Raises NameInvalidError if the machine has no such fact, or it makes no name."""
    found = _RULE.fullmatch(rule)
    if found is None:
        raise NameInvalidError(f"The rule {rule} is not valid.")
    fact = found["fact"]
    if fact is None:
        value = f"{number:0{found['digits'] or 1}}"
    else:
        text = facts.hostname.lower() if fact == "hostname" else normalized_serial(facts.serial_number)
        value = re.sub(r"[^a-z0-9.-]+", "-", text).strip("-.")
        if not value:
            shown = "host name" if fact == "hostname" else "serial number of its own"
            raise NameInvalidError(f"The machine sent no {shown}, which the rule {rule} needs.")
    name = found["before"] + value + found["after"]
    if not _NODE_NAME.fullmatch(name):
        raise NameInvalidError(
            f"'{name[:80]}' is not a valid node name: it has at most 63 letters, digits, '-', '.'."
        )
    return name


def is_allowed(allow: tuple[Document, ...], facts: MachineFacts) -> bool:
    """Returns whether a machine is on an allow list."""
    known = {
        "serialNumber": {normalized_serial(facts.serial_number)},
        "systemUuid": {normalized_uuid(facts.system_uuid)},
        "macAddress": set(facts.mac_addresses),
    }
    return any(value and value in known[name] for entry in allow for name, value in entry.items())


def _name_rule(text: str) -> str:
    if not _RULE.fullmatch(text):
        message = (
            "should be lowercase letters, digits, '-' and '.', with one of {{hostname}}, {{serial}}, {{number}} and "
            "{{number:04}} in it, for example edge-{{number:04}}"
        )
        raise PydanticCustomError("name_rule", message)
    return text


class EnrolmentBody(WireModel):
    max_uses: Annotated[int, Field(ge=1, le=MAX_USES)]
    expires: str
    approval: Literal["automatic", "manual", "allowList"] = "automatic"
    allow: Annotated[list[dict[str, str]], Field(max_length=MAX_ALLOWED)] = Field(default_factory=list)
    node_name: Annotated[str, Field(max_length=80), AfterValidator(_name_rule)] = DEFAULT_RULE


def new_enrolment(
    body: dict[str, Any], cluster: str, pool: str, key: str, secret: str, system: Document, now: float
) -> Enrolment:
    """Returns the enrolment that a request describes. Raises ArmError with its problems."""
    given = EnrolmentBody.read(body)
    return Enrolment(
        cluster,
        pool,
        key,
        secret,
        given.max_uses,
        _expiry(given.expires, now),
        given.node_name,
        ApprovalMode(given.approval),
        tuple(_allow_list(given.allow, listed=given.approval == "allowList")),
        system=system,
        created=now,
    )


def _expiry(value: str, now: float) -> float:
    try:
        found = parse_timestamp(value).timestamp() if value.endswith("Z") else 0.0
    except (ValueError, OverflowError):
        found = 0.0
    if not now < found <= now + MAX_SECONDS:
        example = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + 86400))
        raise invalid(
            "expires", f"The value must be a time in the next {MAX_SECONDS / 86400:.0f} days, for example {example}."
        )
    return found


def _allow_list(value: list[dict[str, str]], *, listed: bool) -> Iterator[dict[str, str]]:
    """Yields the entries in normal form. Raises ArmError with the path of the first invalid one."""
    if listed != bool(value):
        needed = "is needed" if listed else "is only used"
        raise invalid("allow", f"A list of machines {needed} with the approval allowList.")
    for index, entry in enumerate(value):
        path = json_path("allow", index)
        if len(entry) != 1 or next(iter(entry)) not in FACTS:
            raise invalid(path, f"The value must be an object with one of {', '.join(FACTS)}.")
        [(name, text)] = entry.items()
        normal = FACTS[name](text) if len(text) <= 128 else ""
        if not normal:
            message = f"The value is not a {name} that identifies a machine. Correct it, or remove the entry."
            raise invalid(f"{path}.{name}", message)
        yield {name: normal}


ACTIVE = "Active"


def enrolment_state(enrolment: Enrolment, now: float) -> str:
    if enrolment.revoked:
        return "Revoked"
    if now >= enrolment.expires:
        return "Expired"
    return "Exhausted" if enrolment.uses >= enrolment.max_uses else ACTIVE


def enrolment_resource(enrolment: Enrolment, cluster: ClusterId, now: float, waiting: int = 0) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "provisioningState": "Succeeded",
        "state": enrolment_state(enrolment, now),
        "maxUses": enrolment.max_uses,
        "uses": enrolment.uses,
        "waiting": waiting,
        "expires": format_utc(enrolment.expires),
        "approval": enrolment.approval.value,
        "nodeName": enrolment.node_name,
        **({"allow": list(enrolment.allow)} if enrolment.allow else {}),
        **({"revokedAt": format_utc(enrolment.revoked)} if enrolment.revoked else {}),
    }
    return {
        "id": f"{cluster.pool(enrolment.pool)}/enrolments/{enrolment.key}",
        "name": enrolment.key,
        "type": f"{POOL_TYPE}/enrolments",
        "systemData": enrolment.system,
        "properties": properties,
    }


def machine_resource(machine: EnrolledMachine) -> dict[str, Any]:
    shown = {
        "fingerprint": fingerprint(machine.thumbprint),
        "state": machine.state.value,
        "nodeName": machine.node,
        "address": machine.address,
        "firstSeen": format_utc(machine.first),
        "decidedBy": machine.by,
        "facts": machine.facts,
    }
    return {key: value for key, value in shown.items() if value}
