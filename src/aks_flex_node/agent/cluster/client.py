"""A small client of the Kubernetes API that authenticates with the node's certificate or its Azure identity."""

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
    from collections.abc import Callable, Iterator

    from urllib3 import BaseHTTPResponse, PoolManager

    from aks_flex_node.agent.config.models import NodeConfig


API_LIMITS = DownloadOptions(parallel=1, connect_seconds=5.0, stall_seconds=15.0)
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


class ApiStatusError(Exception):
    """The API server responded with an error status."""

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
        """Configures the server, its CA file (`authority`), and a client certificate file or a token."""
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
        """Sends a request and returns the parsed response.

        Raises ApiStatusError on an error status, and ClusterError when the server cannot be reached.
        """
        from urllib3.exceptions import HTTPError

        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = content_type
        data = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(method, self._server + path, body=data, headers=headers, retries=False)
        except (HTTPError, OSError) as error:
            raise explain_connection_error(self._server, error) from error
        return _parse_answer(answer.status, answer.data)

    def open_stream(self, path: str, seconds: float) -> ApiStream:
        """Opens a response of many lines, for example of a watch, in which no data arrives for at most `seconds`.

        Raises the same errors as `request`.
        """
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        limit = Timeout(connect=API_LIMITS.connect_seconds, read=seconds)
        try:
            answer = self._pool.request(
                "GET",
                self._server + path,
                headers=self._headers(),
                retries=False,
                preload_content=False,
                timeout=limit,
            )
            if answer.status != 200:
                _parse_answer(answer.status, answer.read(MAX_LINE_BYTES))
                raise ApiStatusError(answer.status, "", f"HTTP {answer.status}")
        except (HTTPError, OSError) as error:
            raise explain_connection_error(self._server, error) from error
        return ApiStream(self._server, answer)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "aks-flex-node"}
        return {**headers, "Authorization": f"Bearer {self._token()}"} if self._token else headers


MAX_LINE_BYTES = 1 << 20
READ_BYTES = 1 << 14


class ApiStream:
    """The lines of a response that the API server sends over time."""

    def __init__(self, server: str, answer: BaseHTTPResponse) -> None:
        self._server = server
        self._answer = answer

    def lines(self) -> Iterator[bytes]:
        """Yields each line until the server ends the response. Raises ClusterError when the connection fails."""
        from urllib3.exceptions import HTTPError

        rest = b""
        try:
            while piece := self._answer.read1(READ_BYTES):
                *complete, rest = (rest + piece).split(b"\n")
                yield from (line for line in complete if line.strip())
                if len(rest) > MAX_LINE_BYTES:
                    raise ValueError("a line is too long")
        except (HTTPError, OSError, ValueError) as error:
            raise explain_connection_error(self._server, error) from error

    def stop(self) -> None:
        """Ends `lines` in another thread."""
        with contextlib.suppress(Exception):  # the response may be closed already
            self._answer.shutdown()

    def close(self) -> None:
        self._answer.close()


def _parse_answer(status: int, data: bytes) -> Any:
    document: Any = {}
    with contextlib.suppress(ValueError):
        document = json.loads(data or b"{}")
    if status >= 400:
        api_status = document if isinstance(document, dict) else {}
        raise ApiStatusError(status, api_status.get("reason", ""), _message(api_status, status))
    return document


def _message(api_status: dict[str, Any], status: int) -> str:
    """Returns the server's error message, with the disruption budgets that block an eviction."""
    causes = (api_status.get("details") or {}).get("causes") or []
    budgets = [str(one.get("message", "")) for one in causes if one.get("reason") == "DisruptionBudget"]
    return " ".join([str(api_status.get("message", f"HTTP {status}")), *budgets])


def explain_connection_error(server: str, error: Exception) -> ClusterError:
    """Converts a connection error into a ClusterError with cause and hint."""
    cause = str(error)
    if "certificate has expired" in cause or "certificate is not yet valid" in cause:
        return ClusterError(
            "api-server-untrusted",
            f"The certificate of {server} is expired or not yet valid according to this machine's clock.",
            "Check the clock with `date`. If it is correct, renew the API server's certificate.",
        )
    if "CERTIFICATE_VERIFY_FAILED" in cause or "certificate verify failed" in cause:
        return ClusterError(
            "api-server-untrusted",
            f"The certificate of {server} is not signed by the configured cluster CA.",
            "Compare `node.kubelet.caCertData` with `certificate-authority-data` of a working kubeconfig.",
        )
    if any(phrase in cause for phrase in ("Name or service not known", "name resolution", "NameResolutionError")):
        return ClusterError(
            "api-server-name-not-resolved",
            f"The host name in {server} cannot be resolved.",
            "Check `node.kubelet.serverURL` and the name servers in `/etc/resolv.conf`.",
            retryable=True,
        )
    return ClusterError(
        "api-server-unreachable",
        f"{server} cannot be reached: {short_cause(cause)}.",
        "Check `node.kubelet.serverURL`, and that no firewall blocks the connection.",
        retryable=True,
    )


def short_cause(cause: str) -> str:
    """Shortens a nested connection error to its cause."""
    for phrase in ("Connection refused", "timed out", "No route to host", "Network is unreachable", "reset by peer"):
        if phrase.lower() in cause.lower():
            return phrase[0].lower() + phrase[1:]
    return cause.rsplit(":", 1)[-1].strip(" ()'\"") or "unknown cause"


MIN_TOKEN_SECONDS = 30.0  # remaining lifetime that a cached token must have
SIGN_IN_SECONDS = 40.0  # well below the daemon's watchdog timeout


def node_api(config: NodeConfig) -> ApiClient:
    paths, server = config.paths.kubernetes, config.node.kubelet.server_url or ""
    authority, proxy = f"{paths.certs_dir}/ca.crt", proxy_for_server(config, server)
    if kubelet_auth(config) == "exec":
        return ApiClient(server, authority, proxy=proxy, token=lambda: azure_token(paths.kubelet_dir))
    return ApiClient(server, authority, kubelet_credential_file(config), proxy=proxy)


def azure_token(folder: str) -> str:
    """Returns the kubelet's Azure token: from its cache file while valid, else by running its token script.

    A child process signs in, because signing in imports large libraries.
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
            f"No token for the API server: {lines[-1][:300] if lines else 'token.sh printed no error'}",
            "Run `aks-flex-node token kubernetes` to see the error.",
            retryable=True,
        ) from None


def proxy_for_server(config: NodeConfig, server: str) -> str:
    """Returns the proxy that the kubelet uses for the server; empty for none."""
    return proxy_options(config).proxy_for(server) or ""
