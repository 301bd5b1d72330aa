"""Builders of certificate signing requests, and a fake service."""

# ruff: noqa: ARG002 - a listener is told more than a test looks at
from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from aks_flex_rp.clusters.csr_policy import CLIENT_SIGNER
from aks_flex_rp.clusters.taints import DesiredTaints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.clusters.facts import ClusterFacts
    from aks_flex_rp.join_state import AccessMethod, ClusterAccess


class Heard:
    """A fake service that knows some tokens and nodes, and records events."""

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {}
        self.wanted: dict[str, DesiredTaints] = {}
        self.given: dict[str, ClusterAccess] = {}
        self.methods: dict[str, AccessMethod] = {}  # desired methods of nodes that differ from their granted ones
        self.urls: set[str] = set()  # URLs at which some nodes reach the API server
        self.deletions: dict[str, float] = {}
        self.told: list[tuple[str, ...]] = []
        self.facts: list[ClusterFacts] = []
        self.absent: list[str] = []
        self.deaf = False

    async def is_current_token(self, cluster: str, node: str, token_id: str) -> bool:
        return self.tokens.get(node) == token_id

    async def is_flex_node(self, cluster: str, node: str) -> bool:
        return node in self.tokens or node in self.given

    async def granted_access(self, cluster: str, node: str) -> ClusterAccess | None:
        if self.deaf:
            raise ConnectionError("the store is away")
        return self.given.get(node)

    async def access_method(self, cluster: str, node: str) -> AccessMethod | None:
        return self.methods.get(node) or (self.given[node].method if node in self.given else None)

    async def all_granted_access(self, cluster: str) -> dict[str, ClusterAccess]:
        return dict(self.given)

    async def api_server_urls(self, cluster: str) -> frozenset[str]:
        return frozenset(self.urls)

    async def on_access_withdrawn(self, cluster: str, node: str) -> None:
        self._hear("withdrawn", node)

    async def on_identity_csr(self, cluster: str, node: str, identity: str, csr: str) -> bool:
        if node not in self.given or self.given[node].identity != identity:
            return False
        self._hear("asked", node, csr)
        return True

    async def on_identity_certificate(self, cluster: str, node: str, csr: str) -> None:
        self._hear("certified", node, csr)

    async def desired_taints(self, cluster: str, node: str) -> DesiredTaints | None:
        if self.deaf:
            raise ConnectionError("the store is away")
        return self.wanted.get(node) or (DesiredTaints() if node in self.tokens else None)

    async def deletion_time(self, cluster: str, node: str) -> float | None:
        return None if node in self.tokens else self.deletions.get(node)

    async def on_node_removed(self, cluster: str, node: str) -> None:
        self._hear("removed", node)

    async def on_token_csr(self, cluster: str, node: str, token_id: str, csr: str) -> bool:
        if not await self.is_current_token(cluster, node, token_id):
            return False
        self._hear("attempted", node, csr)
        return True

    async def on_csr_denied(self, cluster: str, node: str, token_id: str, csr: str, why: str) -> None:
        self._hear("refused", node, csr, why)

    async def on_token_certificate(self, cluster: str, node: str, token_id: str, csr: str) -> None:
        self._hear("issued", node, csr)

    async def on_token_failed(self, cluster: str, node: str, token_id: str, why: str) -> None:
        self._hear("failed", node, why)

    async def on_node_observed(self, cluster: str, node: str, ready: dict[str, Any] | None) -> None:
        self._hear("observed", node, ready["status"] + ready["kubeletVersion"] if ready else "gone")

    async def on_nodes_listed(self, cluster: str, names: frozenset[str]) -> None:
        self.absent = sorted(self.tokens.keys() - names)

    async def on_cluster_facts(self, cluster: str, facts: ClusterFacts) -> None:
        self._hear("facts", cluster)
        self.facts.append(facts)

    def _hear(self, *words: str) -> None:
        if self.deaf:
            raise ConnectionError("the store is away")
        self.told.append(words)

    def about(self, node: str) -> list[str]:
        return [words[0] for words in self.told if words[1] == node]


def request_for(  # noqa: PLR0913
    node: str,
    *,
    as_user: str = "",
    groups: Sequence[str] = ("system:nodes",),
    names: Sequence[x509.GeneralName] = (),
    signer: str = CLIENT_SIGNER,
    usages: Sequence[str] = ("digital signature", "client auth"),
    more: Sequence[x509.NameAttribute[str]] = (),
    extensions: Sequence[x509.ExtensionType] = (),
    key: Any = None,
) -> dict[str, Any]:
    subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject.append(x509.NameAttribute(NameOID.COMMON_NAME, as_user or f"system:node:{node}"))
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([*subject, *more]))
    for extension in (*extensions, *([x509.SubjectAlternativeName(names)] if names else [])):
        builder = builder.add_extension(extension, critical=False)
    key = key or ec.generate_private_key(ec.SECP256R1())
    signed = builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    pem = signed.public_bytes(serialization.Encoding.PEM)
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "node-csr-"},
        "spec": {"request": base64.b64encode(pem).decode(), "signerName": signer, "usages": list(usages)},
    }
