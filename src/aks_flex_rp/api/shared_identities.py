"""Nodes that have the identity of another node, and so no rights by it: remembers them, and shows them to operators.

Such a node polls for as long as it exists. So an answer is remembered until one of the two nodes changes, and the
warning and the condition are repeated only every ten minutes.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from aks_flex_rp.bounded_memory import BoundedCache, Throttle
from aks_flex_rp.node_conditions import condition, with_condition
from aks_flex_rp.nodes.identity_ownership import REMEDY, IdentityOwnership
from aks_flex_rp.store.model import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.api.poll_cache import PollCache, PollState
    from aks_flex_rp.callers import Caller, NodeRef
    from aks_flex_rp.store.base import Store

SHARED_CONDITION = "IdentityShared"
WARN_SECONDS = 600.0  # between warnings of one node
MAX_REMEMBERED = 20_000  # refusals

log = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """The cached states of both nodes at the time of the answer. The cache drops the state of a node that changes."""

    state: PollState
    owner: NodeRef
    owner_state: PollState


class SharedIdentities:
    def __init__(self, store: Store, poll_cache: PollCache, clock: Callable[[], float] = time.time) -> None:
        self._store, self._poll_cache, self._clock = store, poll_cache, clock
        self._ownership = IdentityOwnership(store)
        self._refusals: BoundedCache[tuple[NodeRef, str], Refusal] = BoundedCache(MAX_REMEMBERED)
        self._warnings = Throttle(WARN_SECONDS, clock, MAX_REMEMBERED)

    async def acts_as(self, caller: Caller, node_ref: NodeRef, identity: str) -> bool:
        """Returns whether the caller, whose IDs match the node's identity, may act as this node."""
        state = await self._poll_cache.state(node_ref)
        if self._is_refused(caller, node_ref, state):
            return False
        owner = await self._ownership.owner(caller, *node_ref, identity)
        if owner == node_ref:
            self._poll_cache.forget_owner(node_ref, caller.identity)
            return True
        if owner:
            owner_state = await self._poll_cache.state(owner)
            if owner_state.etag and caller.is_node(owner_state.identity):  # it has not changed meanwhile
                self._refusals[node_ref, caller.identity] = Refusal(state, owner, owner_state)
            if not self._warnings.wait((node_ref, owner)):
                await self._warn(caller, node_ref, owner)
        return False

    def _is_refused(self, caller: Caller, node_ref: NodeRef, state: PollState) -> bool:
        known = self._refusals.get((node_ref, caller.identity))
        return (
            known is not None and known.state is state and self._poll_cache.cached(known.owner) is known.owner_state
        )

    async def _warn(self, caller: Caller, node_ref: NodeRef, owner: NodeRef) -> None:
        (cluster, node), (owner_cluster, owner_node) = node_ref, owner
        log.warning(
            "%s (%s) may not act as node %s of %s: it is the identity of node %s of %s.",
            *(caller.name, caller.id, node, cluster, owner_node, owner_cluster),
        )
        found = await self._store.node(*node_ref)
        if found is None:
            return
        where = f"node {owner_node}" if owner_cluster == cluster else "a node of another cluster"
        # The node's own conditions replace it as soon as it may report again.
        message = f"The identity of this node signed in as {where}, so this node is not managed. {REMEDY}"
        shared = condition(SHARED_CONDITION, "SignedInAsAnotherNode", message, self._clock())
        status = with_condition(found.status, shared)
        with suppress(Conflict):  # the next warning shows it
            await self._store.report(cluster, node, status, found.last_seen, before=found.status)
