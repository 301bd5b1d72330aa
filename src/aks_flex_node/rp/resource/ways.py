"""The ways that a node goes: to the service that it follows, and to Azure where that is a private cloud. Pure.

They come from the service's settings, and are part of a node's generated configuration.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.rp.resource.models import Properties


USUAL_POLL_SECONDS = 30.0  # an agent's own


@dataclass(frozen=True)
class Ways:
    url: str = ""  # of the service, as agents reach it; empty when nobody has said
    ca_cert_data: str = ""  # base64 of PEM: who vouches for it, where the system's authorities do not
    audiences: dict[str, str] = field(default_factory=dict)  # by tenant, whom tokens are made out to
    azure: dict[str, str] = field(default_factory=dict)  # what a private cloud has that the public one has not
    poll_seconds: float = USUAL_POLL_SECONDS  # how often agents ask

    def to_document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Ways:
        """What a newer program has written beside is passed over."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in known})

    def provider(self, properties: Properties, tenant: str) -> dict[str, Any]:
        """What a node must know that stays, or that has to say who it is before it can join; nothing for others."""
        calls = properties.continuous_monitoring or properties.kubernetes_auth.by_identity
        if not calls or not self.url:
            return {}
        principal = properties.azure_auth.service_principal
        home = ((principal.client_tenant if principal else None) or tenant).lower()
        # A tenant can be called by a domain, too, and then it is the one that there is.
        audience = self.audiences.get(home) or next(iter(self.audiences.values()), "")
        told = {"url": self.url, "audience": audience, "caCertData": self.ca_cert_data}
        pace = {"pollSeconds": self.poll_seconds} if self.poll_seconds != USUAL_POLL_SECONDS else {}
        return {**{name: value for name, value in told.items() if value}, **pace}
