"""Bootstrap tokens: one Secret each, bound to one node and used once.

Kubernetes allows any number of uses. So a record of the token states, with optimistic concurrency, which CSR was the
first, so that all replicas agree on it. The record is a ConfigMap in a namespace of its own, so that the service need
not read the Secrets of kube-system. Where the service may not write there, the record is the Secret itself.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from aks_flex_node.timestamps import format_utc, parse_utc
from aks_flex_rp.clusters.client import ApiRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.clusters.client import KubeClient, KubeObject

TOKEN_GROUP = "system:bootstrappers:aks-flex-node"  # noqa: S105
SECRETS = "/api/v1/namespaces/kube-system/secrets"
RECORDS_NAMESPACE = "aks-flex-tokens"
RECORDS = f"/api/v1/namespaces/{RECORDS_NAMESPACE}/configmaps"
TOKEN_LABEL = "flex.aks.azure.com/token"  # noqa: S105
NODE_ANNOTATION = "flex.aks.azure.com/node"
CLAIMED_BY, CLAIMED_UID, CLAIMED_AT = (f"flex.aks.azure.com/claimed-{what}" for what in ("by", "uid", "at"))
EXPIRES = "flex.aks.azure.com/expires"
ADOPTED_LIFETIME = timedelta(hours=1)
ORPHAN_AGE = timedelta(minutes=10)  # a token that was just created may not be recorded with its node yet
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class MintedToken:
    id: str
    secret: str = field(repr=False)
    expires: datetime

    def reveal(self) -> str:
        """Returns the token in the format that a kubelet needs."""
        return f"{self.id}.{self.secret}"


@dataclass(frozen=True)
class TokenClaim:
    """The certificate signing request that a token was used for."""

    csr: str
    uid: str
    at: datetime


@dataclass(frozen=True)
class BootstrapToken:
    """The record of a bootstrap token in the cluster, without its secret."""

    path: str  # of the record
    id: str
    node: str
    created: datetime
    expires: datetime
    version: str
    claim: TokenClaim | None

    @classmethod
    def read(cls, document: KubeObject, collection: str) -> BootstrapToken | None:
        """Parses an object of a collection. Returns None if it is not a token of this service."""
        metadata = document["metadata"]
        notes = metadata.get("annotations") or {}
        if TOKEN_LABEL not in (metadata.get("labels") or {}) or NODE_ANNOTATION not in notes:
            return None
        claim = None
        if notes.get(CLAIMED_UID):
            claim = TokenClaim(notes[CLAIMED_BY], notes[CLAIMED_UID], parse_utc(notes[CLAIMED_AT]))
        return cls(
            f"{collection}/{metadata['name']}",
            metadata["name"].removeprefix("bootstrap-token-"),
            notes[NODE_ANNOTATION],
            parse_utc(metadata["creationTimestamp"]),
            parse_utc(notes[EXPIRES]),
            metadata["resourceVersion"],
            claim,
        )


async def mint_token(client: KubeClient, node: str, expires: datetime) -> MintedToken:
    while True:
        token = MintedToken(_random(6), _random(16), expires)
        try:
            await client.create(SECRETS, _document(token, node))
        except ApiRefused as refusal:
            if refusal.status != 409:  # the ID is already used
                raise
        else:
            # A Secret without its record is harmless: requests with it are denied, and the cluster deletes it.
            await _create_record(client, token.id, node, expires)
            return token


async def _create_record(client: KubeClient, token_id: str, node: str, expires: datetime) -> None:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(token_id, node, expires)}
    try:
        await client.create(RECORDS, document)
    except ApiRefused as refusal:
        if refusal.status not in {403, 404, 409}:  # without the namespace or the permission: no record
            raise


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def _document(token: MintedToken, node: str) -> KubeObject:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": _metadata(token.id, node, token.expires),
        "stringData": {
            "token-id": token.id,
            "token-secret": token.secret,
            "expiration": format_utc(token.expires.timestamp()),
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": TOKEN_GROUP,
            "description": f"single-use bootstrap token of flex node {node}",
        },
    }


def _metadata(token_id: str, node: str, expires: datetime) -> KubeObject:
    return {
        "name": _name(token_id),
        "labels": {TOKEN_LABEL: "node", "app.kubernetes.io/managed-by": "aks-flex-rp"},
        "annotations": {NODE_ANNOTATION: node, EXPIRES: format_utc(expires.timestamp())},
    }


def _name(token_id: str) -> str:
    return f"bootstrap-token-{token_id}"


async def find_token(client: KubeClient, token_id: str) -> BootstrapToken | None:
    for collection in (RECORDS, SECRETS):
        with _unless_forbidden():
            document = await client.find(f"{collection}/{_name(token_id)}")
            if token := BootstrapToken.read(document, collection) if document else None:
                return token
    return None


@contextmanager
def _unless_forbidden() -> Iterator[None]:
    """Skips what the service may not read."""
    try:
        yield
    except ApiRefused as refusal:
        if refusal.status != 403:
            raise


async def adopt_token(client: KubeClient, token_id: str, node: str, now: datetime) -> BootstrapToken | None:
    """Creates the record of a token that was created before the service lost the permission to read Secrets.

    Only for the current token of a node, which has just authenticated a request.
    """
    try:
        await client.find(f"{SECRETS}/{_name(token_id)}")
    except ApiRefused as refusal:
        if refusal.status != 403:
            raise
        await _create_record(client, token_id, node, now + ADOPTED_LIFETIME)
        return await find_token(client, token_id)
    return None  # it can be read, so it was revoked


async def claim_token(
    client: KubeClient, token: BootstrapToken, csr: str, uid: str, now: datetime
) -> BootstrapToken | None:
    """Records the first request of a token. Returns the token with the valid claim, or None if it is gone.

    The claim may be that of another request, if that was faster.
    """
    current: BootstrapToken | None = token
    while current and not current.claim:
        notes = {CLAIMED_BY: csr, CLAIMED_UID: uid, CLAIMED_AT: format_utc(now.timestamp())}
        change = {"metadata": {"resourceVersion": current.version, "annotations": notes}}
        try:
            collection = current.path.rpartition("/")[0]
            return BootstrapToken.read(await client.merge(current.path, change), collection)
        except ApiRefused as refusal:
            if refusal.status not in {404, 409}:
                raise
        current = await find_token(client, token.id)
    return current


async def revoke_token(client: KubeClient, token_id: str) -> bool:
    """Deletes a token, then its record. Returns whether the token existed."""
    existed = await client.delete(f"{SECRETS}/{_name(token_id)}")
    with _unless_forbidden():
        await client.delete(f"{RECORDS}/{_name(token_id)}")
    return existed


async def list_tokens(client: KubeClient) -> list[BootstrapToken]:
    found: dict[str, BootstrapToken] = {}
    for collection in (SECRETS, RECORDS):
        with _unless_forbidden():
            documents, _ = await client.list(collection, labelSelector=TOKEN_LABEL)
            tokens = (BootstrapToken.read(each, collection) for each in documents)
            found |= {token.id: token for token in tokens if token}
    return list(found.values())
