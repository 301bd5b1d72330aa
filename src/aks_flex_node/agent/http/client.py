"""HTTP client of the agent, on urllib3: streamed responses, redirects, statuses, Retry-After. urllib3 is imported on
first use.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from aks_flex_node.agent.http.connections import explain_failure, make_pool, url_credentials
from aks_flex_node.agent.http.download_options import DownloadOptions, DownloadUrl, redact_url
from aks_flex_node.bounded_http.limits import interrupt, response_socket, time_limit, watch
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import AttemptFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3 import BaseHTTPResponse, PoolManager


MAX_REDIRECTS = 5
STALLS = 2  # the headers, and each read of the body, may take this many times the stall limit
REDIRECT_STATUSES = {301, 302, 303, 307, 308}


class HttpResponse:
    """A successful response whose body has not been read yet."""

    def __init__(self, raw: BaseHTTPResponse, url: str, proxy: str | None, stall: float) -> None:
        self._raw, self._url, self._proxy, self._stall = raw, url, proxy, stall
        self._link = response_socket(raw)
        self.status = raw.status
        self.headers: Mapping[str, str] = raw.headers

    def read(self, size: int) -> bytes:
        """Reads up to `size` bytes. Returns no bytes at the end."""
        from urllib3.exceptions import HTTPError

        try:
            with time_limit(STALLS * self._stall):
                watch(self._link)
                return self._raw.read(size, decode_content=False)
        except (HTTPError, OSError) as error:
            raise explain_failure(error, self._url, self._proxy, self._stall) from error

    def release(self) -> None:
        """Returns the connection to the pool after the body was read."""
        self._raw.release_conn()

    def close(self) -> None:
        self._raw.close()

    def abort(self) -> None:
        """Interrupts a read in another thread."""
        interrupt(self._link)


class HttpClient:
    """HTTP client with one connection pool for each proxy."""

    def __init__(self, sources: DownloadOptions) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._pools: dict[str | None, PoolManager] = {}
        self._open: set[HttpResponse] = set()
        self._closed = False

    def get(self, location: DownloadUrl, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Sends a GET request and follows redirects. Raises AttemptFailed if a retry can succeed."""
        url, sent = location.url, {**basic_auth_header(location.url), **(headers or {})}
        for _ in range(MAX_REDIRECTS + 1):
            response = self._request(url, {"Accept-Encoding": "identity", **sent})
            target = redirect_target(url, response.status, response.headers)
            if target is None:
                return self._check_status(response, location)
            self.discard(response)
            sent = redirected_headers(sent, url, target)
            url = check_redirect(url, target, location)
        raise ArtifactError(
            "redirect-refused",
            f"{location} redirects more than {MAX_REDIRECTS} times.",
            "Open the URL in a browser to check its target, and correct it in the configuration.",
        )

    def discard(self, response: HttpResponse) -> None:
        """Closes a response that is not needed."""
        with self._lock:
            self._open.discard(response)
        response.close()

    def release(self, response: HttpResponse) -> None:
        """Releases a response that was read completely."""
        with self._lock:
            self._open.discard(response)
        response.release()

    def close(self) -> None:
        """Aborts all requests in progress. Can be called from another thread."""
        with self._lock:
            self._closed = True
            active, pools = list(self._open), list(self._pools.values())
        for response in active:
            response.abort()
        for pool in pools:
            pool.clear()

    def _request(self, url: str, headers: Mapping[str, str]) -> HttpResponse:
        from urllib3.exceptions import HTTPError

        proxy, stall = self._sources.proxy_for(url), self._sources.stall_seconds
        try:
            with time_limit(STALLS * stall):
                raw = self._pool(proxy).request(
                    "GET", url, headers=headers, preload_content=False, redirect=False, retries=False
                )
        except (HTTPError, OSError) as error:
            raise explain_failure(error, url, proxy, stall) from error
        response = HttpResponse(raw, url, proxy, stall)
        with self._lock:
            self._open.add(response)
            closed = self._closed
        if closed:
            response.abort()
        return response

    def _check_status(self, response: HttpResponse, location: DownloadUrl) -> HttpResponse:
        if response.status in {200, 206, 416}:
            return response
        status, after = response.status, response.headers.get("Retry-After", "")
        self.discard(response)
        if is_retryable(status):
            raise AttemptFailed(f"the server responded with status {status}", after=parse_retry_after(after))
        if status in {404, 410}:
            raise not_found_error(location, status)
        raise ArtifactError(
            "artifact-request-rejected",
            f"The request for {location} was rejected with status {status}.",
            "Check whether the mirror or the proxy requires a login: run `curl -v` with the URL on this machine.",
        )

    def _pool(self, proxy: str | None) -> PoolManager:
        with self._lock:
            if proxy not in self._pools:
                self._pools[proxy] = make_pool(self._sources, proxy)
            return self._pools[proxy]


MAX_CLOCK_SECONDS = 30 * 86400.0  # by which the clock of this machine may be wrong at most


def parse_clock_offset(headers: Mapping[str, str], now: float) -> float | None:
    """Returns what to add to the clock of this machine to get the time of the server (`Date`), or None if unknown."""
    date = parse_http_date(headers.get("Date", ""))
    return date - now if date is not None and abs(date - now) <= MAX_CLOCK_SECONDS else None


def parse_retry_after(text: str) -> float | None:
    """Parses a Retry-After header (a number or a date) to seconds from now."""
    if text.isascii() and text.isdigit():
        return float(text)
    date = parse_http_date(text)
    return None if date is None else max(0.0, date - time.time())


def parse_http_date(text: str) -> float | None:
    """Parses the date of a header to a Unix time. Returns None if it is not a date."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None


def is_retryable(status: int) -> bool:
    """Returns whether a status can be temporary."""
    return status in {408, 425, 429} or status >= 500


def redirect_target(url: str, status: int, headers: Mapping[str, str]) -> str | None:
    """Returns the absolute URL of a redirect, or None if the response is not a redirect."""
    target = headers.get("Location")
    return urljoin(url, target) if status in REDIRECT_STATUSES and target else None


def is_redirect_allowed(url: str, target: str) -> bool:
    """Returns whether a redirect is allowed: to https, or from http to http."""
    scheme = urlsplit(target).scheme
    return scheme == "https" or (scheme == "http" and urlsplit(url).scheme == "http")


def redirected_headers(headers: Mapping[str, str], url: str, target: str) -> dict[str, str]:
    """Returns the headers to send after a redirect: credentials are sent only to the same host and port.

    From http to https on the default ports, it is the same server.
    """
    before, after = urlsplit(url), urlsplit(target)
    if before.hostname == after.hostname and (before.port == after.port):
        return dict(headers)
    return {name: value for name, value in headers.items() if name.lower() != "authorization"}


def check_redirect(url: str, target: str, location: DownloadUrl) -> str:
    """Returns the target of a redirect, or raises ArtifactError if it is not allowed."""
    if is_redirect_allowed(url, target):
        return target
    raise ArtifactError(
        "redirect-refused",
        f"{location} redirects from https to {redact_url(target)}, which is not encrypted.",
        "Use a URL or a mirror whose redirects use https.",
    )


def not_found_error(location: DownloadUrl, status: int) -> ArtifactError:
    hint = "Check the version and the URL in the configuration: this version may not exist for this architecture."
    if location.url != location.publisher_url:
        hint = f"Copy the file to the mirror, or correct the version or `artifacts.baseURL`. {hint}"
    return ArtifactError("artifact-not-found", f"{location} was not found (status {status}).", hint)


def basic_auth_header(url: str) -> dict[str, str]:
    from urllib3 import make_headers

    login = url_credentials(url)
    return dict(make_headers(basic_auth=login)) if login else {}
