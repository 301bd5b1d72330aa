"""The interface of a config source, and the source of a standalone node, which has only its local configuration."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping


class SourceKind(Enum):
    PROVIDER = "provider"
    AKS_POOL = "aksPool"
    LOCAL = "local"

    def __str__(self) -> str:
        return self.value


@frozen
class SourceDescription:
    """A config source as `status`, the log and the support bundle show it."""

    kind: SourceKind
    address: str  # the provider's URL, the resource ID of the pool, or the path of the file
    machine: str = ""  # the name of the node's Machine in the pool
    note: str = ""  # why the node does not follow the pool that it joined

    def as_document(self) -> dict[str, str]:
        document = {"kind": self.kind.value, "address": self.address, "machine": self.machine, "note": self.note}
        return {key: value for key, value in document.items() if value}


@frozen
class PollSchedule:
    interval: float  # seconds between polls, without the jitter
    wait: int = 0  # seconds that the source may hold a poll until a change occurs; 0 for none


@frozen
class BootstrapTokenGrant:
    """A new bootstrap token, as the section `azure.bootstrapToken` of the configuration."""

    settings: Mapping[str, Any] = field(repr=False)
    is_stored: bool = True  # whether the configuration in effect keeps it, or only the kubelet's bootstrap kubeconfig


class ConfigSource:
    """Where the configuration of a node comes from. Requests that fail raise ProviderRequestError.

    What a source does not override is that of a configuration on the machine, which only commands change.
    """

    @property
    def description(self) -> SourceDescription:
        return SourceDescription(SourceKind.LOCAL, CURRENT_CONFIG)

    @property
    def schedule(self) -> PollSchedule | None:
        """When to poll; None for a source that does not change."""
        return None

    @property
    def accepts_reports(self) -> bool:
        """Whether the daemon reports its status to the source."""
        return False

    @property
    def signals_by_node(self) -> bool:
        """Whether the source deletes or marks the Node to allow a disturbance, and to confirm a removal."""
        return False

    def poll(self, version: str, wait: int) -> PollResult:  # noqa: ARG002
        """Polls for a configuration other than `version`. The source may answer after `wait` seconds."""
        return PollResult(ProviderState.STANDALONE)

    def probe(self, text: str) -> PollResult:  # noqa: ARG002
        """Polls once with the endpoint and the credentials of another configuration."""
        return self.poll("", 0)

    def fetch_principal(self) -> Mapping[str, Any]:
        """Returns the service principal that the node must use, with its secret; empty if the source has none."""
        return {}

    def check_credentials(self, text: str) -> None:
        """Signs in with the credentials of another configuration. Raises SignInError if they do not work."""

    def report_status(self, report: dict[str, Any]) -> None: ...

    def issue_bootstrap_token(self) -> BootstrapTokenGrant | None:
        """Returns a new bootstrap token for the recovery of the node; None to use that of the configuration."""
        return None

    def announce(self) -> None:
        """Announces a node that authenticates with its Azure identity, so that it gets access to the cluster."""

    def close(self) -> None: ...


@frozen
class LocalSource(ConfigSource):
    """The configuration on the machine."""

    description: SourceDescription = SourceDescription(SourceKind.LOCAL, CURRENT_CONFIG)
