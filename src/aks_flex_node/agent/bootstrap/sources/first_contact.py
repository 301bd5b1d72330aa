"""The first contact of this machine with a provider: makes the node key, and fetches a configuration with it.

The key is on the disk before the first request, so that a machine that stops at any moment comes back with the same
key, to which the provider may have bound the URL. Nothing of a node is on the machine then, so the ledger records the
directory of the key. A machine that the provider certainly refused is left as it was. An enrolment gives a use to the
key before it makes the node, so only refusals that come before that are certain.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from aks_flex_node.agent.config.refusals import ENROLMENT_REFUSALS, KeyRevokedError
from aks_flex_node.agent.identity.node_key import NodeKeyStore, StoredKey
from aks_flex_node.agent.paths import STATE_DIR
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.errors import ConfigError
from aks_flex_node.host.actions import RemoveTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.remote import ConfigBundle
    from aks_flex_node.host.host import Host

    Proof: TypeAlias = Callable[[str, float], str]  # by audience and time

# The provider has certainly not bound the key: it refused the request, or never got it.
UNTRUSTED = "config-url-untrusted"
REFUSED = frozenset(
    {UNTRUSTED, "config-url-taken", "config-url-expired", "config-url-rejected", "node-on-another-machine"}
)
# The provider has certainly given no use of the enrolment to the key.
NOT_ENROLLED = frozenset({UNTRUSTED, *(refusal("").name for refusal in ENROLMENT_REFUSALS.values())})


def fetch_with_key(
    host: Host, data_dir: str, fetch: Callable[[Proof], ConfigBundle], refused: frozenset[str] = REFUSED
) -> ConfigBundle:
    """Fetches a configuration with a proof of the key of this machine. A revoked key gets a successor, which becomes
    the key of this machine when the configuration is accepted: the URL may be that of another node.

    `refused` are the errors after which a key that was made for this request is removed.
    """
    missing = [path for path in dict.fromkeys((data_dir, STATE_DIR)) if host.stat(path) is None]
    if missing:
        Ledger(host, (f"{data_dir}/ledger.json",)).make_first_directories("agent", missing)
    store, sent = NodeKeyStore(host), 0

    def fetch_by(key: StoredKey) -> ConfigBundle:
        return replace(fetch(prove(key)), key=key.thumbprint)

    def prove(key: StoredKey) -> Proof:
        def count(audience: str, now: float) -> str:
            nonlocal sent
            sent += 1
            return key.prove(audience, now)

        return count

    try:
        key = store.ensure()
        for known in (key, key.next):  # the provider may have bound the successor, and its answer been lost
            with suppress(KeyRevokedError):
                if known:
                    return fetch_by(known)
            sent = 0
        return fetch_by(store.renew())
    except ConfigError as error:
        if error.name in refused and sent <= 1:  # an earlier request may have bound the key, and its answer be lost
            for path in missing:
                host.apply(RemoveTree(path))
        raise
