"""Classifies the responses of the provider. A response that is not clearly from the provider is not trusted."""

from __future__ import annotations

import re
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.http.client import parse_retry_after
from aks_flex_node.api.arm_errors import (
    NODE_KEY_REVOKED,
    NODE_NOT_KNOWN,
    ON_ANOTHER_MACHINE,
    REPLACED,
    parse_arm_error,
    parse_object,
)
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping


ETAG = re.compile(r'"[!#-~]{1,200}"')
MAX_REVISION = 2**31 - 1
PARENT_NOT_FOUND_CODES = {"ParentResourceNotFound", "ResourceGroupNotFound", "SubscriptionNotFound"}


class ProviderState(Enum):
    """State of the connection between this node and the provider, shown by `status`."""

    STANDALONE = "Standalone"  # the configuration does not enable continuous monitoring, so nothing is polled
    STARTING = "Starting"
    CONNECTED = "Connected"
    UNREACHABLE = "ProviderUnreachable"
    UNTRUSTED = "ProviderUntrusted"
    SIGN_IN_FAILED = "SignInFailed"
    FORBIDDEN = "Forbidden"
    THROTTLED = "Throttled"
    FAILING = "ProviderError"
    UNEXPECTED_RESPONSE = "UnexpectedResponse"
    BAD_CONFIGURATION = "ConfigurationInvalid"
    NO_CLUSTER = "ClusterNotFound"
    NODE_NOT_KNOWN = "NodeNotKnown"  # the provider has no record of the node, not even of its deletion
    DELETED = "Deleted"
    REPLACED = "Replaced"  # the node was moved to another machine
    ON_ANOTHER_MACHINE = "OnAnotherMachine"  # the node lives on another machine
    KEY_REVOKED = "NodeKeyRevoked"  # the key of this machine may no longer act as the node
    AGENT_FAILING = "AgentError"  # an internal error of the agent

    def __str__(self) -> str:
        return self.value


REPLACED_STATES = frozenset({ProviderState.REPLACED, ProviderState.ON_ANOTHER_MACHINE})
LEAVING_STATES = REPLACED_STATES | {ProviderState.DELETED}  # for which a node leaves the cluster, if a poll says so
MACHINE_STATES = {REPLACED: ProviderState.REPLACED, ON_ANOTHER_MACHINE: ProviderState.ON_ANOTHER_MACHINE}


@frozen
class NextConfig:
    """The configuration that the node gets later, for which it downloads its artifacts now."""

    pool_revision: int
    config: Mapping[str, Any] = field(repr=False)


@frozen
class PollResult:
    state: ProviderState
    message: str = ""
    changed: bool = False  # a new configuration version is available
    version: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    retry_after: float | None = None  # the provider's Retry-After, in seconds
    code: str = ""  # of the error that the provider returned
    etag: str = ""  # of the answer, with its quotes
    next_config: NextConfig | None = None
    knows_next: bool = False  # whether the answer tells the next configuration, or that there is none
    next_problem: str = ""  # why the next configuration of the answer is ignored

    @property
    def is_ok(self) -> bool:
        return self.state is ProviderState.CONNECTED

    @property
    def is_news(self) -> bool:
        """Whether the source has sent something, not only that nothing has changed."""
        return self.changed or bool(self.etag)

    @property
    def is_transient(self) -> bool:
        """Returns whether a retry without any change can succeed."""
        return self.state in {ProviderState.UNREACHABLE, ProviderState.THROTTLED, ProviderState.FAILING}


def classify(status: int, headers: Mapping[str, str], body: bytes) -> PollResult:
    """Classifies the response to a poll."""
    if status == 304:
        return PollResult(ProviderState.CONNECTED)
    if status == 200:
        return _parse_config(headers, body)
    code, message = parse_arm_error(body)
    if not code:
        return _not_the_provider(f"status {status} without an ARM error body")
    after = parse_retry_after(headers.get("Retry-After", ""))
    state = _error_state(status, code)
    name = "" if code == state.value else f"{code}: "  # the state is shown before the message
    return PollResult(state, f"{name}{message} (status {status})", retry_after=after, code=code)


def _error_state(status: int, code: str) -> ProviderState:
    """Only the code ResourceNotFound means that the node was deleted."""
    if status == 404 and code == "ResourceNotFound":
        return ProviderState.DELETED
    if status == 404 and code == NODE_NOT_KNOWN:
        return ProviderState.NODE_NOT_KNOWN
    if status == 404 and code in PARENT_NOT_FOUND_CODES:
        return ProviderState.NO_CLUSTER
    if status == 409 and code in MACHINE_STATES:
        return MACHINE_STATES[code]
    if status == 403 and code == NODE_KEY_REVOKED:
        return ProviderState.KEY_REVOKED
    known = {401: ProviderState.FORBIDDEN, 403: ProviderState.FORBIDDEN, 429: ProviderState.THROTTLED}
    return known.get(status, ProviderState.FAILING)


def _parse_config(headers: Mapping[str, str], body: bytes) -> PollResult:
    document = parse_object(body)
    properties = document.get("properties")
    if not isinstance(properties, dict):
        return _not_the_provider("not a flexNodeConfig")
    version, config = str(properties.get("configVersion") or ""), properties.get("config")
    if not (version.isascii() and version.isdigit() and isinstance(config, dict) and config):
        return _not_the_provider("a flexNodeConfig without a configuration or a version")
    following, problem = parse_next_config(properties.get("nextConfig"))
    return PollResult(
        ProviderState.CONNECTED,
        changed=True,
        version=version,
        config=config,
        etag=etag if ETAG.fullmatch(etag := headers.get("ETag", "")) else "",
        next_config=following,
        knows_next=True,
        next_problem=problem,
    )


def parse_next_config(value: object) -> tuple[NextConfig | None, str]:
    """Parses the next configuration of an answer. Returns it, or why it is ignored; neither if there is none."""
    if value is None:
        return None, ""
    if not isinstance(value, dict):
        return None, "`nextConfig` is not an object"
    revision, config = value.get("poolRevision"), value.get("config")
    if not isinstance(revision, int) or isinstance(revision, bool) or not 1 <= revision <= MAX_REVISION:
        return None, "`nextConfig.poolRevision` is not a positive integer"
    if not isinstance(config, dict) or not config:
        return None, "`nextConfig.config` is not a configuration"
    return NextConfig(revision, config), ""


def _not_the_provider(what: str) -> PollResult:
    return PollResult(
        ProviderState.UNEXPECTED_RESPONSE,
        f"Unexpected response from the provider: {what}. A proxy or a sign-in page may have answered instead.",
    )
