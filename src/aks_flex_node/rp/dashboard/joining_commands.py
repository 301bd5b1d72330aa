"""The one line for the machine, shown once, and the page that follows the machine from there until it is Ready.

Between the form that made it and the page that shows it the URL is a sealed cookie of a minute: so it is in no
address and no history, a reload does not make it again, and any replica can show it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp.dashboard import visits
from aks_flex_node.rp.dashboard.steps import steps
from aks_flex_node.rp.nodes.writing import Url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.responses import Response

    from aks_flex_node.rp.dashboard.pages import Pages
    from aks_flex_node.rp.dashboard.scopes import Scopes
    from aks_flex_node.rp.dashboard.steps import Step
    from aks_flex_node.rp.dashboard.visits import Visit
    from aks_flex_node.rp.nodes.around import Known
    from aks_flex_node.rp.nodes.reading import Reading
    from aks_flex_node.rp.sealing import Sealer
    from aks_flex_node.rp.store.store import Event

COOKIE = "__Host-aks-flex-made"
SECONDS = 60.0
EVENTS = 20  # the newest of a node, among which its last try to join is
NEW = "Make a new command, and run it on the machine."
AGAIN = (
    "Put right what it says. Then run aks-flex-node agent on the machine again, without anything else: it goes on "
    "where it stopped. Only if that says that its URL is dead, make a new command."
)


def command(url: Url) -> str:
    """As `aks-flex-rp node join-command` prints it."""
    return f"aks-flex-node agent --config-url '{url.url}'"


@dataclass(frozen=True)
class Handing:
    """A URL on its way from where it was made to the page that shows it."""

    sealer: Sealer
    clock: Callable[[], float] = field(default=time.time)

    def give(self, answer: Response, visit: Visit, node: str, url: Url) -> None:
        """`node` is the node's id; only this session can take it, and only for this node."""
        told = json.dumps([url.url, url.expires, self.clock() + SECONDS]).encode()
        sealed = self.sealer.seal(told, _context(visit, node))
        visits.keep(answer, COOKIE, base64.urlsafe_b64encode(sealed).decode(), SECONDS)

    def take(self, visit: Visit, node: str) -> Url | None:
        try:
            sealed = base64.b64decode(visit.incoming.cookies.get(COOKIE, ""), altchars=b"-_", validate=True)
            url, expires, until = json.loads(self.sealer.open(sealed, _context(visit, node)))
        except (binascii.Error, ValueError, ConfigError):
            return None
        return Url(url, expires) if until > self.clock() else None


def _context(visit: Visit, node: str) -> str:
    session = hashlib.sha256(visit.session.secret.encode()).hexdigest()
    return f"config URL of {node.lower()} for {session}"


@dataclass(frozen=True)
class Joining:
    pages: Pages
    scopes: Scopes
    reading: Reading
    handing: Handing

    async def show(self, visit: Visit) -> Response:
        """A script that asks for the live part alone neither gets the command nor uses it up."""
        where, known, _ = await self.scopes.node(visit, "read")
        node, shown = await self.reading.get(known, where.node)
        made = self.handing.take(visit, shown["id"]) if visit.shown is None else None
        status = shown["properties"]["status"]
        way = steps(node, status, await self._events(visit, known, shown["id"], status))
        page = self.pages.show(
            "created",
            visit,
            node=node,
            cluster=known.id,
            above=visit.incoming.url.path.removesuffix("/joining"),
            command=command(made) if made else "",
            expires=made.expires if made else 0.0,
            steps=way,
            ready=way[-1].progress == "done",
            remedy=remedy(way),
            may_renew=await self.scopes.may(visit, "regenerateToken", known.id),
        )
        if made:
            visits.drop(page, COOKIE)
        return page

    async def _events(self, visit: Visit, known: Known, node: str, status: Mapping[str, Any]) -> Sequence[Event]:
        """They tell how far one that failed had come."""
        if status["joinState"] != "Failed" or not await self.scopes.may(visit, "audit", known.id):
            return ()
        return await self.scopes.doors.shop.store.audit(resource=node, limit=EVENTS)


def remedy(way: Sequence[Step]) -> str:
    """What helps, by where it stopped."""
    stopped = next((each.name for each in way if each.progress == "failed"), "")
    if not stopped:
        return ""
    return NEW if stopped == "ConfigFetched" else AGAIN
