"""ARM error responses, and validation problems: the JSON path of an invalid value and the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.arm_errors import NODE_KEY_REVOKED
from aks_flex_node.settings.value_checks import closest_match

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.callers import Caller


MAX_DETAILS = 100


@dataclass(frozen=True)
class ErrorDetail:
    code: str
    message: str
    target: str = ""

    def document(self) -> dict[str, Any]:
        shown = {"code": self.code, "message": self.message}
        return {**shown, "target": self.target} if self.target else shown


@dataclass
class ArmError(Exception):
    status: int
    code: str
    message: str
    target: str = ""
    details: tuple[ErrorDetail, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        shown = ErrorDetail(self.code, self.message, self.target).document()
        return {"error": {**shown, "details": [each.document() for each in self.details]} if self.details else shown}


def invalid(target: str, message: str) -> ArmError:
    return ArmError(400, "InvalidRequestContent", message, target)


def invalid_request(problems: Sequence[Problem]) -> ArmError:
    """Combines all problems of a request into one error. The number of details is limited."""
    if len(problems) == 1:
        [only] = problems
        return invalid(only.target, only.message)
    message = f"The request has {len(problems)} problems. Correct them all. Nothing was changed."
    details = tuple(
        ErrorDetail("InvalidRequestContent", each.message, each.target) for each in problems[:MAX_DETAILS]
    )
    return ArmError(400, "InvalidRequestContent", message, details=details)


def forbidden(caller: Caller, action: str, scope: str) -> ArmError:
    """Returns the same error whether or not the resource exists, so that the response does not reveal it."""
    return ArmError(
        403,
        "AuthorizationFailed",
        f"The client '{caller.name}' with object id '{caller.id}' does not have authorization to perform action "
        f"'{action}' over scope '{scope}' or the scope is invalid. If access was recently granted, please refresh "
        "your credentials.",
    )


def config_url_not_found() -> ArmError:
    message = "This config URL is not valid or has expired. Create a new one with regenerateToken."
    return ArmError(404, "ConfigUrlNotFound", message)


def key_revoked(name: str) -> ArmError:
    return ArmError(
        403,
        NODE_KEY_REVOKED,
        f"The key of node {name} was revoked. To let the machine be node {name} again, run the join command of "
        f"`aks-flex-rp node join-command --name {name}` on it.",
    )


def key_replaced(name: str) -> ArmError:
    return ArmError(
        403,
        NODE_KEY_REVOKED,
        f"Node {name} has another key now, so this one is no longer valid. If this machine is to be node {name}, run "
        f"the join command of `aks-flex-rp node join-command --name {name} --replace` on it.",
    )


def cluster_not_found(cluster: ClusterId) -> ArmError:
    message = (
        f"Failed to perform the requested operation on nested resource. Parent resource '{cluster}' not found. "
        "Add it with `aks-flex-rp cluster add`."
    )
    return ArmError(404, "ParentResourceNotFound", message)


def node_not_found(cluster: ClusterId, name: str) -> ArmError:
    message = f"The Resource 'Microsoft.ContainerService/managedClusters/{cluster.name}/flexNodeConfig/{name}' under "
    return ArmError(404, "ResourceNotFound", f"{message}resource group '{cluster.group}' was not found.")


def pool_not_found(cluster: ClusterId, name: str) -> ArmError:
    message = f"The Resource 'Microsoft.ContainerService/managedClusters/{cluster.name}/flexNodePools/{name}' under "
    return ArmError(404, "PoolNotFound", f"{message}resource group '{cluster.group}' was not found.")


def revision_not_found(pool: str, number: int) -> ArmError:
    listing = f"`aks-flex-rp pool revisions --name {pool}`"
    message = f"The pool '{pool}' has no revision {number}. List its revisions with {listing}."
    return ArmError(404, "RevisionNotFound", message, "revision")


def pool_has_nodes(name: str, count: int, some: Sequence[str]) -> ArmError:
    more = f" and {count - len(some)} others" if count > len(some) else ""
    nodes, them, each = ("node", "it", some[0]) if count == 1 and some else ("nodes", "each of them", "NODE")
    message = (
        f"The pool '{name}' has {count} {nodes}: {', '.join(some)}{more}. Remove {them} from the pool with "
        f"`aks-flex-rp node update --name {each} --pool ''`, or delete {them} with `aks-flex-rp node delete --name "
        f"{each}`, and try again. `aks-flex-rp node list --pool {name}` lists them."
    )
    return ArmError(409, "PoolHasNodes", message)


def precondition_failed(name: str, kind: str = "flexNodeConfig") -> ArmError:
    message = f"The state of {kind} '{name}' does not match If-Match or If-None-Match of the request."
    return ArmError(412, "PreconditionFailed", message)


def too_many_requests(seconds: float) -> ArmError:
    wait = str(max(1, round(seconds + 0.5)))
    return ArmError(
        429, "TooManyRequests", f"Too many requests. Try again in {wait} s.", headers={"Retry-After": wait}
    )


def concurrent_changes(name: str, kind: str = "flexNodeConfig") -> ArmError:
    message = f"Another request is changing {kind} '{name}'. Try again."
    return ArmError(409, "Conflict", message, headers={"Retry-After": "1"})


def unknown_path() -> ArmError:
    return ArmError(
        404, "InvalidResourceType", "This path does not exist. See /openapi.json for the supported paths."
    )


def method_not_allowed(method: str, allowed: str) -> ArmError:
    message = f"The method {method} is not allowed. Allowed methods: {allowed}."
    return ArmError(405, "HttpMethodNotAllowed", message, headers={"Allow": allowed})


_PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_QUOTABLE = 80  # maximum length of a value in a message


@dataclass(frozen=True)
class Problem:
    target: str
    message: str


def json_path(*steps: str | int) -> str:
    """Formats a JSON path, such as `properties.nodeConfig.labels['example.com/a']` or `…taints[0].key`."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.fullmatch(step):
            text += f".{step}" if text else step
        else:
            quoted = step.replace("\\", "\\\\").replace("'", "\\'")
            text += f"['{quoted}']"
    return text


def quoted(value: object) -> str:
    text = str(value)
    return f"'{text[:_QUOTABLE]}…'" if len(text) > _QUOTABLE else f"'{text}'"


def unknown_property(known: Collection[str], *steps: str) -> Problem:
    near = closest_match(steps[-1][:_QUOTABLE], known)
    remedy = f"Did you mean {near}?" if near else "Correct its name, or remove it."
    return Problem(json_path(*steps), f"Unknown property. {remedy}")


def unknown_properties(document: Mapping[str, Any], known: Collection[str], *above: str) -> list[Problem]:
    names = [name for name in document if name not in known]
    # A suggestion takes time, and a response does not list more.
    return [unknown_property(known if index < MAX_DETAILS else (), *above, name) for index, name in enumerate(names)]
