"""HTTP client of the agent, on urllib3: streamed responses, redirects, statuses, Retry-After. urllib3 is imported on
first use.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from aks_flex_node.agent.http.connections import explain_failure, make_pool, url_credentials
from aks_flex_node.agent.http.download_options import DownloadOptions, DownloadUrl, redact_url
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import AttemptFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3 import BaseHTTPResponse, PoolManager


MAX_REDIRECTS = 5
REDIRECT_STATUSES = {301, 302, 303, 307, 308}
RETRYABLE_STATUSES = {408, 425, 429}  # of the client errors, those that time heals


class HttpResponse:
    """An answer with a good status, whose body is still to come."""

    def __init__(self, raw: BaseHTTPResponse, url: str, proxy: str | None, stall: float) -> None:
        self._raw, self._url, self._proxy, self._stall = raw, url, proxy, stall
        self.status = raw.status
        self.headers: Mapping[str, str] = raw.headers

    def read(self, size: int) -> bytes:
        """Up to so many bytes; none at the end."""
        from urllib3.exceptions import HTTPError

        try:
            return self._raw.read(size, decode_content=False)
        except (HTTPError, OSError) as error:
            raise explain_failure(error, self._url, self._proxy, self._stall) from error

    def release(self) -> None:
        """The body was read to its end: the connection may serve another request."""
        self._raw.release_conn()

    def close(self) -> None:
        self._raw.close()

    def abort(self) -> None:
        """Wake up whoever reads this answer, from another thread."""
        connection = getattr(self._raw, "connection", None)
        link = getattr(connection, "sock", None)
        with suppress(OSError):
            if isinstance(link, socket.socket):
                socket.socket.shutdown(link, socket.SHUT_RDWR)  # an SSLSocket's own would disturb its reader


class HttpClient:
    """The ways out, one pool of connections for each."""

    def __init__(self, sources: DownloadOptions) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._pools: dict[str | None, PoolManager] = {}
        self._open: set[HttpResponse] = set()
        self._closed = False

    def get(self, location: DownloadUrl, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Ask for a place. Whatever may be better next time is `Interrupted`; the rest is an error."""
        url, sent = location.url, {**basic_auth_header(location.url), **(headers or {})}
        for _ in range(MAX_REDIRECTS + 1):
            response = self._ask(url, {"Accept-Encoding": "identity", **sent})
            target = redirect_target(url, response.status, response.headers)
            if target is None:
                return self._judge(response, location)
            self.discard(response)
            sent = redirected_headers(sent, url, target)
            url = check_redirect(url, target, location)
        raise ArtifactError(
            "redirect-refused",
            f"{location} redirects more than {MAX_REDIRECTS} times.",
            "Open the URL in a browser to see where it leads, and correct it in the configuration.",
        )

    def discard(self, response: HttpResponse) -> None:
        """The answer is no longer needed."""
        with self._lock:
            self._open.discard(response)
        response.close()

    def release(self, response: HttpResponse) -> None:
        """The answer was read to its end."""
        with self._lock:
            self._open.discard(response)
        response.release()

    def close(self) -> None:
        """End all that is under way, from another thread."""
        with self._lock:
            self._closed = True
            under_way, pools = list(self._open), list(self._pools.values())
        for response in under_way:
            response.abort()
        for pool in pools:
            pool.clear()

    def _ask(self, url: str, headers: Mapping[str, str]) -> HttpResponse:
        from urllib3.exceptions import HTTPError

        proxy, stall = self._sources.proxy_for(url), self._sources.stall_seconds
        try:
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

    def _judge(self, response: HttpResponse, location: DownloadUrl) -> HttpResponse:
        if response.status in {200, 206, 416}:
            return response
        status, after = response.status, response.headers.get("Retry-After", "")
        self.discard(response)
        if status in RETRYABLE_STATUSES or status >= 500:
            raise AttemptFailed(f"the server answered with status {status}", after=parse_retry_after(after))
        if status in {404, 410}:
            raise not_found_error(location, status)
        raise ArtifactError(
            "artifact-request-rejected",
            f"{location} was refused with status {status}.",
            "Does the mirror or the proxy ask for a login? Open the URL with `curl -v` from this machine.",
        )

    def _pool(self, proxy: str | None) -> PoolManager:
        with self._lock:
            if proxy not in self._pools:
                self._pools[proxy] = make_pool(self._sources, proxy)
            return self._pools[proxy]


def parse_retry_after(text: str) -> float | None:
    """Seconds until a Retry-After, which is a number or a date."""
    if text.isascii() and text.isdigit():
        return float(text)
    date = parse_http_date(text)
    return None if date is None else max(0.0, date - time.time())


def parse_http_date(text: str) -> float | None:
    """Seconds since 1970 of a date in a header; None when it is none."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None


def redirect_target(url: str, status: int, headers: Mapping[str, str]) -> str | None:
    """The full URL that a response redirects to; None when it does not redirect."""
    target = headers.get("Location")
    return urljoin(url, target) if status in REDIRECT_STATUSES and target else None


def is_redirect_allowed(url: str, target: str) -> bool:
    """Whether a redirect may be followed: never from TLS to what is not protected, and by HTTP alone."""
    scheme = urlsplit(target).scheme
    return scheme == "https" or (scheme == "http" and urlsplit(url).scheme == "http")


def redirected_headers(headers: Mapping[str, str], url: str, target: str) -> dict[str, str]:
    """The headers that are sent after a redirect: credentials stay with the host that they are for."""
    if urlsplit(url).hostname == urlsplit(target).hostname:
        return dict(headers)
    return {name: value for name, value in headers.items() if name.lower() != "authorization"}


def check_redirect(url: str, target: str, location: DownloadUrl) -> str:
    """Where a redirect leads, if it may."""
    if is_redirect_allowed(url, target):
        return target
    raise ArtifactError(
        "redirect-refused",
        f"{location} redirects from TLS to {redact_url(target)}, which is not protected.",
        "Use a URL or a mirror that stays with https.",
    )


def not_found_error(location: DownloadUrl, status: int) -> ArtifactError:
    hint = "Check the version and the URL in the configuration: this version may not exist for this architecture."
    if location.url != location.publisher_url:
        hint = f"Put the file on the mirror, or correct the version or `artifacts.baseURL`. {hint}"
    return ArtifactError("artifact-not-found", f"There is no {location} (status {status}).", hint)


def basic_auth_header(url: str) -> dict[str, str]:
    from urllib3 import make_headers

    login = url_credentials(url)
    return dict(make_headers(basic_auth=login)) if login else {}
