"""Classifies the responses of Azure Resource Manager to polls of a node's Machine in an AKS pool. Pure functions.

A response that is not clearly from Azure Resource Manager is not trusted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aks_flex_node.agent.aks_pool.machine_document import PoolMachine, parse_machine
from aks_flex_node.agent.config.remote import VERSION_TEXT
from aks_flex_node.agent.http.client import parse_retry_after
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.api.arm_errors import parse_arm_error, parse_object
from aks_flex_node.azure.error_messages import parse_forbidden, role_assignment_command
from aks_flex_node.azure.roles import FLEX_NODE_AGENT
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.aks_pool.pool_ids import PoolId

OTHER_TENANT_CODE = "InvalidAuthenticationTokenTenant"
RETRIES = "The agent tries again by itself."
# What to do, after the cause.
REMEDIES = {
    ProviderState.UNREACHABLE: f"Check the network, the DNS and the proxy of this machine. {RETRIES}",
    ProviderState.UNTRUSTED: "Check `azure.caCertData`, the clock of this machine and the proxy.",
    ProviderState.THROTTLED: RETRIES,
    ProviderState.FAILING: RETRIES,
    ProviderState.NO_CLUSTER: "Check that the cluster and the pool still exist.",
    ProviderState.UNEXPECTED_RESPONSE: "Check `azure.resourceManager` and the proxy.",
}


def read_machine(status: int, body: bytes, name: str) -> PoolMachine | None:
    """Returns the Machine with this name; None for any other response."""
    if status != 200:
        return None
    try:
        machine = parse_machine(parse_object(body))
    except FlexError:
        return None
    is_own = machine.name.lower() == name.lower() and VERSION_TEXT.fullmatch(machine.etag)
    return machine if is_own else None


def lists_others(status: int, body: bytes, name: str) -> bool:
    """Returns whether a response is the list of a pool's Machines, without the one with this name.

    The pool itself proves the same, but the role of a node does not allow to read it.
    """
    machines = parse_object(body).get("value") if status == 200 else None
    if not isinstance(machines, list) or not all(isinstance(each, dict) for each in machines):
        return False
    return all(str(each.get("name")).lower() != name.lower() for each in machines)


def next_page(body: bytes, origin: str, path: str) -> str | None:
    """Returns path and query of the next page of a list; empty after the last one. None: it is somewhere else."""
    link = parse_object(body).get("nextLink")
    if not link:
        return ""
    parts = urlsplit(str(link))
    is_own = f"{parts.scheme}://{parts.netloc}".lower() == origin.lower() and parts.path.lower() == path.lower()
    return f"{path}?{parts.query}" if is_own and parts.query else None


def is_not_found(status: int, body: bytes) -> bool:
    """Returns whether Azure Resource Manager, not a proxy, responds that something does not exist."""
    return status == 404 and bool(parse_arm_error(body)[0])


def classify_failure(status: int, headers: Mapping[str, str], body: bytes, pool: PoolId) -> PollResult:
    """Classifies a response that is not the Machine."""
    code, message = parse_arm_error(body)
    if not code:
        what = "not a Machine" if status == 200 else f"status {status} without an ARM error body"
        return PollResult(
            ProviderState.UNEXPECTED_RESPONSE,
            f"Unexpected response from Azure Resource Manager: {what}. A proxy or a sign-in page may have answered "
            f"instead. {REMEDIES[ProviderState.UNEXPECTED_RESPONSE]}",
        )
    after = parse_retry_after(headers.get("Retry-After", ""))
    text = f"{code}: {message} (status {status})"
    if status in {401, 403}:
        return PollResult(ProviderState.FORBIDDEN, f"{text}. {_access_remedy(status, code, message, pool)}")
    known = {404: ProviderState.NO_CLUSTER, 429: ProviderState.THROTTLED}
    state = known.get(status, ProviderState.FAILING)
    return PollResult(state, f"{text}. {REMEDIES[state]}", retry_after=after)


def explain_no_answer(result: PollResult) -> PollResult:
    """Adds what to do to the result of a request without a response."""
    remedy = REMEDIES.get(result.state)
    return replace(result, message=f"{result.message} {remedy}") if remedy else result


def _access_remedy(status: int, code: str, message: str, pool: PoolId) -> str:
    if code == OTHER_TENANT_CODE:
        return (
            "The node's identity belongs to another tenant than the cluster: set `azure.tenantId` to the cluster's."
        )
    if status == 401:
        return "The token of the node's identity was rejected. Check `azure.tenantId` and the clock of this machine."
    missing, role = parse_forbidden(message), FLEX_NODE_AGENT.name
    command = role_assignment_command(missing.who if missing else "", role, str(pool), "ServicePrincipal")
    return f"The node's identity needs the role {role} at the pool: `{command}`."
