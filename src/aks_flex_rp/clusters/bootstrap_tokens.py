"""Bootstrap tokens: one Secret each, bound to one node and used once.

Kubernetes allows any number of uses. So the Secret also records, with optimistic concurrency, which CSR was the
first, so that all replicas agree on it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from aks_flex_node.timestamps import format_utc, parse_utc
from aks_flex_rp.clusters.client import ApiRefused

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient, KubeObject

TOKEN_GROUP = "system:bootstrappers:aks-flex-node"  # noqa: S105
SECRETS = "/api/v1/namespaces/kube-system/secrets"
TOKEN_LABEL = "flex.aks.azure.com/token"  # noqa: S105
NODE_ANNOTATION = "flex.aks.azure.com/node"
CLAIMED_BY, CLAIMED_UID, CLAIMED_AT = (f"flex.aks.azure.com/claimed-{what}" for what in ("by", "uid", "at"))
EXPIRES = "flex.aks.azure.com/expires"
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
    """A bootstrap token as stored in the cluster, without its secret."""

    id: str
    node: str
    created: datetime
    expires: datetime
    version: str
    claim: TokenClaim | None

    @classmethod
    def read(cls, document: KubeObject) -> BootstrapToken | None:
        """Parses a Secret. Returns None if it is not a token of this service."""
        metadata = document["metadata"]
        notes = metadata.get("annotations") or {}
        if TOKEN_LABEL not in (metadata.get("labels") or {}) or NODE_ANNOTATION not in notes:
            return None
        claim = None
        if notes.get(CLAIMED_UID):
            claim = TokenClaim(notes[CLAIMED_BY], notes[CLAIMED_UID], parse_utc(notes[CLAIMED_AT]))
        return cls(
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
            return token


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def _document(token: MintedToken, node: str) -> KubeObject:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {
            "name": f"bootstrap-token-{token.id}",
            "labels": {TOKEN_LABEL: "node", "app.kubernetes.io/managed-by": "aks-flex-rp"},
            "annotations": {NODE_ANNOTATION: node, EXPIRES: format_utc(token.expires.timestamp())},
        },
        "stringData": {
            "token-id": token.id,
            "token-secret": token.secret,
            "expiration": format_utc(token.expires.timestamp()),
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": TOKEN_GROUP,
            "description": f"single-use bootstrap token of flex node {node}",
        },
    }


def _path(token_id: str) -> str:
    return f"{SECRETS}/bootstrap-token-{token_id}"


async def find_token(client: KubeClient, token_id: str) -> BootstrapToken | None:
    document = await client.find(_path(token_id))
    return BootstrapToken.read(document) if document else None


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
            return BootstrapToken.read(await client.merge(_path(token.id), change))
        except ApiRefused as refusal:
            if refusal.status not in {404, 409}:
                raise
        current = await find_token(client, token.id)
    return current


async def revoke_token(client: KubeClient, token_id: str) -> bool:
    """Deletes a token. Returns whether it existed."""
    return await client.delete(_path(token_id))


async def list_tokens(client: KubeClient) -> list[BootstrapToken]:
    documents, _ = await client.list(SECRETS, labelSelector=TOKEN_LABEL)
    return [token for document in documents if (token := BootstrapToken.read(document))]
