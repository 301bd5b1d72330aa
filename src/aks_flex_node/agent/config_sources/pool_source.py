"""The node's Machine in a flex node pool of AKS as a config source.

The eTag of the Machine is the version of the configuration. AKS deletes the Node to allow a disturbance, and marks or
deletes it before the Machine of a removed node disappears. The Machine's status is read-only, so nothing is reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.aks_pool.machine_document import (
    MachineSettings,
    has_patch,
    object_at,
    satisfies,
    text_at,
    with_machine_settings,
)
from aks_flex_node.agent.aks_pool.pool_ids import API_VERSION, PoolId
from aks_flex_node.agent.config_sources.machine_poll import (
    classify_failure,
    explain_no_answer,
    is_not_found,
    lists_others,
    next_page,
    read_machine,
)
from aks_flex_node.agent.config_sources.source import (
    BootstrapTokenGrant,
    ConfigSource,
    PollSchedule,
    SourceDescription,
    SourceKind,
)
from aks_flex_node.agent.identity.cloud_endpoints import resource_manager
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderClient, ProviderEndpoint, ProviderRequestError
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
    from aks_flex_node.settings.models import NodeConfig

POLL_SCHEDULE = PollSchedule(60.0)  # at most two requests in a minute, with the jitter
MAX_LIST_BYTES = 8 << 20  # a pool has up to a thousand Machines
MAX_PAGES = 50
ARM_NAME = "Azure Resource Manager"


@frozen
class PoolSource(ConfigSource):
    config: NodeConfig
    pool: PoolId
    machine: str  # the name of the Machine
    tokens: ProviderTokens
    client: ProviderClient
    current_config: Callable[[], Mapping[str, Any]]  # the document of the configuration in effect
    issue_token: Callable[[NodeConfig, PoolId], Mapping[str, Any]]
    server_version: Callable[[], str]  # of the API server; empty if it is unknown
    host_id: str = ""  # the mark of this host on its Machine; empty if it has none
    schedule: PollSchedule = POLL_SCHEDULE
    signals_by_node: bool = True

    @property
    def description(self) -> SourceDescription:
        return SourceDescription(SourceKind.AKS_POOL, str(self.pool), self.machine)

    def poll(self, version: str, wait: int) -> PollResult:  # noqa: ARG002
        """Reads the Machine. A missing Machine counts only while its pool exists."""
        try:
            status, headers, body = self.client.get(self.pool.machine_id(self.machine))
            if machine := read_machine(status, body, self.machine):
                if machine.owner and self.host_id and machine.owner != self.host_id:
                    message = f"The Machine {self.machine} of {self.pool} belongs to another host."
                    return PollResult(ProviderState.ON_ANOTHER_MACHINE, message)
                return self._answer(machine.etag, machine.settings, version)
            if not is_not_found(status, body):
                return classify_failure(status, headers, body, self.pool)
            return self._confirm_deletion()
        except ProviderRequestError as failure:
            return explain_no_answer(failure.result)

    def _confirm_deletion(self) -> PollResult:
        """Reads the list of the pool's Machines, which must be complete and without this one."""
        path = page = f"{self.pool}/machines"
        for _ in range(MAX_PAGES):
            status, headers, body = self.client.get(page)
            following = next_page(body, self.client.endpoint.origin, path)
            if not lists_others(status, body, self.machine) or following is None:
                return classify_failure(status, headers, body, self.pool)
            if not following:
                message = f"The Machine {self.machine} does not exist in {self.pool}."
                return PollResult(ProviderState.DELETED, message)
            page = following
        return PollResult(ProviderState.FAILING, f"The list of the Machines of {self.pool} does not end.")

    def _answer(self, etag: str, settings: MachineSettings, version: str) -> PollResult:
        if etag == version:
            return PollResult(ProviderState.CONNECTED)
        current = self.current_config()
        settings = self._with_patch_version(settings, current)
        config = with_machine_settings(current, settings)
        if not has_patch(text_at(object_at(config, "kubernetes"), "version")):
            message = f"AKS has not chosen a patch version of Kubernetes {settings.version} for the Machine yet."
            return PollResult(ProviderState.CONNECTED, message)
        return PollResult(ProviderState.CONNECTED, changed=True, version=etag, config=config)

    def _with_patch_version(self, settings: MachineSettings, current: Mapping[str, Any]) -> MachineSettings:
        """Completes a minor version with the patch version of the API server, which suits every node of the cluster.
        A node that has a patch version of it keeps that.
        """
        known = text_at(object_at(current, "kubernetes"), "version")
        if not settings.version or has_patch(settings.version) or satisfies(known, settings.version):
            return settings
        server = self.server_version()
        return replace(settings, version=server) if satisfies(server, settings.version) else settings

    def check_credentials(self, text: str) -> None:
        self.tokens.check_credentials(text)

    def issue_bootstrap_token(self) -> BootstrapTokenGrant:
        return BootstrapTokenGrant(self.issue_token(self.config, self.pool), is_stored=False)

    def close(self) -> None:
        self.client.close()


def arm_client(config: NodeConfig, tokens: ProviderTokens) -> ProviderClient:
    """Returns a client for Azure Resource Manager that signs in as this node."""
    private_ca = config.azure.ca_cert_data
    trust = read_certificate(private_ca) if private_ca else None
    endpoint = ProviderEndpoint(resource_manager(config), "", trust, API_VERSION)
    return ProviderClient(endpoint, config, tokens, peer=ARM_NAME, max_bytes=MAX_LIST_BYTES)
