"""Requests of this node to the resource provider: long polls, actions, and the announcement before a join by Azure
identity.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aks_flex_node.agent.config.resolved import target_cluster
from aks_flex_node.agent.http.connections import explain_failure, find_certificate_error, make_pool, tls_context
from aks_flex_node.agent.identity.cloud_endpoints import proxy_options, resource_manager
from aks_flex_node.agent.provider.poll_result import (
    PollResult,
    ProviderState,
    classify,
    parse_arm_error,
    parse_object,
)
from aks_flex_node.agent.provider.provider_tokens import SignInError
from aks_flex_node.api.contract import API_VERSION
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3 import BaseHTTPResponse, PoolManager

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.provider.provider_tokens import ProviderTokens


MAX_RESPONSE_BYTES = 1 << 20
READ_BYTES = 1 << 16
GRACE_SECONDS = 20.0  # seconds that an answer may come later than it should
CONNECT_SECONDS = 10.0  # seconds, to each address that the provider has


class ProviderRequestError(Exception):
    """There is no answer of the provider; the verdict says why."""

    def __init__(self, result: PollResult) -> None:
        super().__init__(result.message)
        self.result = result


@dataclass
class ProviderClient:
    endpoint: ProviderEndpoint
    config: NodeConfig = field(repr=False)
    tokens: ProviderTokens
    grace: float = GRACE_SECONDS
    _pool: PoolManager | None = None

    def poll(self, version: str, wait: int) -> PollResult:
        """Ask whether there is anything newer than a version; the provider may take some time to say no."""
        headers = {"If-None-Match": f'"{version}"'} if version else {}
        if wait and version:
            headers["Prefer"] = f"wait={wait}"
        try:
            return classify(*self._request("GET", "", headers, None, wait + self.grace))
        except ProviderRequestError as without:
            return without.result

    def post_action(self, action: str, body: Any = None) -> dict[str, Any]:
        """Do one of the actions that a node may; Unanswered when the provider does not, or says no."""
        status, headers, content = self._request("POST", action, {}, body if body is not None else {}, self.grace)
        document = parse_object(content)
        if status == 200 and document and not parse_arm_error(content)[0]:
            return document
        result = classify(status, headers, content)
        raise ProviderRequestError(
            result if not result.is_ok else PollResult(ProviderState.UNEXPECTED_RESPONSE, "An odd answer.")
        )

    def close(self) -> None:
        if self._pool:
            self._pool.clear()

    def _request(
        self, method: str, action: str, headers: dict[str, str], body: Any, seconds: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        status, answered, content = self._send(method, action, headers, body, seconds)
        if status == 401:
            # It may have ended early: by a clock that was set, or because somebody revoked it.
            self.tokens.invalidate()
            status, answered, content = self._send(method, action, headers, body, seconds)
        return status, answered, content

    def _send(
        self, method: str, action: str, headers: dict[str, str], body: Any, seconds: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        sent = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Authorization": f"Bearer {self._token()}",
            "User-Agent": "aks-flex-node",
            **headers,
        }
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            sent["Content-Type"] = "application/json"
        limit = Timeout(connect=min(CONNECT_SECONDS, seconds), read=seconds)
        url = self.endpoint.url(action)
        try:
            answer = self._pool_manager().request(
                method,
                url,
                body=data,
                headers=sent,
                timeout=limit,
                preload_content=False,
                redirect=False,
                retries=False,
            )
            try:
                return answer.status, answer.headers, _read_body(answer, seconds)  # in any letters, so no dict
            finally:
                answer.release_conn()
        except (HTTPError, OSError) as error:
            raise ProviderRequestError(self._unreachable(error, seconds)) from None

    def _token(self) -> str:
        try:
            return self.tokens.value()
        except SignInError as error:
            raise ProviderRequestError(PollResult(ProviderState.SIGN_IN_FAILED, str(error))) from None

    def _pool_manager(self) -> PoolManager:
        if self._pool is None:
            logging.getLogger("urllib3").setLevel(logging.ERROR)
            sources, given = proxy_options(self.config), self.endpoint.trust
            trust = tls_context(system=given is None, pem=given)
            self._pool = make_pool(sources, sources.proxy_for(self.endpoint.origin), trust)
        return self._pool

    def _unreachable(self, error: Any, seconds: float) -> PollResult:
        proxy = proxy_options(self.config).proxy_for(self.endpoint.origin)
        cause = explain_failure(error, self.endpoint.origin, proxy, seconds).cause
        untrusted = find_certificate_error(error) is not None
        self.close()
        return PollResult(ProviderState.UNTRUSTED if untrusted else ProviderState.UNREACHABLE, f"No answer: {cause}.")


def _read_body(answer: BaseHTTPResponse, seconds: float) -> bytes:
    """The body, within a bound of size and one of time, however slowly it drips."""
    end, content = time.monotonic() + seconds, b""
    while piece := answer.read1(READ_BYTES, decode_content=False):
        content += piece
        if len(content) > MAX_RESPONSE_BYTES or time.monotonic() > end:
            answer.close()
            raise ProviderRequestError(
                PollResult(ProviderState.UNEXPECTED_RESPONSE, "The answer does not come to an end.")
            )
    return content


@dataclass(frozen=True)
class ProviderEndpoint:
    """The resource of one node, at one provider."""

    origin: str
    path: str  # of the resource
    trust: bytes | None = None  # CA certificates (PEM) that vouch for it; the system's when left out

    def url(self, action: str = "") -> str:
        tail = f"/{action}" if action else ""
        return f"{self.origin}{self.path}{tail}?api-version={API_VERSION}"


def provider_endpoint(config: NodeConfig, node: str) -> ProviderEndpoint:
    """Where this node's configuration is."""
    found = target_cluster(config)
    if found is None:
        raise ConfigError(
            "cluster-id-missing",
            "The configuration does not say which AKS cluster this node belongs to, so it cannot be followed.",
            "Set azure.targetCluster.resourceId, or continuousMonitoring: false.",
        )
    subscription, group, name = (quote(part, safe="") for part in found)
    path = (
        f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.ContainerService"
        f"/managedClusters/{name}/flexNodeConfig/{quote(node, safe='')}"
    )
    given = config.provider.ca_cert_data or (None if config.provider.url else config.azure.ca_cert_data)
    return ProviderEndpoint(
        config.provider.url or resource_manager(config), path, read_certificate(given) if given else None
    )


def provider_scope(config: NodeConfig) -> str:
    """What a token for the provider is asked for. An audience that ends with a slash keeps it, as Entra wants it."""
    return f"{config.provider.audience or resource_manager(config)}/.default"


ANNOUNCEMENT: dict[str, Any] = {"joinState": "ConfigFetched"}


def announce_node(provider: ProviderClient) -> None:
    """Raises Unanswered when the provider does not answer, or does not know us."""
    provider.post_action("reportStatus", ANNOUNCEMENT)
