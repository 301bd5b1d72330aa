"""A thin client of the Kubernetes API: a handful of calls do not need a library of fifty megabytes.

See docs/decisions/0006.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from aks_flex_node.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

    import urllib3

PATCH = "application/strategic-merge-patch+json"


class Refused(Exception):  # noqa: N818 - it is an answer, and often an expected one
    """The API server answered, and its answer is no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class Api:
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
        self._made: urllib3.PoolManager | None = None

    @property
    def _pool(self) -> urllib3.PoolManager:
        import urllib3  # noqa: PLC0415

        if self._made is None:
            settings: dict[str, Any] = {
                "cert_reqs": "CERT_REQUIRED",
                "ca_certs": self._authority,
                "cert_file": self._certificate or None,
                "timeout": urllib3.Timeout(connect=5.0, read=15.0),
                "retries": False,
            }
            self._made = _proxied(self._proxy, settings) if self._proxy else urllib3.PoolManager(**settings)
        return self._made

    def close(self) -> None:
        if self._made:
            self._made.clear()

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """What the server answers, as data; Refused when it says no, ClusterError when it cannot be asked."""
        import urllib3  # noqa: PLC0415

        headers = {"Accept": "application/json", "User-Agent": "aks-flex-node"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token()}"
        if body is not None:
            headers["Content-Type"] = content_type
        data = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(method, self._server + path, body=data, headers=headers)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise explained(self._server, error) from error
        document: Any = {}
        with contextlib.suppress(ValueError):
            document = json.loads(answer.data or b"{}")
        if answer.status >= 400:
            said = document if isinstance(document, dict) else {}
            raise Refused(answer.status, said.get("reason", ""), _message(said, answer.status))
        return document


def _message(said: dict[str, Any], status: int) -> str:
    """The server's words. Which budget keeps a pod where it is, it says apart from the rest."""
    causes = (said.get("details") or {}).get("causes") or []
    budgets = [str(one.get("message", "")) for one in causes if one.get("reason") == "DisruptionBudget"]
    return " ".join([str(said.get("message", f"HTTP {status}")), *budgets])


def _proxied(proxy: str, settings: dict[str, Any]) -> urllib3.PoolManager:
    """By way of a proxy, to which its own name and password are shown."""
    import urllib3  # noqa: PLC0415

    parts = urlsplit(proxy)
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    headers = urllib3.make_headers(proxy_basic_auth=login) if login else None
    host = parts.netloc.rpartition("@")[2]
    return urllib3.ProxyManager(f"{parts.scheme}://{host}", proxy_headers=headers, **settings)


def explained(server: str, error: Exception) -> ClusterError:
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
    if any(words in cause for words in ("Name or service not known", "name resolution", "NameResolutionError")):
        return ClusterError(
            "api-server-unknown",
            f"The name in {server} cannot be resolved.",
            "Check node.kubelet.serverURL, and the name servers in /etc/resolv.conf.",
            again=True,
        )
    return ClusterError(
        "api-server-unreachable",
        f"{server} cannot be reached: {plain(cause)}.",
        "Check node.kubelet.serverURL, and that no firewall is between this machine and it.",
        again=True,
    )


def plain(cause: str) -> str:
    """The last words of a long error."""
    for words in ("Connection refused", "timed out", "No route to host", "Network is unreachable", "reset by peer"):
        if words.lower() in cause.lower():
            return words[0].lower() + words[1:]
    return cause.rsplit(":", 1)[-1].strip(" ()'\"") or "unknown cause"
