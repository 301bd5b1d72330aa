"""HTTP client of the service's API: resources by their paths, and following a roll-out until it ends. Used by the
`aks-flex-rp` commands.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from urllib3.exceptions import HTTPError, LocationParseError, MaxRetryError, ProtocolError, SSLError
from urllib3.util import Retry, Timeout

from aks_flex_node import __version__
from aks_flex_node.api import rollout_summary
from aks_flex_node.api.contract import API_VERSION
from aks_flex_node.bounded_http.connections import BoundedHTTPSPool, protocol_cause
from aks_flex_node.bounded_http.limits import BodyLimitError, RequestTimeout, read_body, time_limit
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import urllib3

    Document = dict[str, Any]

PAGE = 1000
EVENTS = 500
MAX_RETRY_AFTER_SECONDS = 10.0  # the service asks for a few seconds; another server could ask for hours


class BoundedRetry(Retry):
    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        asked = super().get_retry_after(response)
        return None if asked is None else min(asked, MAX_RETRY_AFTER_SECONDS)


# GET requests are safe to repeat, so they are retried when the service reports that it is busy (429, 503).
READ_RETRIES = BoundedRetry(
    3, connect=0, read=1, status_forcelist={429, 503}, allowed_methods={"GET"}, raise_on_status=False
)
TIMEOUT = Timeout(connect=10, read=60)
TOTAL_SECONDS = 120.0  # for a request with its retries
MAX_RESPONSE_BYTES = 64 << 20


class RequestRefused(FlexError):  # noqa: N818 - a response, not a fault
    """Raised when the service rejects a request with an ARM error response."""

    exit_code = 5

    def __init__(self, status: int, error: Document, request_id: str) -> None:
        from aks_flex_node.error_catalog import has_entry  # noqa: PLC0415 - only a failure needs it

        lines = [f"{error.get('code') or f'HTTP {status}'}: {error.get('message') or 'No error message.'}"]
        if target := error.get("target"):
            lines[0] = f"{lines[0]} ({target})"
        details = error.get("details") or ()
        lines += [
            f"  {each.get('target') or 'request'}: {each.get('message')}"
            for each in details
            if str(each.get("message")) not in lines[0]
        ]
        hint = HINTS.get(str(error.get("code")), f"Search the service's log for request ID {request_id}.")
        # An error of the service itself can be in the catalogue.
        if status >= 500 and details and has_entry(str(details[0].get("code")), "aks_flex_rp"):
            hint = f"Run `aks-flex-rp explain {details[0].get('code')}` for causes and remedies. {hint}"
        super().__init__("request-rejected", "\n".join(lines), hint, retryable=status in {409, 429, 503})
        self.status = status
        self.code = str(error.get("code", ""))


HINTS = {
    "InvalidRequestContent": "Correct the listed values. Nothing was changed.",
    "InvalidResourceName": "Correct the name. Nothing was changed.",
    "NodeNotKnown": "Run `aks-flex-rp node list` to list the nodes, or `aks-flex-rp node create` to create one.",
    "ResourceNotFound": "Run `aks-flex-rp node list` to list the nodes, or `aks-flex-rp node create` to create one.",
    "PoolNotFound": "Run `aks-flex-rp pool list` to list the pools, or `aks-flex-rp pool create` to create one.",
    "RevisionNotFound": "Nothing was changed.",
    "EnrolmentNotFound": "Run `aks-flex-rp pool enrolment list --pool POOL` to list the enrolments of the pool.",
    "MachineNotFound": "Nothing was changed.",
    "MachineEnrolled": "Nothing was changed.",
    "NodeNotEnrolled": "Nothing was changed.",
    "PoolHasNodes": "Nothing was changed.",
    "RolloutNotFound": "Check `--pool` and `--name`.",
    "RolloutStateConflict": "See its state with `aks-flex-rp rollout show`. Nothing was changed.",
    "RevisionNotBarred": "See the barred revisions with `aks-flex-rp pool show`. Nothing was changed.",
    "RolloutExists": "Nothing was changed.",
    "RolloutActive": "`aks-flex-rp rollout create --replace-active` ends it and starts another. Nothing was changed.",
    "RevisionBarred": "Nothing was changed.",
    "DisruptionBudgetExceeded": "Wait, or use `--override-rollout` for this node. Nothing was changed.",
    "ParentResourceNotFound": "Run `aks-flex-rp cluster list` to list the clusters.",
    "NodeOnAnotherMachine": "Nothing was changed.",
    "IdentityInUse": "Use another identity for this node. Nothing was changed.",
    "PreconditionFailed": "Run `aks-flex-rp node show` to see the current state.",
    "AuthorizationFailed": "Ask an owner of the cluster for a role, or use another identity.",
    "AuthenticationFailed": "Check the token.",
    "InvalidAuthenticationToken": "Use a new token, or the present admin key of the service.",
    "InvalidAuthenticationTokenTenant": "Get a token of a tenant that the service accepts (`auth.tenants`).",
    "InvalidAuthenticationTokenAudience": "Get a token for an audience that the service accepts (`auth.tenants`).",
    "ExpiredAuthenticationToken": "Get a new token with `az account get-access-token --resource AUDIENCE`.",
    "TooManyRequests": "Wait, then try again.",
}


class ServiceUnreachable(FlexError):  # noqa: N818 - names a state
    """Raised when the service does not respond, or when its certificate is not trusted."""

    exit_code = 5


@dataclass(frozen=True)
class ServiceConnection:
    """Address, credential and trust settings for connecting to the service."""

    url: str
    token: str = ""
    ca_file: Path | None = None  # None: the system's certificate authorities
    at: tuple[str, int] | None = None  # connect to this local address instead of resolving the URL's host name

    def __repr__(self) -> str:
        return f"Connection({self.url})"


class ServiceClient:
    def __init__(self, connection: ServiceConnection) -> None:
        self._url = connection.url.rstrip("/")
        # A command sends one or two requests, and a stopping service waits for open connections, so none is kept
        # alive.
        self._headers = {"Connection": "close", "User-Agent": f"aks-flex-rp/{__version__}"}
        if connection.token:
            self._headers["Authorization"] = f"Bearer {connection.token}"
        self._pool = _pool(connection)

    def audit(
        self, *, resource: str = "", caller: str = "", what: str = "", page_size: int = EVENTS
    ) -> Iterator[Document]:
        """Yields audit events, newest first. Pages are fetched as the caller iterates."""
        filters = {"resource": resource, "who": caller, "what": what, "limit": str(page_size)}
        query = {name: value for name, value in filters.items() if value}
        while True:
            page = self.send("GET", f"/audit?{urlencode(query)}")["value"]
            yield from page
            if len(page) < page_size:
                return
            query["before"] = str(page[-1]["sequence"])

    def request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Document | None = None,
        headers: dict[str, str] | None = None,
    ) -> Document:
        """Sends a request to the ARM API. Raises RequestRefused or ServiceUnreachable."""
        text = urlencode({"api-version": API_VERSION, **(query or {})}, safe="$")
        return self.send(method, f"{path}?{text}", body, headers)

    def send(
        self, method: str, target: str, body: Document | None = None, headers: dict[str, str] | None = None
    ) -> Document:
        content = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        sent = {**self._headers, **kind, **(headers or {})}
        try:
            with time_limit(TOTAL_SECONDS):
                answer = self._pool.urlopen(method, target, content, sent, redirect=False, preload_content=False)
                try:
                    data = read_body(answer, MAX_RESPONSE_BYTES)
                finally:
                    answer.close()
        except (HTTPError, RequestTimeout) as error:
            raise _unreachable(self._url, error) from None
        except BodyLimitError as limit:
            raise _not_the_service(self._url, f"{limit}") from None
        if method == "GET" and not data and answer.status < 400:
            raise _not_the_service(self._url, f"HTTP {answer.status}, an empty body")
        return _document(self._url, answer, data)


def _pool(connection: ServiceConnection) -> urllib3.HTTPConnectionPool:
    parts = urlsplit(connection.url)
    name = parts.hostname or ""
    options: Document = {"ca_certs": str(connection.ca_file)} if connection.ca_file else {}
    try:
        host, port = connection.at or (name, parts.port or 443)
        return BoundedHTTPSPool(
            host,
            port,
            timeout=TIMEOUT,
            retries=READ_RETRIES,
            assert_hostname=name,
            server_hostname=name,
            **options,
        )
    except (LocationParseError, ValueError):
        raise ServiceUnreachable("service-unreachable", f"{connection.url} is not a valid service URL.") from None


def _document(url: str, answer: urllib3.BaseHTTPResponse, data: bytes) -> Document:
    try:
        document = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        document = None
    if answer.status >= 400 and isinstance(document, dict):
        error = document.get("error")
        raise RequestRefused(
            answer.status, error if isinstance(error, dict) else {}, answer.headers.get("x-ms-request-id", "")
        )
    if not isinstance(document, dict) or answer.status >= 300:
        raise _not_the_service(url, f"HTTP {answer.status}, not JSON")
    return document


def _not_the_service(url: str, cause: str) -> ServiceUnreachable:
    return ServiceUnreachable(
        "service-unreachable",
        f"Unexpected response from {url}: {cause}. It is not this service.",
        "Check the URL, and check whether a proxy answered.",
    )


def _unreachable(url: str, error: HTTPError | RequestTimeout) -> ServiceUnreachable:
    cause = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    if isinstance(cause, SSLError):
        return ServiceUnreachable(
            "service-untrusted",
            f"The certificate of {url} is not trusted: {cause}.",
            "Pass the service's CA certificate with `--ca`. A private CA is in `tls/ca.crt` in the state directory.",
        )
    plain = str(cause).rpartition(": ")[2]
    return ServiceUnreachable(
        "service-unreachable",
        f"{url} does not respond: {protocol_cause(cause) if isinstance(cause, ProtocolError) else plain}.",
        "Check that the service is running (`aks-flex-rp serve`), and check `--url`.",
        retryable=True,
    )


@dataclass(frozen=True)
class Resource:
    """A resource of the API, or a collection of resources, by its path."""

    service: ServiceClient
    path: str

    def at(self, *names: str) -> Resource:
        return Resource(self.service, "/".join((self.path, *(quote(each, safe="") for each in names))))

    def get(self) -> Document:
        return self.service.request("GET", self.path)

    def list(self, filter_text: str = "", page_size: int = PAGE) -> Iterator[Document]:
        """Yields all resources of a collection, page by page."""
        page = self.service.request(
            "GET", self.path, {"$top": str(page_size), **({"$filter": filter_text} if filter_text else {})}
        )
        while True:
            yield from page["value"]
            if not page.get("nextLink"):
                return
            # Only the path and query of the link are used: the token must never be sent to another host.
            link = urlsplit(page["nextLink"])
            page = self.service.send("GET", f"{link.path}?{link.query}")

    def put(self, properties: Document, etag: str | None = None, query: dict[str, str] | None = None) -> Document:
        """Writes the resource with this etag. An empty etag: only a new one."""
        guard = {"If-Match": etag} if etag else {} if etag is None else {"If-None-Match": "*"}
        return self.service.request("PUT", self.path, query, {"properties": properties}, guard)

    def delete(self) -> Document | None:
        """Deletes the resource and returns what the service says, or None if it says nothing."""
        return self.service.request("DELETE", self.path) or None

    def act(self, action: str, body: Document | None = None) -> Document:
        """Sends an action, for example `pause`."""
        return self.service.request("POST", f"{self.path}/{action}", body=body)

    def entries(self, action: str, **body: Any) -> Iterator[Document]:
        """Yields what an action lists. Pages are fetched as the caller iterates."""
        while True:
            page = self.act(action, body)
            yield from page["value"]
            if not page.get("after"):
                return
            body["after"] = page["after"]


def follow_rollout(
    found: Resource,
    rollout: Document,
    print_line: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Document:
    """Prints each change of a roll-out as one line until it has ended, and returns it."""

    def read(is_patient: bool) -> Document | None:
        try:
            return found.get()
        except (RequestRefused, ServiceUnreachable) as error:
            if error.retryable and is_patient:
                return None
            raise

    return rollout_summary.follow(rollout, read, print_line, sleep)
