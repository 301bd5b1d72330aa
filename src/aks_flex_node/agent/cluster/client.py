"""A small client of the Kubernetes API that authenticates with the node's certificate or its Azure identity."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config.resolved import kubelet_auth, kubelet_credential_file
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.agent.identity import token_cache
from aks_flex_node.agent.identity.cloud_endpoints import proxy_options
from aks_flex_node.bounded_http.limits import (
    BodyLimitError,
    RequestTimeout,
    interrupt,
    read_body,
    response_socket,
    time_limit,
)
from aks_flex_node.errors import ClusterError
from aks_flex_node.host import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from urllib3 import BaseHTTPResponse, PoolManager
    from urllib3.exceptions import HTTPError

    from aks_flex_node.settings.models import NodeConfig


MAX_ANSWER_BYTES = 32 << 20  # the pods of a full node are a few megabytes
ANSWER_SECONDS = 60.0  # for a whole request
NODE_SECONDS = 20.0  # of the daemon: two requests and a sign-in are faster than its watchdog
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
        seconds: float | None = None,
    ) -> None:
        """Configures the server, its CA file (`authority`), a client certificate file or a token, and the total time
        of a request.
        """
        self._server = server.rstrip("/")
        self._authority = authority
        self._certificate = certificate
        self._proxy = proxy
        self._token = token
        self._seconds = ANSWER_SECONDS if seconds is None else seconds
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
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = content_type
        data = None if body is None else json.dumps(body).encode()
        with self._send(method, path, body=data, headers=headers) as answer:
            try:
                content = read_body(answer, MAX_ANSWER_BYTES)
            finally:
                answer.release_conn()
        return _parse_answer(self._server, answer.status, content)

    def open_stream(self, path: str, seconds: float) -> ApiStream:
        """Opens a response of many lines, for example of a watch, which takes at most `seconds`.

        Raises the same errors as `request`.
        """
        from urllib3 import Timeout

        limit = Timeout(connect=API_LIMITS.connect_seconds, read=seconds)
        with self._send("GET", path, headers=self._headers(), timeout=limit) as answer:
            if answer.status != 200:
                content = read_body(answer, MAX_LINE_BYTES)
                answer.close()
                _parse_answer(self._server, answer.status, content)
                raise unexpected_answer_error(self._server, f"its status is {answer.status}")
        return ApiStream(self._server, answer, seconds)

    @contextlib.contextmanager
    def _send(self, method: str, path: str, **options: Any) -> Iterator[BaseHTTPResponse]:
        """Sends a request and yields the response, within the time limit. Explains errors, also of the block."""
        from urllib3.exceptions import HTTPError

        options |= {"retries": False, "redirect": False, "preload_content": False}
        try:
            with time_limit(self._seconds):
                yield self._pool.request(method, self._server + path, **options)
        except (HTTPError, OSError) as error:
            raise explain_connection_error(self._server, error) from error
        except BodyLimitError as limit:
            raise unexpected_answer_error(self._server, str(limit)) from None

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "aks-flex-node"}
        return {**headers, "Authorization": f"Bearer {self._token()}"} if self._token else headers


MAX_LINE_BYTES = 1 << 20
READ_BYTES = 1 << 14


class ApiStream:
    """The lines of a response that the API server sends over time."""

    def __init__(self, server: str, answer: BaseHTTPResponse, seconds: float) -> None:
        self._server = server
        self._answer = answer
        self._seconds = seconds

    def lines(self) -> Iterator[bytes]:
        """Yields each line until the server ends the response. Raises ClusterError when the connection fails."""
        from urllib3.exceptions import HTTPError

        rest, end = bytearray(), time.monotonic() + self._seconds
        try:
            while piece := self._answer.read1(READ_BYTES, decode_content=False):
                rest += piece  # many small pieces must not copy a long line each time
                if b"\n" in piece:
                    *complete, last = bytes(rest).split(b"\n")
                    rest = bytearray(last)
                    yield from (line for line in complete if line.strip())
                if len(rest) > MAX_LINE_BYTES:
                    raise unexpected_answer_error(self._server, "a line is too long")
                if time.monotonic() > end:
                    raise RequestTimeout(self._seconds)
        except (HTTPError, OSError) as error:
            raise explain_connection_error(self._server, error) from error

    def stop(self) -> None:
        """Ends `lines` in another thread."""
        interrupt(response_socket(self._answer))

    def close(self) -> None:
        self._answer.close()


def _parse_answer(server: str, status: int, data: bytes) -> Any:
    """Returns the object of a response. Raises ApiStatusError only for a Status object of Kubernetes: a proxy, a load
    balancer or a sign-in page may answer at the same address.
    """
    document: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(data)
    if isinstance(document, dict) and 200 <= status < 300:
        return document
    if isinstance(document, dict) and status >= 400 and document.get("kind") == "Status":
        details = document.get("details")
        causes = details.get("causes") if isinstance(details, dict) else None
        found = [one for one in causes if isinstance(one, dict)] if isinstance(causes, list) else []
        budgets = [str(one.get("message", "")) for one in found if one.get("reason") == "DisruptionBudget"]
        raise ApiStatusError(
            status,
            str(document.get("reason") or ""),
            " ".join([str(document.get("message", f"HTTP {status}")), *budgets]),
        )
    if status == 429:  # an overloaded API server answers with plain text
        raise ApiStatusError(status, "TooManyRequests", "too many requests")
    raise unexpected_answer_error(server, f"its status is {status}, and it is not a response of Kubernetes")


def unexpected_answer_error(server: str, cause: str) -> ClusterError:
    return ClusterError(
        "api-server-unexpected-response",
        f"The response from {server} cannot be used: {cause}.",
        "A proxy, a load balancer or a sign-in page may have answered: run `curl -kv` with this address and "
        "`/version`. The agent retries.",
        retryable=True,
    )


def explain_connection_error(server: str, error: HTTPError | OSError) -> ClusterError:
    """Converts a connection error into a ClusterError with cause and hint."""
    from urllib3.exceptions import NameResolutionError

    from aks_flex_node.agent.http.connections import exception_chain, explain_failure, find_certificate_error

    if untrusted := find_certificate_error(error):
        if "expired" in untrusted.verify_message or "not yet valid" in untrusted.verify_message:
            return ClusterError(
                "api-server-untrusted",
                f"The certificate of {server} is expired or not yet valid according to this machine's clock.",
                "Check the clock with `date`. If it is correct, renew the API server's certificate.",
            )
        return ClusterError(
            "api-server-untrusted",
            f"The certificate of {server} is not signed by the configured cluster CA.",
            "Compare `node.kubelet.caCertData` with `certificate-authority-data` of a working kubeconfig.",
        )
    if any(isinstance(each, NameResolutionError | socket.gaierror) for each in exception_chain(error)):
        return ClusterError(
            "api-server-name-not-resolved",
            f"The host name in {server} cannot be resolved.",
            "Check `node.kubelet.serverURL` and the name servers in `/etc/resolv.conf`.",
            retryable=True,
        )
    cause = explain_failure(error, server, None, API_LIMITS.stall_seconds).cause
    return ClusterError(
        "api-server-unreachable",
        f"The API server {server} cannot be reached: {cause}.",
        "Check `node.kubelet.serverURL`, and that no firewall blocks the connection.",
        retryable=True,
    )


MIN_TOKEN_SECONDS = 30.0  # remaining lifetime that a cached token must have
SIGN_IN_SECONDS = 40.0  # well below the daemon's watchdog timeout


def node_api(config: NodeConfig, seconds: float | None = None) -> ApiClient:
    """Returns a client as this node. `seconds` limits each request; the default allows the list of all pods."""
    paths, server = config.paths.kubernetes, config.node.kubelet.server_url or ""
    authority, proxy = f"{paths.certs_dir}/ca.crt", proxy_for_server(config, server)
    if kubelet_auth(config) == "exec":
        return ApiClient(
            server, authority, proxy=proxy, token=lambda: azure_token(paths.kubelet_dir), seconds=seconds
        )
    return ApiClient(server, authority, kubelet_credential_file(config), proxy=proxy, seconds=seconds)


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
