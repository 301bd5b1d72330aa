"""HTTP client of the service's API, used by the commands: one method per operation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, MaxRetryError, SSLError
from urllib3.util import Retry, Timeout

from aks_flex_node import __version__
from aks_flex_node.api.contract import API_VERSION
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_rp.arm.ids import ClusterId

    Document = dict[str, Any]

PAGE = 1000
EVENTS = 500
# What only reads is asked again when the service says that it is busy, as often as it says itself.
READ_RETRIES = Retry(
    3, connect=0, read=1, status_forcelist={429, 503}, allowed_methods={"GET"}, raise_on_status=False
)
TIMEOUT = Timeout(connect=10, read=60)


class RequestRefused(FlexError):  # noqa: N818 - an answer
    """The service answered, and does not do it."""

    exit_code = 5

    def __init__(self, status: int, error: Document, request_id: str) -> None:
        lines = [f"{error.get('code') or f'HTTP {status}'}: {error.get('message') or 'The service gave no reason.'}"]
        if target := error.get("target"):
            lines[0] = f"{lines[0]} ({target})"
        lines += [
            f"  {each.get('target') or 'request'}: {each.get('message')}" for each in error.get("details") or ()
        ]
        hint = HINTS.get(str(error.get("code")), f"The service's log has more at request {request_id}.")
        super().__init__("request-rejected", "\n".join(lines), hint, retryable=status in {409, 429, 503})
        self.status = status
        self.code = str(error.get("code", ""))


HINTS = {
    "InvalidRequestContent": "Correct what is listed; nothing was changed.",
    "InvalidResourceName": "Correct the name; nothing was changed.",
    "ResourceNotFound": "`aks-flex-rp node list` shows which there are, and `node create` makes one.",
    "ParentResourceNotFound": "See which clusters there are with `aks-flex-rp cluster list`.",
    "PreconditionFailed": "Look at it with `aks-flex-rp node show`.",
    "AuthorizationFailed": "Ask an owner of the cluster for a role, or use another identity.",
    "AuthenticationFailed": "Check the token.",
    "ExpiredAuthenticationToken": "Get a new token, such as by `az account get-access-token`.",
    "TooManyRequests": "Wait, and try again.",
}


class ServiceUnreachable(FlexError):  # noqa: N818 - it says what is the case
    """The service gave no answer, or one that cannot be trusted."""

    exit_code = 5


@dataclass(frozen=True)
class ServiceConnection:
    """How the service is reached, and as whom."""

    url: str
    token: str = ""
    ca_file: Path | None = None  # the system's authorities when None
    at: tuple[str, int] | None = None  # where a service on this machine listens, whatever its name resolves to

    def __repr__(self) -> str:
        return f"Connection({self.url})"


class ServiceClient:
    def __init__(self, connection: ServiceConnection) -> None:
        self._url = connection.url.rstrip("/")
        # A command asks once or twice, and a service that stops waits for whoever keeps a connection.
        self._headers = {"Connection": "close", "User-Agent": f"aks-flex-rp/{__version__}"}
        if connection.token:
            self._headers["Authorization"] = f"Bearer {connection.token}"
        self._pool = _pool(connection)

    def node(self, cluster: ClusterId, name: str) -> Document:
        return self._request("GET", cluster.node(quote(name)))

    def nodes(self, cluster: ClusterId, filter_text: str = "", page_size: int = PAGE) -> Iterator[Document]:
        """All of them, page by page."""
        query = {"$top": str(page_size), **({"$filter": filter_text} if filter_text else {})}
        page = self._request("GET", f"{cluster}/flexNodeConfig", query)
        while True:
            yield from page["value"]
            if not page.get("nextLink"):
                return
            # Only this service is asked, whatever a link says: a token is sent with it.
            link = urlsplit(page["nextLink"])
            page = self._sent("GET", f"{link.path}?{link.query}")

    def put_node(
        self,
        cluster: ClusterId,
        name: str,
        properties: Document,
        *,
        etag: str = "",
        url: bool = False,
        downgrade: bool = False,
    ) -> Document:
        """Replaces the node that has this etag; creates it, and only that, when none is given."""
        guard = {"If-Match": etag} if etag else {"If-None-Match": "*"}
        options = {"configUrl": url, "allowDowngrade": downgrade}
        query = {name: "true" for name, is_set in options.items() if is_set}
        return self._request("PUT", cluster.node(quote(name)), query, {"properties": properties}, guard)

    def delete_node(self, cluster: ClusterId, name: str) -> Document | None:
        """What was ended; None when there was no such node."""
        return self._request("DELETE", cluster.node(quote(name))) or None

    def regenerate_token(self, cluster: ClusterId, name: str) -> Document:
        return self._request("POST", f"{cluster.node(quote(name))}/regenerateToken")

    def credentials(self, cluster: ClusterId, name: str) -> Document:
        return self._request("POST", f"{cluster.node(quote(name))}/listCredentials")

    def audit(
        self, *, resource: str = "", caller: str = "", what: str = "", page_size: int = EVENTS
    ) -> Iterator[Document]:
        """The newest first; whoever has seen enough stops asking."""
        filters = {"resource": resource, "who": caller, "what": what, "limit": str(page_size)}
        query = {name: value for name, value in filters.items() if value}
        while True:
            page = self._sent("GET", f"/audit?{urlencode(query)}")["value"]
            yield from page
            if len(page) < page_size:
                return
            query["before"] = str(page[-1]["sequence"])

    def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Document | None = None,
        headers: dict[str, str] | None = None,
    ) -> Document:
        text = urlencode({"api-version": API_VERSION, **(query or {})}, safe="$")
        return self._sent(method, f"{path}?{text}", body, headers)

    def _sent(
        self, method: str, target: str, body: Document | None = None, headers: dict[str, str] | None = None
    ) -> Document:
        content = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        try:
            answer = self._pool.urlopen(
                method, target, content, {**self._headers, **kind, **(headers or {})}, redirect=False
            )
        except HTTPError as error:
            raise _unreachable(self._url, error) from None
        return _document(self._url, answer)


def _pool(connection: ServiceConnection) -> urllib3.HTTPConnectionPool:
    parts = urlsplit(connection.url)
    name = parts.hostname or ""
    options: Document = {"ca_certs": str(connection.ca_file)} if connection.ca_file else {}
    try:
        host, port = connection.at or (name, parts.port or 443)
        return urllib3.HTTPSConnectionPool(
            host,
            port,
            timeout=TIMEOUT,
            retries=READ_RETRIES,
            assert_hostname=name,
            server_hostname=name,
            **options,
        )
    except (LocationParseError, ValueError):
        raise ServiceUnreachable("service-unreachable", f"{connection.url} is no address of a service.") from None


def _document(url: str, answer: urllib3.BaseHTTPResponse) -> Document:
    try:
        document = json.loads(answer.data) if answer.data else {}
    except ValueError:
        document = None
    if answer.status >= 400 and isinstance(document, dict):
        error = document.get("error")
        raise RequestRefused(
            answer.status, error if isinstance(error, dict) else {}, answer.headers.get("x-ms-request-id", "")
        )
    if not isinstance(document, dict) or answer.status >= 300:
        raise ServiceUnreachable(
            "service-unreachable",
            f"What answers at {url} is not this service: HTTP {answer.status}, not JSON.",
            "Check the URL, and whether a proxy is between.",
        )
    return document


def _unreachable(url: str, error: HTTPError) -> ServiceUnreachable:
    cause = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    if isinstance(cause, SSLError):
        return ServiceUnreachable(
            "service-untrusted",
            f"{url} does not show a certificate that can be trusted: {cause}.",
            "Give its CA certificate with --ca; the service keeps its own as tls/ca.crt in its state directory.",
        )
    return ServiceUnreachable(
        "service-unreachable",
        f"{url} gives no answer: {str(cause).rpartition(': ')[2]}.",
        "See whether the service runs (`aks-flex-rp serve`), and check --url.",
        retryable=True,
    )
