"""Long-running operations of Azure Resource Manager: started by one call, then polled until done, also by another
process. An operation is data and can be stored, so that a run after a crash goes on waiting and starts nothing
twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.azure.arm import AzureCallError

if TYPE_CHECKING:
    from aks_flex_node.azure.arm import ArmClient

DEFAULT_PAUSE_SECONDS = 10.0  # seconds between two looks, where Azure asks for none
MAX_PAUSE_SECONDS = 60.0
DONE, ENDED = "succeeded", frozenset({"failed", "canceled", "cancelled"})
HOUR = 3600.0

NoteProgress = Callable[[str], None]


@dataclass(frozen=True)
class OperationReply:
    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case

    @property
    def pause(self) -> float:
        """For how long Azure asks not to be asked again."""
        try:
            return min(max(float(self.headers.get("retry-after", DEFAULT_PAUSE_SECONDS)), 0.2), MAX_PAUSE_SECONDS)
        except ValueError:
            return DEFAULT_PAUSE_SECONDS


class OperationSender(Protocol):
    """One call of ARM, with all that its answer says. A refusal is raised as an AzureCallError."""

    def send(
        self, method: str, where: str, api_version: str = "", body: Any = None, if_match: str = ""
    ) -> OperationReply: ...


class ArmSender:
    """Calls by way of an ARM client. `where` is a path, or the full URL of an operation at the same place."""

    def __init__(self, arm: ArmClient) -> None:
        self._arm = arm

    def send(
        self, method: str, where: str, api_version: str = "", body: Any = None, if_match: str = ""
    ) -> OperationReply:
        query = {"api-version": api_version} if api_version else {}
        answer = self._arm.send(method, where, query, body, {"If-Match": if_match} if if_match else {})
        return OperationReply(answer.status, _document(answer.text), answer.headers)


@dataclass(frozen=True)
class AzureOperation:
    """Something that Azure is at."""

    what: str  # in words, such as "the VPN gateway"
    resource: str  # the path of what it is about
    api_version: str
    status_url: str = ""
    result_url: str = ""
    began: float = 0.0  # unix time


@dataclass(frozen=True)
class OperationTimeout:
    """How long something may take, and by which clocks: the one that people read may be set meanwhile."""

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
    """Wait until it is done; what it made or said. Trouble on the way is no end while there is time."""
    last_message, start = "", timeout.clock()  # who takes up the work of another process has patience of its own
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
            raise operation_late_error(operation, timeout.seconds)
        last_message = _report_progress(operation, timeout.now() - operation.began, last_message, note)
        timeout.sleep(pause)


def _report_progress(operation: AzureOperation, passed: float, last_message: str, note: NoteProgress) -> str:
    """Once a minute, in words."""
    minutes = max(0, int(passed // 60))
    since = f", {minutes} min so far" if minutes else ""
    message = f"Azure is at work on {operation.what}{since}"
    if message != last_message:
        note(message)
    return message


def _poll(sender: OperationSender, operation: AzureOperation) -> tuple[str, Any, float]:
    """How far it is, what came of it (or why it failed), and when to look again."""
    if operation.status_url:
        reply = _known(sender, operation.status_url)
        if reply:
            return _by_status(sender, operation, reply)
    elif operation.result_url:
        reply = _known(sender, operation.result_url)
        if reply:
            return ("InProgress" if reply.status == 202 else "Succeeded"), reply.body, reply.pause
    reply = sender.send("GET", operation.resource, operation.api_version)
    return provisioning_state(reply.body), reply.body, reply.pause


def _known(sender: OperationSender, url: str) -> OperationReply | None:
    """Azure forgets operations after a while; then the resource itself says how it is."""
    try:
        return sender.send("GET", url)
    except AzureCallError as error:
        if error.status in {404, 410}:
            return None
        raise


def _by_status(sender: OperationSender, operation: AzureOperation, reply: OperationReply) -> tuple[str, Any, float]:
    body = reply.body if isinstance(reply.body, dict) else {}
    state = str(body.get("status") or "InProgress")
    if state.lower() == DONE:
        url = operation.result_url
        result = sender.send("GET", url) if url else sender.send("GET", operation.resource, operation.api_version)
        return state, result.body, reply.pause
    return state, body, reply.pause


def provisioning_state(body: Any) -> str:
    """Of a resource; one that has none is as it should be."""
    properties = body.get("properties") if isinstance(body, dict) else None
    return str((properties or {}).get("provisioningState") or "Succeeded")


def operation_failed_error(operation: AzureOperation, state: str, body: Any) -> AzureCallError:
    error = body.get("error") if isinstance(body, dict) else None
    code, message = (
        (str(error.get(key) or "") for key in ("code", "message")) if isinstance(error, dict) else ("", "")
    )
    cause = f"{code}: {message}" if code else message or "it gave no reason"
    return AzureCallError(
        "azure-operation-failed",
        f"Azure could not finish {operation.what} ({state}): {cause.rstrip('.')}.",
        f"Look at {operation.resource} in the portal or with `az resource show --ids`, mend what it names, "
        "then run the same command again.",
        retryable=False,
        code=code,
    )


def operation_late_error(operation: AzureOperation, seconds: float) -> AzureCallError:
    return AzureCallError(
        "azure-operation-timeout",
        f"Azure has not finished {operation.what} within {seconds / 60:.0f} min.",
        "It goes on by itself. Run the same command again to wait for it once more.",
        retryable=True,
    )


def _document(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text
