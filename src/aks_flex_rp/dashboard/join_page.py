"""Join page: shows the join command once, and the progress of the machine until it is Ready.

The page that creates the URL passes it to this page in an encrypted cookie that is valid for one minute. The secret
is in no address and no browser history, a reload does not create another one, and any replica can show it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_node.api.node_summary import join_command
from aks_flex_node.errors import ConfigError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import page_request
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.join_state import NEW_URL_REMEDY, JoinPhase
from aks_flex_rp.nodes.commands import ConfigUrl
from aks_flex_rp.store.model import AuditAction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from starlette.responses import Response

    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.dashboard.page import VisitedNode
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.store.model import AuditEvent, Node


READY = "Ready"  # after the last phase
JOIN_STEPS: dict[str, tuple[str, str]] = {
    JoinPhase.CREATED: ("Created", "The node is created. Run its join command on the machine."),
    JoinPhase.CONFIG_FETCHED: (
        "Configuration fetched",
        "The machine has fetched its configuration and installs the components.",
    ),
    JoinPhase.BOOTSTRAP_ATTEMPTED: ("Join requested", "The machine has requested to join the cluster."),
    JoinPhase.JOINED: ("Joined", "The node has joined the cluster and is not Ready yet."),
    READY: ("Ready", "The node can run pods."),
}
ORDER = tuple(JOIN_STEPS)
FETCHED = {
    AuditAction.CONFIG_URL_FETCHED,
    AuditAction.ACCESS_GRANTED,
    AuditAction.IDENTITY_USED,
    AuditAction.TOKEN_USED,
}


@dataclass(frozen=True)
class JoinStep:
    """One step of the join, and its progress."""

    name: str
    label: str
    progress: Literal["done", "now", "failed", "next"]
    note: str = ""  # what happens in this step, or why it failed


def join_steps(node: Node, status: dict[str, Any], events: Iterable[AuditEvent] = ()) -> tuple[JoinStep, ...]:
    """Returns the steps of a join. `events` show whether a node that failed had fetched its configuration."""
    failed = status["joinState"] == JoinPhase.FAILED
    reached = _reached(node, status, events) if failed else status["joinState"]
    if reached == JoinPhase.JOINED and _is_ready(status):
        reached = READY
    reached_index = ORDER.index(reached) if reached in JOIN_STEPS else 0
    failure = str(status.get("joinFailure", "")) if failed else ""
    return tuple(_step(number, reached_index, failed, failure) for number in range(len(ORDER)))


def _step(number: int, reached_index: int, failed: bool, failure: str) -> JoinStep:
    name = ORDER[number]
    label, note = JOIN_STEPS[name]
    if number < reached_index or name == READY == ORDER[reached_index]:
        return JoinStep(name, label, "done")
    if number == reached_index:
        return JoinStep(name, label, "done" if failed else "now", "" if failed else note)
    return (
        JoinStep(name, label, "failed", failure)
        if failed and number == reached_index + 1
        else JoinStep(name, label, "next")
    )


def _reached(node: Node, status: dict[str, Any], events: Iterable[AuditEvent]) -> str:
    """Returns the last step that succeeded before the failed one."""
    if node.join.csr is not None:
        return JoinPhase.BOOTSTRAP_ATTEMPTED
    since = node.created if node.join.since is None else node.join.since
    reported = node.join.failure is not None and node.join.url_expires is not None  # by the machine; the URL is valid
    fetched = reported or node.join.phase is JoinPhase.CONFIG_FETCHED or "agentVersion" in status
    audited = any(each.what in FETCHED and each.at >= since for each in events)
    return JoinPhase.CONFIG_FETCHED if fetched or audited else JoinPhase.CREATED


def _is_ready(status: dict[str, Any]) -> bool:
    return any((each["type"], each["status"]) == ("Ready", "True") for each in status.get("conditions", ()))


CONFIG_URL_COOKIE = "__Host-aks-flex-made"
COOKIE_SECONDS = 60.0
EVENTS = 20  # newest events of a node, which include its last join attempt
NEW_COMMAND_HINT = "Create a new join command and run it on the machine."
RERUN_HINT = (
    "Fix the reported cause. Then run `aks-flex-node agent` without options on the machine to resume the join. "
    "If it reports that the configuration URL is no longer valid, create a new join command."
)


@dataclass(frozen=True)
class ConfigUrlCookie:
    """Passes a configuration URL from the page that creates it to the page that shows it, in an encrypted cookie."""

    sealer: Sealer
    clock: Callable[[], float] = field(default=time.time)

    def give(self, answer: Response, visit: PageRequest, node: str, url: ConfigUrl) -> None:
        """Sets the cookie. Only this session can read it, and only for the node with the ID `node`."""
        content = json.dumps([url.url, url.expires, self.clock() + COOKIE_SECONDS]).encode()
        sealed = self.sealer.seal(content, _context(visit, node))
        page_request.set_cookie(answer, CONFIG_URL_COOKIE, base64.urlsafe_b64encode(sealed).decode(), COOKIE_SECONDS)

    def take(self, page_request: PageRequest, node: str) -> ConfigUrl | None:
        """Returns the URL of the cookie; None when it is missing, expired or of another session or node."""
        try:
            sealed = base64.b64decode(
                page_request.incoming.cookies.get(CONFIG_URL_COOKIE, ""), altchars=b"-_", validate=True
            )
            url, expires, until = json.loads(self.sealer.open(sealed, _context(page_request, node)))
        except (binascii.Error, ValueError, ConfigError):
            return None
        return ConfigUrl(url, expires) if until > self.clock() else None


def _context(page_request: PageRequest, node: str) -> str:
    session = hashlib.sha256(page_request.session.secret.encode()).hexdigest()
    return f"config URL of {node.lower()} for {session}"


@dataclass(frozen=True)
class JoinPage(DashboardPage):
    """Serves the join page of a node."""

    url_cookie: ConfigUrlCookie

    async def show(self, visit: PageRequest) -> Response:
        """Shows the page. A refresh by the script neither returns nor consumes the join command."""
        found = await self.node(visit, Operation.READ)
        url = self.url_cookie.take(visit, found.shown["id"]) if visit.shown is None else None
        status = found.shown["properties"]["status"]
        steps = join_steps(found.node, status, await self._events(visit, found))
        page = self.pages.show(
            "created",
            visit,
            node=found.node,
            cluster=found.cluster.id,
            above=visit.incoming.url.path.removesuffix("/joining"),
            command=join_command(url.url) if url else "",
            expires=url.expires if url else 0.0,
            steps=steps,
            ready=steps[-1].progress == "done",
            remedy=join_remedy(steps),
            may_renew=await self.scopes.may(visit, Operation.REGENERATE_TOKEN, found.cluster.id),
        )
        if url:
            page_request.delete_cookie(page, CONFIG_URL_COOKIE)
        return page

    async def _events(self, visit: PageRequest, found: VisitedNode) -> Sequence[AuditEvent]:
        """Returns the newest events of a node that failed to join."""
        has_failed = found.shown["properties"]["status"]["joinState"] == JoinPhase.FAILED
        if not has_failed or not await self.scopes.may(visit, Operation.AUDIT, found.cluster.id):
            return ()
        return await self.store.audit(resource=found.shown["id"], limit=EVENTS)


def join_remedy(steps: Sequence[JoinStep]) -> str:
    """Returns the remedy for the failed step; empty when no step failed."""
    stopped = next((each for each in steps if each.progress == "failed"), None)
    if stopped is None:
        return ""
    new = stopped.name == JoinPhase.CONFIG_FETCHED or NEW_URL_REMEDY in stopped.note
    return NEW_COMMAND_HINT if new else RERUN_HINT
