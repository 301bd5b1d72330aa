"""A node that joins by its Azure identity shows itself to the provider first, which lets it into the cluster then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aks_flex_node.agent.following.provider import Provider

REPORT: dict[str, Any] = {"joinState": "ConfigFetched"}


def introduce(provider: Provider) -> None:
    """Raises Unanswered when the provider does not answer, or does not know us."""
    provider.act("reportStatus", REPORT)
