"""What the service answers when it does not do what was asked, in ARM's words and shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aks_flex_node.rp.arm.ids import ClusterId
    from aks_flex_node.rp.arm.problems import Problem
    from aks_flex_node.rp.callers import Caller

API_VERSION = "2026-05-01-preview"
MOST_DETAILS = 100


@dataclass(frozen=True)
class Detail:
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
    details: tuple[Detail, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        shown = Detail(self.code, self.message, self.target).document()
        return {"error": {**shown, "details": [each.document() for each in self.details]} if self.details else shown}


def invalid(problems: Sequence[Problem]) -> ArmError:
    """All problems of a request at once; of very many, enough to see what is meant."""
    if len(problems) == 1:
        [only] = problems
        return ArmError(400, "InvalidRequestContent", only.message, only.target)
    message = f"There are {len(problems)} problems in the request. Correct them all; nothing was changed."
    details = tuple(Detail("InvalidRequestContent", each.message, each.target) for each in problems[:MOST_DETAILS])
    return ArmError(400, "InvalidRequestContent", message, details=details)


def missing_version() -> ArmError:
    message = f"The api-version query parameter (?api-version=) is required for all requests: {API_VERSION}."
    return ArmError(400, "MissingApiVersionParameter", message)


def unknown_version() -> ArmError:
    message = f"The api-version of the request is not supported. The supported api-versions are '{API_VERSION}'."
    return ArmError(400, "InvalidApiVersionParameter", message)


def forbidden(caller: Caller, action: str, scope: str) -> ArmError:
    """The same whether or not there is anything, so that nobody learns by asking what exists."""
    return ArmError(
        403,
        "AuthorizationFailed",
        f"The client '{caller.name}' with object id '{caller.id}' does not have authorization to perform action "
        f"'{action}' over scope '{scope}' or the scope is invalid. If access was recently granted, please refresh "
        "your credentials.",
    )


def secret_in_bundle(caller: Caller) -> ArmError:
    return ArmError(
        403,
        "AuthorizationFailed",
        f"The config URL would give '{caller.name}' the service principal's secret, which somebody else has written, "
        "and which only owners may see. Send the secret in the body of a PUT, or ask an owner.",
    )


def no_cluster(cluster: ClusterId) -> ArmError:
    message = (
        f"Failed to perform the requested operation on nested resource. Parent resource '{cluster}' not found. "
        "Add it with `aks-flex-rp cluster add`."
    )
    return ArmError(404, "ParentResourceNotFound", message)


def no_node(cluster: ClusterId, name: str) -> ArmError:
    message = f"The Resource 'Microsoft.ContainerService/managedClusters/{cluster.name}/flexNodeConfig/{name}' under "
    return ArmError(404, "ResourceNotFound", f"{message}resource group '{cluster.group}' was not found.")


def stale(name: str) -> ArmError:
    message = f"flexNodeConfig '{name}' is not as If-Match or If-None-Match of the request say."
    return ArmError(412, "PreconditionFailed", message)


def too_many(seconds: float) -> ArmError:
    wait = str(max(1, round(seconds + 0.5)))
    return ArmError(
        429, "TooManyRequests", f"Too many requests. Try again in {wait} s.", headers={"Retry-After": wait}
    )


def busy(name: str) -> ArmError:
    message = f"Others are changing flexNodeConfig '{name}' at this moment. Try again."
    return ArmError(409, "Conflict", message, headers={"Retry-After": "1"})


def not_here() -> ArmError:
    return ArmError(404, "InvalidResourceType", "There is nothing at this address. /openapi.json says what there is.")


def not_allowed(method: str, allowed: str) -> ArmError:
    message = f"The method {method} is not allowed here; these are: {allowed}."
    return ArmError(405, "HttpMethodNotAllowed", message, headers={"Allow": allowed})
