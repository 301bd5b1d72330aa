"""Bootstrap tokens in the cluster: one Secret each, bound to one node, and used once.

Kubernetes lets a token be used as often as one likes. So the Secret also remembers, under the API server's own
optimistic lock, which request for a certificate was the first: all replicas of the service then agree on it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters.clients import Refused

if TYPE_CHECKING:
    from aks_flex_node.rp.clusters.clients import Client, Object

GROUP = "system:bootstrappers:aks-flex-node"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
LABEL = "flex.aks.azure.com/token"
NODE = "flex.aks.azure.com/node"
CLAIMED_BY, CLAIMED_UID, CLAIMED_AT = (f"flex.aks.azure.com/claimed-{what}" for what in ("by", "uid", "at"))
EXPIRES = "flex.aks.azure.com/expires"
ORPHAN_AGE = timedelta(minutes=10)  # a token that is just being made is not yet anybody's
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class MintedToken:
    id: str
    secret: str = field(repr=False)
    expires: datetime

    def reveal(self) -> str:
        """As a kubelet needs it."""
        return f"{self.id}.{self.secret}"


@dataclass(frozen=True)
class Claim:
    """Which request for a certificate a token was used for."""

    csr: str
    uid: str
    at: datetime


@dataclass(frozen=True)
class Token:
    """What the cluster says of a token, without its secret."""

    id: str
    node: str
    created: datetime
    expires: datetime
    version: str
    claim: Claim | None

    @classmethod
    def read(cls, document: Object) -> Token | None:
        """None when it is not one of ours."""
        metadata = document["metadata"]
        notes = metadata.get("annotations") or {}
        if LABEL not in (metadata.get("labels") or {}) or NODE not in notes:
            return None
        claim = None
        if notes.get(CLAIMED_UID):
            claim = Claim(notes[CLAIMED_BY], notes[CLAIMED_UID], moment(notes[CLAIMED_AT]))
        return cls(
            metadata["name"].removeprefix("bootstrap-token-"),
            notes[NODE],
            moment(metadata["creationTimestamp"]),
            moment(notes[EXPIRES]),
            metadata["resourceVersion"],
            claim,
        )


def written(when: datetime) -> str:
    return when.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)


async def mint(client: Client, node: str, expires: datetime) -> MintedToken:
    while True:
        token = MintedToken(_random(6), _random(16), expires)
        try:
            await client.create(SECRETS, _document(token, node))
        except Refused as refusal:
            if refusal.status != 409:  # that id is taken
                raise
        else:
            return token


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def _document(token: MintedToken, node: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {
            "name": f"bootstrap-token-{token.id}",
            "labels": {LABEL: "node", "app.kubernetes.io/managed-by": "aks-flex-rp"},
            "annotations": {NODE: node, EXPIRES: written(token.expires)},
        },
        "stringData": {
            "token-id": token.id,
            "token-secret": token.secret,
            "expiration": written(token.expires),
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": GROUP,
            "description": f"lets flex node {node} join, once",
        },
    }


def _path(token_id: str) -> str:
    return f"{SECRETS}/bootstrap-token-{token_id}"


async def find(client: Client, token_id: str) -> Token | None:
    document = await client.find(_path(token_id))
    return Token.read(document) if document else None


async def claim(client: Client, token: Token, csr: str, uid: str, now: datetime) -> Token | None:
    """The token with the claim that stands, which is not ours when somebody was faster; None when it is gone."""
    current: Token | None = token
    while current and not current.claim:
        notes = {CLAIMED_BY: csr, CLAIMED_UID: uid, CLAIMED_AT: written(now)}
        change = {"metadata": {"resourceVersion": current.version, "annotations": notes}}
        try:
            return Token.read(await client.merge(_path(token.id), change))
        except Refused as refusal:
            if refusal.status not in {404, 409}:
                raise
        current = await find(client, token.id)
    return current


async def revoke(client: Client, token_id: str) -> bool:
    """Whether there was one."""
    return await client.delete(_path(token_id))


async def ours(client: Client) -> list[Token]:
    documents, _ = await client.list(SECRETS, labelSelector=LABEL)
    return [token for document in documents if (token := Token.read(document))]
