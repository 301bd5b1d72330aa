"""Long-running operations of Azure Resource Manager: started by one request, then polled until they finish, possibly
by another process. An operation can be stored, so that a run after a crash continues to wait and starts nothing
twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from aks_flex_node.azure.arm import DEFAULT_PAUSE_SECONDS, ArmClient, ArmReply, AzureCallError
from aks_flex_node.lean_dataclass import frozen

DONE, ENDED = "succeeded", frozenset({"failed", "canceled", "cancelled"})
HOUR = 3600.0

NoteProgress = Callable[[str], None]


@frozen
class AzureOperation:
    """A long-running operation in Azure."""

    what: str  # for messages, for example "the VPN gateway"
    resource: str  # path of the resource
    api_version: str
    status_url: str = ""
    result_url: str = ""
    began: float = 0.0  # Unix time


@frozen
class OperationTimeout:
    """Time limit and clocks of an operation. It uses the monotonic clock, because the system clock can change."""

    seconds: float = HOUR
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic


def started_operation(reply: ArmReply, what: str, resource: str, api_version: str, now: float) -> AzureOperation:
    return AzureOperation(
        what,
        resource,
        api_version,
        reply.headers.get("azure-asyncoperation", ""),
        reply.headers.get("location", ""),
        now,
    )


def wait_for_operation(
    arm: ArmClient, operation: AzureOperation, timeout: OperationTimeout, note: NoteProgress
) -> Any:
    """Waits until the operation has finished and returns its result. Temporary failures are retried until the
    timeout.
    """
    last_message, start = "", timeout.clock()  # a process that continues to wait has its own timeout
    while True:
        try:
            state, result, pause = _poll(arm, operation)
        except AzureCallError as error:
            if not error.retryable:
                raise
            state, result, pause = "Unknown", None, DEFAULT_PAUSE_SECONDS
        if state.lower() == DONE:
            return result
        if state.lower() in ENDED:
            raise operation_failed_error(operation, state, result)
        if timeout.clock() - start > timeout.seconds:
            raise AzureCallError(
                "azure-operation-timeout",
                f"The Azure operation for {operation.what} did not finish within {timeout.seconds / 60:.0f} min.",
                "The operation continues in Azure. Run the same command again to continue waiting.",
                retryable=True,
            )
        minutes = max(0, int((timeout.now() - operation.began) // 60))
        since = f", {minutes} min so far" if minutes else ""
        message = f"waiting for Azure: {operation.what}{since}"
        if message != last_message:
            note(message)
        last_message = message
        timeout.sleep(pause)


def _poll(arm: ArmClient, operation: AzureOperation) -> tuple[str, Any, float]:
    """Returns the state, the result (or the error), and the time until the next poll."""
    if operation.status_url:
        reply = _known(arm, operation.status_url)
        if reply:
            body = reply.body if isinstance(reply.body, dict) else {}
            state = str(body.get("status") or "InProgress")
            if state.lower() == DONE:
                url = operation.result_url
                result = arm.send("GET", url) if url else arm.send("GET", operation.resource, operation.api_version)
                return state, result.body, reply.pause
            return state, body, reply.pause
    elif operation.result_url:
        reply = _known(arm, operation.result_url)
        if reply:
            return ("InProgress" if reply.status == 202 else "Succeeded"), reply.body, reply.pause
    reply = arm.send("GET", operation.resource, operation.api_version)
    return provisioning_state(reply.body), reply.body, reply.pause


def _known(arm: ArmClient, url: str) -> ArmReply | None:
    """Returns None if Azure no longer knows the operation. Then the resource itself has the state."""
    try:
        return arm.send("GET", url)
    except AzureCallError as error:
        if error.status in {404, 410}:
            return None
        raise


def provisioning_state(body: Any) -> str:
    """Returns the provisioning state of a resource. A resource without one counts as succeeded."""
    properties = body.get("properties") if isinstance(body, dict) else None
    return str((properties or {}).get("provisioningState") or "Succeeded")


def operation_failed_error(operation: AzureOperation, state: str, body: Any) -> AzureCallError:
    error = body.get("error") if isinstance(body, dict) else None
    code, message = (
        (str(error.get(key) or "") for key in ("code", "message")) if isinstance(error, dict) else ("", "")
    )
    cause = f"{code}: {message}" if code else message or "no message"
    return AzureCallError(
        "azure-operation-failed",
        f"The Azure operation for {operation.what} ended with {state}: {cause.rstrip('.')}.",
        f"Check {operation.resource} in the portal or with `az resource show --ids`, correct the cause, then run "
        "the same command again.",
        retryable=False,
        code=code,
    )
