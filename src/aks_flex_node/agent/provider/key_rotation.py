"""Replaces the node key: binds the first one by the Azure identity of the node, and later ones by the key before.

The new key is on the disk before the provider gets it, and the provider accepts the earlier key until the new one is
used. So a rotation that stops at any moment is completed by the next one. A provider that was restored from a backup
may know only the key before: that one is kept, and binds the present key again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from aks_flex_node.agent.identity.node_key import NodeKeyStore, StoredKey, new_key
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderClient, ProviderRequestError
from aks_flex_node.api import node_keys
from aks_flex_node.api.arm_errors import NODE_KEY_NOT_KNOWN
from aks_flex_node.host import processes
from aks_flex_node.lean_dataclass import dataclass
from aks_flex_node.retry import RetryBackoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.host.host import CommandResult, Host

CHECK_SECONDS = 6 * 3600.0  # between checks whether the key is due
REBIND_SECONDS = 3600.0  # between attempts to bind a key that the provider does not know
RETRY = RetryBackoff(first_delay=20.0, max_delay=CHECK_SECONDS)  # a job may hold the lock, as after a self-update
MAX_DOUBLINGS = 20  # after which the delay no longer grows
ROTATE_SECONDS = 180.0  # limit for the child process


def rotate_key(client: ProviderClient, store: NodeKeyStore) -> StoredKey:
    """Binds the key of this machine, or replaces it if it is bound. If the provider does not know the key, the
    previous one binds it again. Raises ProviderRequestError if that fails.
    """
    try:
        return _rotate(client, store)
    except ProviderRequestError as error:
        key = store.read()
        if error.result.code != NODE_KEY_NOT_KNOWN or not (key and key.previous and client.assertions):
            raise
        # The previous key, which is tried once, binds the present one.
        client.assertions.by_previous = True
        try:
            answer = _ask(client, key.previous, key)
        finally:
            client.assertions.by_previous = False
        bound = replace(key, audience=str(answer.get("audience") or key.audience), next=None)
        store.save(bound)
        return bound


def _rotate(client: ProviderClient, store: NodeKeyStore) -> StoredKey:
    key = store.ensure()
    if key.is_bound and key.next is None:
        key = replace(key, next=new_key(time.time()))
        store.save(key)
    new = key.next or key
    audience = str(_ask(client, key, new).get("audience") or "")
    if not audience:
        message = "The provider has not named the audience of node keys yet. The agent tries again later."
        raise ProviderRequestError(PollResult(ProviderState.FAILING, message))
    bound = key.replaced_by(new, audience)
    store.save(bound)
    return bound


def _ask(client: ProviderClient, key: StoredKey, new: StoredKey) -> dict[str, Any]:
    """Asks the provider to bind the new key. Signs again if the first response shows that the clock is wrong."""
    node_id = client.endpoint.resource_id.lower()

    def ask() -> dict[str, Any]:
        moment = time.time() + (client.assertions.clock_offset if client.assertions else 0.0)
        body = {"proof": node_keys.sign_proof(new.private_key, node_id, moment)}
        if key.is_bound:
            audience = node_keys.rotation_audience(node_id, node_keys.public_key(new.private_key).thumbprint)
            body["consent"] = node_keys.sign_proof(key.private_key, audience, moment)
        return client.post_action("rotateKey", body)

    before = client.assertions.clock_offset if client.assertions else 0.0
    try:
        return ask()
    except ProviderRequestError:
        if client.assertions is None or client.assertions.clock_offset == before:
            raise
        return ask()


@dataclass
class KeyRotation:
    """Starts a rotation in a child process when one is due: a node without a key that has an Azure identity, a key
    that is a year old, or a rotation that was interrupted. A rotation that fails is retried with backoff.
    """

    program: str
    host: Host
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    run: Callable[..., CommandResult] = processes.run
    _check_at: float = 0.0
    _failures: int = 0  # consecutive ones
    _bind_at: float = 0.0

    def bind_again(self) -> None:
        """Lets the previous key bind a key that the provider does not know, at most once in REBIND_SECONDS."""
        now, key = self.clock(), NodeKeyStore(self.host).read()
        if key and key.previous and now >= self._bind_at:
            self._bind_at = now + REBIND_SECONDS
            self._run()

    def run_if_due(self) -> None:
        now = self.clock()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_SECONDS
        key = NodeKeyStore(self.host).read()
        if key is None or not key.is_bound or key.is_rotation_due(self.wall_clock()):
            self._run()
            if self._failures:
                self._check_at = now + RETRY.delay(self._failures)

    def _run(self) -> None:
        done = self.run((self.program, "node-key", "rotate", "--json"), seconds=ROTATE_SECONDS)
        self._failures = 0 if done.ok else min(self._failures + 1, MAX_DOUBLINGS)
