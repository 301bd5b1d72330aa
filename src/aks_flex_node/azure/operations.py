"""Long-running operations of Azure Resource Manager: started by one request, then polled until they finish, possibly
by another process. An operation can be stored, so that a run after a crash continues to wait and starts nothing
twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Protocol

from aks_flex_node.azure.arm import ArmClient, AzureCallError
from aks_flex_node.lean_dataclass import frozen

DEFAULT_PAUSE_SECONDS = 10.0  # poll interval if Azure does not specify one
MAX_PAUSE_SECONDS = 60.0
DONE, ENDED = "succeeded", frozenset({"failed", "canceled", "cancelled"})
HOUR = 3600.0

NoteProgress = Callable[[str], None]


@frozen
class OperationReply:
    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case

    @property
    def pause(self) -> float:
        """Returns the Retry-After of Azure, within limits."""
        try:
            return min(max(float(self.headers.get("retry-after", DEFAULT_PAUSE_SECONDS)), 0.2), MAX_PAUSE_SECONDS)
        except ValueError:
            return DEFAULT_PAUSE_SECONDS


class OperationSender(Protocol):
    """Sends one request to ARM and returns the complete response. Raises AzureCallError if it is rejected."""

    def send(
        self, method: str, where: str, api_version: str = "", body: Any = None, if_match: str = ""
    ) -> OperationReply: ...


class ArmSender:
    """Sends requests with an ARM client. `where` is a path, or the URL of an operation on the same host."""

    def __init__(self, arm: ArmClient) -> None:
        self._arm = arm

    def send(
        self, method: str, where: str, api_version: str = "", body: Any = None, if_match: str = ""
    ) -> OperationReply:
        query = {"api-version": api_version} if api_version else {}
        reply = self._arm.send(method, where, query, body, {"If-Match": if_match} if if_match else {})
        return OperationReply(reply.status, _document(reply.text), reply.headers)


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


def started_operation(
    reply: OperationReply, what: str, resource: str, api_version: str, now: float
) -> AzureOperation:
    return AzureOperation(
        what,
        resource,
        api_version,
        reply.headers.get("azure-asyncoperation", ""),
        reply.headers.get("location", ""),
        now,
    )


def wait_for_operation(
    sender: OperationSender, operation: AzureOperation, timeout: OperationTimeout, note: NoteProgress
) -> Any:
    """Waits until the operation has finished and returns its result. Temporary failures are retried until the
    timeout.
    """
    last_message, start = "", timeout.clock()  # a process that continues to wait has its own timeout
    while True:
        try:
            state, result, pause = _poll(sender, operation)
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


def _poll(sender: OperationSender, operation: AzureOperation) -> tuple[str, Any, float]:
    """Returns the state, the result (or the error), and the time until the next poll."""
    if operation.status_url:
        reply = _known(sender, operation.status_url)
        if reply:
            body = reply.body if isinstance(reply.body, dict) else {}
            state = str(body.get("status") or "InProgress")
            if state.lower() == DONE:
                url = operation.result_url
                result = (
                    sender.send("GET", url) if url else sender.send("GET", operation.resource, operation.api_version)
                )
                return state, result.body, reply.pause
            return state, body, reply.pause
    elif operation.result_url:
        reply = _known(sender, operation.result_url)
        if reply:
            return ("InProgress" if reply.status == 202 else "Succeeded"), reply.body, reply.pause
    reply = sender.send("GET", operation.resource, operation.api_version)
    return provisioning_state(reply.body), reply.body, reply.pause


def _known(sender: OperationSender, url: str) -> OperationReply | None:
    """Returns None if Azure no longer knows the operation. Then the resource itself has the state."""
    try:
        return sender.send("GET", url)
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


def _document(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text
