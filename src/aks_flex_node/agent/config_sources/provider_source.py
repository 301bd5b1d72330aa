"""The resource provider as a config source: long polls, status reports, and new tokens by a configuration URL."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import stored_config
from aks_flex_node.agent.config import loader
from aks_flex_node.agent.config.remote import fetch_config
from aks_flex_node.agent.config_sources.source import (
    BootstrapTokenGrant,
    ConfigSource,
    PollSchedule,
    SourceDescription,
    SourceKind,
)
from aks_flex_node.agent.identity.cloud_endpoints import proxy_options
from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.paths import NEXT_CONFIG
from aks_flex_node.agent.provider.provider_client import (
    ProviderClient,
    ProviderRequestError,
    announce_node,
    provider_endpoint,
)
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from aks_flex_node.api import config_urls
from aks_flex_node.api.arm_errors import NODE_KEY_NOT_KNOWN
from aks_flex_node.errors import FlexError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.provider.key_rotation import KeyRotation
    from aks_flex_node.agent.provider.poll_result import PollResult
    from aks_flex_node.settings.models import NodeConfig


REPORT_FIELDS = frozenset(  # those that every provider knows
    {
        "agentVersion",
        "appliedConfigVersion",
        "conditions",
        "driftCount",
        "failedConfigVersion",
        "kubeletVersion",
        "lastConfigApplied",
        "lastDriftDetected",
        "stagedPoolRevision",
    }
)


@frozen
class ProviderSource(ConfigSource):
    client: ProviderClient
    config: NodeConfig
    node: str  # the node's name
    accepts_reports: bool = True
    rotation: KeyRotation | None = None  # of the node key

    @property
    def description(self) -> SourceDescription:
        return SourceDescription(SourceKind.PROVIDER, self.client.endpoint.origin)

    @property
    def schedule(self) -> PollSchedule:
        return PollSchedule(self.config.provider.poll_seconds, self.config.provider.wait_seconds)

    def poll(self, version: str, wait: int) -> PollResult:
        result = self.client.poll(version, wait)
        if result.is_ok and self.rotation:
            self.rotation.run_if_due()
        elif result.code == NODE_KEY_NOT_KNOWN and self.rotation:
            self.rotation.bind_again()
        note = self.client.assertions.clock_note if self.client.assertions else ""
        return replace(result, message=note) if result.is_ok and note else result

    def probe(self, text: str) -> PollResult:
        config = loader.load_text(text, NEXT_CONFIG).config
        tokens = ProviderTokens(self.client.tokens.program, lambda: text)
        endpoint = provider_endpoint(config, self.node)
        assertions = replace(self.client.assertions, subject=endpoint.resource_id) if self.client.assertions else None
        other = ProviderClient(endpoint, config, tokens, assertions, machine=self.client.machine)
        try:
            return other.poll("", 0)
        finally:
            other.close()

    def fetch_principal(self) -> Mapping[str, Any]:
        principal = self.client.post_action("listCredentials").get("servicePrincipal")
        return principal if isinstance(principal, dict) else {}

    def check_credentials(self, text: str) -> None:
        self.client.tokens.check_credentials(text)

    def report_status(self, report: dict[str, Any]) -> None:
        """Reports the status. A provider that is one version older refuses fields that it does not know."""
        try:
            self.client.post_action("reportStatus", report)
        except ProviderRequestError as error:
            known = {key: value for key, value in report.items() if key in REPORT_FIELDS}
            if error.result.code != "InvalidRequestContent" or known == report:
                raise
            self.client.post_action("reportStatus", known)

    def issue_bootstrap_token(self) -> BootstrapTokenGrant:
        url = config_urls.parse(str(self.client.post_action("regenerateToken").get("configUrl") or ""))
        key = NodeKeyStore(self.client.assertions.host).read() if self.client.assertions else None
        prove = key.prove if key else None
        fetched = fetch_config(url, proxy_options(self.config), machine=self.client.machine, prove=prove)
        token = (stored_config.parse_config(fetched.text).get("azure") or {}).get("bootstrapToken")
        if not isinstance(token, dict):
            raise FlexError(
                "credential-not-delivered",
                "The provider's configuration does not contain a bootstrap token.",
                "Check the authentication of the node resource with `aks-flex-rp node show`.",
                retryable=True,
            )
        return BootstrapTokenGrant(token)

    def announce(self) -> None:
        """Announces the Azure identity of the node, so that the provider grants it access to the cluster."""
        announce_node(self.client.with_azure_identity())

    def close(self) -> None:
        self.client.close()
