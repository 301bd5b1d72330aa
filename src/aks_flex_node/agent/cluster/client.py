"""A thin client of the Kubernetes API, with the node's certificate or with tokens of its Azure identity.

See docs/decisions/0006.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config.resolved import kubelet_auth, kubelet_credential_file
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.agent.identity import token_cache
from aks_flex_node.agent.identity.cloud_endpoints import proxy_options
from aks_flex_node.errors import ClusterError
from aks_flex_node.host import processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from urllib3 import PoolManager

    from aks_flex_node.agent.config.models import NodeConfig


API_LIMITS = DownloadOptions(parallel=1, connect_seconds=5.0, stall_seconds=15.0)
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


class ApiStatusError(Exception):
    """The API server answered, and its answer is no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class ApiClient:
    def __init__(
        self,
        server: str,
        authority: str,
        certificate: str = "",
        proxy: str = "",
        token: Callable[[], str] | None = None,
    ) -> None:
        """Speak to a server that the authority's certificate (a file) vouches for; as whom a certificate or a token
        says."""
        self._server = server.rstrip("/")
        self._authority = authority
        self._certificate = certificate
        self._proxy = proxy
        self._token = token
        self._made: PoolManager | None = None

    @property
    def _pool(self) -> PoolManager:
        from aks_flex_node.agent.http.connections import TlsFiles, make_pool

        if self._made is None:
            self._made = make_pool(API_LIMITS, self._proxy or None, TlsFiles(self._authority, self._certificate))
        return self._made

    def close(self) -> None:
        if self._made:
            self._made.clear()

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """What the server answers, as data; Refused when it says no, ClusterError when it cannot be asked."""
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json", "User-Agent": "aks-flex-node"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token()}"
        if body is not None:
            headers["Content-Type"] = content_type
        data = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(method, self._server + path, body=data, headers=headers, retries=False)
        except (HTTPError, OSError) as error:
            raise explain_connection_error(self._server, error) from error
        document: Any = {}
        with contextlib.suppress(ValueError):
            document = json.loads(answer.data or b"{}")
        if answer.status >= 400:
            api_status = document if isinstance(document, dict) else {}
            raise ApiStatusError(answer.status, api_status.get("reason", ""), _message(api_status, answer.status))
        return document


def _message(api_status: dict[str, Any], status: int) -> str:
    """The server's words. Which budget keeps a pod where it is, it says apart from the rest."""
    causes = (api_status.get("details") or {}).get("causes") or []
    budgets = [str(one.get("message", "")) for one in causes if one.get("reason") == "DisruptionBudget"]
    return " ".join([str(api_status.get("message", f"HTTP {status}")), *budgets])


def explain_connection_error(server: str, error: Exception) -> ClusterError:
    """Why the API server could not be asked, and what to do about it."""
    cause = str(error)
    if "certificate has expired" in cause or "certificate is not yet valid" in cause:
        return ClusterError(
            "api-server-untrusted",
            f"The certificate of {server} is not valid at the time that this machine's clock shows.",
            "Look at `date`: a clock that is wrong is the usual cause. Else renew the API server's certificate.",
        )
    if "CERTIFICATE_VERIFY_FAILED" in cause or "certificate verify failed" in cause:
        return ClusterError(
            "api-server-untrusted",
            f"{server} does not show a certificate that the cluster's CA has signed.",
            "Compare node.kubelet.caCertData with the certificate-authority-data of a kubeconfig that works.",
        )
    if any(phrase in cause for phrase in ("Name or service not known", "name resolution", "NameResolutionError")):
        return ClusterError(
            "api-server-name-not-resolved",
            f"The name in {server} cannot be resolved.",
            "Check node.kubelet.serverURL, and the name servers in /etc/resolv.conf.",
            retryable=True,
        )
    return ClusterError(
        "api-server-unreachable",
        f"{server} cannot be reached: {short_cause(cause)}.",
        "Check node.kubelet.serverURL, and that no firewall is between this machine and it.",
        retryable=True,
    )


def short_cause(cause: str) -> str:
    """The last words of a long error."""
    for phrase in ("Connection refused", "timed out", "No route to host", "Network is unreachable", "reset by peer"):
        if phrase.lower() in cause.lower():
            return phrase[0].lower() + phrase[1:]
    return cause.rsplit(":", 1)[-1].strip(" ()'\"") or "unknown cause"


MIN_TOKEN_SECONDS = 30.0  # seconds that a token must be good for to be shown
SIGN_IN_SECONDS = 40.0  # for whoever signs us in; well below what the watchdog of the agent that stays allows


def node_api(config: NodeConfig) -> ApiClient:
    paths, server = config.paths.kubernetes, config.node.kubelet.server_url or ""
    authority, proxy = f"{paths.certs_dir}/ca.crt", proxy_for_server(config, server)
    if kubelet_auth(config) == "exec":
        return ApiClient(server, authority, proxy=proxy, token=lambda: azure_token(paths.kubelet_dir))
    return ApiClient(server, authority, kubelet_credential_file(config), proxy=proxy)


def azure_token(folder: str) -> str:
    """What the kubelet shows: from the same file while it is good, else by the same script.

    The kubelet gets a new one when the old has ended, and keeps it there; who only looks along need not be sooner.
    Signing in loads large libraries, so it is left to a child.
    """
    known = token_cache.read_cache(Path(folder, token_cache.TOKEN_CACHE_FILE))
    if known and known.is_valid(time.time() + MIN_TOKEN_SECONDS):
        return known.value
    answer = processes.run((f"{folder}/token.sh",), seconds=SIGN_IN_SECONDS)
    try:
        return str(json.loads(answer.out)["status"]["token"])
    except (ValueError, KeyError, TypeError):
        if known and known.is_valid(time.time()):
            return known.value
        lines = answer.err.strip().splitlines()
        raise ClusterError(
            "azure-token-unavailable",
            f"There is no token to show the API server: {lines[-1][:300] if lines else 'nobody said why'}",
            "Try `aks-flex-node token kubernetes`; it says what is wrong.",
            retryable=True,
        ) from None


def proxy_for_server(config: NodeConfig, server: str) -> str:
    """The way out that the kubelet takes, too."""
    return proxy_options(config).proxy_for(server) or ""
