"""HTTP client of this node for the resource provider: long polls, actions, and the announcement that precedes a join
with an Azure identity.
"""

from __future__ import annotations

import json
import logging
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from aks_flex_node.agent.config.resolved import (
    cluster_resource_id,
    config_source_kind,
    has_azure_identity,
    target_cluster,
)
from aks_flex_node.agent.http.connections import explain_failure, find_certificate_error, make_pool, tls_context
from aks_flex_node.agent.identity.cloud_endpoints import proxy_options, resource_manager
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState, classify
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens, SignInError
from aks_flex_node.api.arm_errors import NODE_KEY_TIME, parse_arm_error, parse_object
from aks_flex_node.api.audiences import may_send_token, token_audiences
from aks_flex_node.api.contract import API_VERSION
from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.bounded_http.limits import BodyLimitError, read_body, time_limit
from aks_flex_node.errors import ConfigError
from aks_flex_node.lean_dataclass import dataclass, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3 import BaseHTTPResponse, PoolManager

    from aks_flex_node.agent.provider.node_assertions import NodeAssertions
    from aks_flex_node.settings.models import NodeConfig


MAX_RESPONSE_BYTES = 1 << 20
GRACE_SECONDS = 20.0  # extra time for a late response
CONNECT_SECONDS = 10.0  # for each address of the provider
KEY_NOT_BOUND = (
    "This node has no Azure identity, and the provider has not bound the key of this machine. Run a new join command "
    "of `aks-flex-rp node join-command` on this machine."
)


Response = tuple[int, "Mapping[str, str]", bytes]  # status, headers (case-insensitive) and body


@frozen
class ProviderRequest:
    method: str
    action: str
    headers: Mapping[str, str]
    body: Any  # sent as JSON; None for none
    seconds: float


class ProviderRequestError(Exception):
    """The provider did not respond or rejected the request. `result` has the cause."""

    def __init__(self, result: PollResult) -> None:
        super().__init__(result.message)
        self.result = result


@dataclass
class ProviderClient:
    endpoint: ProviderEndpoint
    config: NodeConfig = field(repr=False)
    tokens: ProviderTokens
    assertions: NodeAssertions | None = None  # of the node key, which is used instead of tokens once it is bound
    grace: float = GRACE_SECONDS
    machine: MachineIdentity | None = None  # of this machine, by which the provider refuses a second one
    peer: str = "Provider"  # in messages
    max_bytes: int = MAX_RESPONSE_BYTES
    _pool: PoolManager | None = None
    _etags: dict[str, str] = field(default_factory=dict)  # of the last answer, by its version

    def poll(self, version: str, wait: int) -> PollResult:
        """Polls for a configuration newer than `version`. The provider can wait up to `wait` seconds before it
        answers.
        """
        plain = f'"{version}"'
        etag = self._etags.get(version, plain)
        headers = {"If-None-Match": etag} if version else {}
        if wait and version:
            headers["Prefer"] = f"wait={wait}"
        try:
            result = classify(*self._request(ProviderRequest("GET", "", headers, None, wait + self.grace)))
        except ProviderRequestError as failure:
            return failure.result
        if result.changed:
            self._etags = {result.version: result.etag} if result.etag else {}
            return replace(result, changed=result.version != version)
        # Without a next configuration, the ETag is the version.
        return replace(result, knows_next=result.is_ok and bool(version) and etag == plain)

    def get(self, path: str) -> Response:
        """Reads a resource below the endpoint. Raises ProviderRequestError if there is no response."""
        return self._request(ProviderRequest("GET", path.removeprefix("/"), {}, None, self.grace))

    def post_action(self, action: str, body: Any = None) -> dict[str, Any]:
        """Runs an action of the node resource. Raises ProviderRequestError if it fails."""
        request = ProviderRequest("POST", action, {}, body if body is not None else {}, self.grace)
        status, headers, content = self._request(request)
        document = parse_object(content)
        if status == 200 and document and not parse_arm_error(content)[0]:
            return document
        result = classify(status, headers, content)
        raise ProviderRequestError(
            result
            if not result.is_ok
            else PollResult(
                ProviderState.UNEXPECTED_RESPONSE, f"Unexpected response from the provider (HTTP {status})."
            )
        )

    def sign_in(self) -> None:
        """Requests the token for later requests. Raises ProviderRequestError if that fails."""
        self._token()

    def with_azure_identity(self) -> ProviderClient:
        """Returns a client that signs in with the Azure identity of the node, also if the node has a key."""
        return ProviderClient(self.endpoint, self.config, self.tokens, machine=self.machine)

    def close(self) -> None:
        if self._pool:
            self._pool.clear()

    def _request(self, request: ProviderRequest) -> Response:
        status, headers, content = response = self._send(request)
        if status == 401:
            # The token can be invalid before its expiry: the clock was changed, or the token was revoked.
            self.tokens.invalidate()
            if self.assertions:
                self.assertions.reject(parse_arm_error(content)[0], headers)
            status, _, content = response = self._send(request)
            if status == 401 and parse_arm_error(content)[0] != NODE_KEY_TIME:
                return self._send_without_key(request) or response
        return response

    def _send_without_key(self, request: ProviderRequest) -> Response | None:
        """Sends a request with the Azure identity of the node to a provider that does not know the node key: it was
        restored from a backup. If it accepts that, the key is no longer used until it is bound again. Returns None if
        the node cannot sign in otherwise.
        """
        if not (self.assertions and self.assertions.keys.has_bound_key and has_azure_identity(self.config)):
            return None
        other = self.with_azure_identity()
        try:
            response = other._send(request)
        except ProviderRequestError:
            return None
        finally:
            other.close()
        if response[0] in {200, 304}:
            self.assertions.keys.unbind()  # so that a rotation has it bound again
        return None if response[0] in {401, 403} else response

    def _send(self, request: ProviderRequest) -> Response:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "aks-flex-node",
            "Authorization": f"Bearer {self._token()}",
            **({MACHINE_HEADER: self.machine.header} if self.machine else {}),
            **request.headers,
        }
        data = None if request.body is None else json.dumps(request.body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        limit = Timeout(connect=min(CONNECT_SECONDS, request.seconds), read=request.seconds)
        url = self.endpoint.url(request.action)
        try:
            with time_limit(request.seconds + min(CONNECT_SECONDS, request.seconds)):
                if self._pool is None:
                    logging.getLogger("urllib3").setLevel(logging.ERROR)
                    sources, private_ca = proxy_options(self.config), self.endpoint.trust
                    trust = tls_context(system=private_ca is None, pem=private_ca)
                    self._pool = make_pool(sources, sources.proxy_for(self.endpoint.origin), trust)
                response = self._pool.request(
                    request.method,
                    url,
                    body=data,
                    headers=headers,
                    timeout=limit,
                    preload_content=False,
                    redirect=False,
                    retries=False,
                )
                try:
                    content = _read_body(response, self.max_bytes, self.peer)
                    return response.status, response.headers, content
                finally:
                    response.release_conn()
        except (HTTPError, OSError) as error:
            raise ProviderRequestError(self._unreachable(error, request.seconds)) from None

    def _token(self) -> str:
        """Returns a token that may be sent to the provider. Raises ProviderRequestError if there is none.

        An assertion of the node key is worthless for any other server, and names the provider that bound the key.
        """
        try:
            if self.assertions and (assertion := self.assertions.value()):
                return assertion
            if self.assertions and not has_azure_identity(self.config):
                raise ProviderRequestError(PollResult(ProviderState.SIGN_IN_FAILED, KEY_NOT_BOUND))
            self._check_audience(provider_audience(self.config))
            token = self.tokens.value()
        except SignInError as error:
            raise ProviderRequestError(PollResult(ProviderState.SIGN_IN_FAILED, str(error))) from None
        for audience in token_audiences(token):
            self._check_audience(audience)
        return token

    def _check_audience(self, audience: str) -> None:
        """Raises ProviderRequestError if tokens for an audience must not be sent to the provider."""
        origin = self.endpoint.origin
        if not may_send_token(audience, origin, resource_manager(self.config)):
            message = (
                f"Tokens for {audience} are not sent to {origin}, because another service may accept them. Set an "
                "audience of the provider's own, such as api://CLIENT-ID, in its settings (auth.tenants[].audiences)."
            )
            raise ProviderRequestError(PollResult(ProviderState.SIGN_IN_FAILED, message))

    def _unreachable(self, error: Any, seconds: float) -> PollResult:
        proxy = proxy_options(self.config).proxy_for(self.endpoint.origin)
        cause = explain_failure(error, self.endpoint.origin, proxy, seconds).cause
        untrusted = find_certificate_error(error) is not None
        self.close()
        return PollResult(
            ProviderState.UNTRUSTED if untrusted else ProviderState.UNREACHABLE, f"{self.peer} unreachable: {cause}."
        )


def _read_body(response: BaseHTTPResponse, limit: int, peer: str) -> bytes:
    try:
        return read_body(response, limit)
    except BodyLimitError as reason:
        message = f"Unexpected response from {peer}: {reason}."
        raise ProviderRequestError(PollResult(ProviderState.UNEXPECTED_RESPONSE, message)) from None


@frozen
class ProviderEndpoint:
    """The resource of one node at the provider."""

    origin: str
    path: str  # path of the resource
    trust: bytes | None = None  # CA certificates (PEM) of the provider; None means the system's CAs
    api_version: str = API_VERSION

    @property
    def resource_id(self) -> str:
        return unquote(self.path)

    def url(self, action: str = "") -> str:
        """Returns the URL of an action. The next page of a list has a query of its own."""
        tail = f"/{action}" if action else ""
        return f"{self.origin}{self.path}{tail}{'' if '?' in action else f'?api-version={self.api_version}'}"


def provider_endpoint(config: NodeConfig, node: str) -> ProviderEndpoint:
    """Returns the endpoint of this node's configuration."""
    found = target_cluster(config)
    if found is None:
        raise ConfigError(
            "cluster-id-missing",
            "The node cannot be managed: the configuration does not name its AKS cluster.",
            "Set `azure.targetCluster.resourceId`, or set `continuousMonitoring` to false.",
        )
    subscription, group, name = (quote(part, safe="") for part in found)
    path = f"{cluster_resource_id((subscription, group, name))}/flexNodeConfig/{quote(node, safe='')}"
    private_ca = config.provider.ca_cert_data or (None if config.provider.url else config.azure.ca_cert_data)
    return ProviderEndpoint(
        config.provider.url or resource_manager(config), path, read_certificate(private_ca) if private_ca else None
    )


def provider_audience(config: NodeConfig) -> str:
    """Returns the configured audience of tokens for the provider or, in an AKS pool, for Azure."""
    audience = None if config_source_kind(config) == "aksPool" else config.provider.audience
    return audience or resource_manager(config)


def provider_scope(config: NodeConfig) -> str:
    """Returns the OAuth scope of tokens for the provider. A trailing slash of the audience is significant for Entra
    ID.
    """
    return f"{provider_audience(config)}/.default"


ANNOUNCEMENT: dict[str, Any] = {"joinState": "ConfigFetched"}


def announce_node(provider: ProviderClient) -> None:
    """Announces the node to the provider. Raises ProviderRequestError if that fails."""
    provider.post_action("reportStatus", ANNOUNCEMENT)
