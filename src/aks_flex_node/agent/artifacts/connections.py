"""HTTP: TLS that is always verified, proxies, redirects, and answers read piece by piece."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from aks_flex_node.agent.artifacts.causes import explain
from aks_flex_node.agent.artifacts.persistence import Interrupted
from aks_flex_node.agent.artifacts.sources import Place, Sources, without_secrets
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3 import BaseHTTPResponse, PoolManager

MOST_REDIRECTS = 5
REDIRECTS = {301, 302, 303, 307, 308}
PASSING = {408, 425, 429}  # of the client errors, those that time heals
CONNECT_SECONDS = 15.0


class Response:
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
            raise explain(error, self._url, self._proxy, self._stall) from error

    def finish(self) -> None:
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


class Network:
    """The ways out, one pool of connections for each."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._pools: dict[str | None, PoolManager] = {}
        self._open: set[Response] = set()
        self._closed = False

    def get(self, place: Place, headers: Mapping[str, str] | None = None) -> Response:
        """Ask for a place. Whatever may be better next time is `Interrupted`; the rest is an error."""
        url, sent = place.asked, {**authorization(place.asked), **(headers or {})}
        for _ in range(MOST_REDIRECTS + 1):
            response = self._ask(url, {"Accept-Encoding": "identity", **sent})
            if response.status not in REDIRECTS or not response.headers.get("Location"):
                return self._judge(response, place)
            target = urljoin(url, response.headers["Location"])
            self.done(response)
            url, sent = follow(url, target, place), sent if same_host(url, target) else without_login(sent)
        raise ArtifactError(
            "redirect-refused",
            f"{place} redirects more than {MOST_REDIRECTS} times.",
            "Open the URL in a browser to see where it leads, and correct it in the configuration.",
        )

    def done(self, response: Response) -> None:
        """The answer is no longer needed."""
        with self._lock:
            self._open.discard(response)
        response.close()

    def finished(self, response: Response) -> None:
        """The answer was read to its end."""
        with self._lock:
            self._open.discard(response)
        response.finish()

    def close(self) -> None:
        """End all that is under way, from another thread."""
        with self._lock:
            self._closed = True
            under_way, pools = list(self._open), list(self._pools.values())
        for response in under_way:
            response.abort()
        for pool in pools:
            pool.clear()

    def _ask(self, url: str, headers: Mapping[str, str]) -> Response:
        from urllib3.exceptions import HTTPError

        proxy, stall = self._sources.proxy_for(url), self._sources.stall_seconds
        try:
            raw = self._pool(proxy).request(
                "GET", url, headers=headers, preload_content=False, redirect=False, retries=False
            )
        except (HTTPError, OSError) as error:
            raise explain(error, url, proxy, stall) from error
        response = Response(raw, url, proxy, stall)
        with self._lock:
            self._open.add(response)
            closed = self._closed
        if closed:
            response.abort()
        return response

    def _judge(self, response: Response, place: Place) -> Response:
        if response.status in {200, 206, 416}:
            return response
        status, after = response.status, response.headers.get("Retry-After", "")
        self.done(response)
        if status in PASSING or status >= 500:
            raise Interrupted(f"the server answered with status {status}", after=read_delay(after))
        if status in {404, 410}:
            raise missing(place, status)
        raise ArtifactError(
            "artifact-refused",
            f"{place} was refused with status {status}.",
            "Does the mirror or the proxy ask for a login? Open the URL with `curl -v` from this machine.",
        )

    def _pool(self, proxy: str | None) -> PoolManager:
        with self._lock:
            if proxy not in self._pools:
                self._pools[proxy] = make_pool(self._sources, proxy)
            return self._pools[proxy]


def read_delay(text: str) -> float | None:
    """Seconds until a Retry-After, which is a number or a date."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def make_pool(sources: Sources, proxy: str | None, context: ssl.SSLContext | None = None) -> PoolManager:
    """`context`: whom to trust, when it is another than the configuration says."""
    from urllib3 import PoolManager, ProxyManager, Timeout, make_headers

    stall, context = sources.stall_seconds, context or tls_context(sources.ca_file)
    timeout = Timeout(connect=min(CONNECT_SECONDS, stall), read=stall)
    if proxy is None:
        return PoolManager(maxsize=sources.parallel, timeout=timeout, ssl_context=context)
    # The login is sent as a header, so that no exception ever holds a URL with it.
    login = credentials(proxy)
    headers = make_headers(proxy_basic_auth=login) if login else None
    return ProxyManager(
        without_secrets(proxy), proxy_headers=headers, maxsize=sources.parallel, timeout=timeout, ssl_context=context
    )


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Trusts the system's authorities and the one of the configuration."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    if ca_file is None:
        return context
    try:
        context.load_verify_locations(ca_file)
    except OSError as error:
        raise ArtifactError(
            "ca-file-unusable",
            f"The CA file {ca_file} cannot be used: {error}.",
            "`artifacts.caFile` names a file of PEM certificates; see `openssl x509 -in FILE -noout -subject`.",
        ) from error
    return context


def follow(url: str, target: str, place: Place) -> str:
    """Where a redirect leads, if it may."""
    scheme = urlsplit(target).scheme
    if scheme == "https" or (scheme == "http" and urlsplit(url).scheme == "http"):
        return target
    raise ArtifactError(
        "redirect-refused",
        f"{place} redirects from TLS to {without_secrets(target)}, which is not protected.",
        "Use a URL or a mirror that stays with https.",
    )


def missing(place: Place, status: int) -> ArtifactError:
    hint = "Check the version and the URL in the configuration: this version may not exist for this architecture."
    if place.asked != place.published:
        hint = f"Put the file on the mirror, or correct the version or `artifacts.baseURL`. {hint}"
    return ArtifactError("artifact-missing", f"There is no {place} (status {status}).", hint)


def credentials(url: str) -> str:
    """`user:password` of a URL, or nothing."""
    login, at, _ = urlsplit(url).netloc.rpartition("@")
    return unquote(login) if at else ""


def authorization(url: str) -> dict[str, str]:
    from urllib3 import make_headers

    login = credentials(url)
    return dict(make_headers(basic_auth=login)) if login else {}


def without_login(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() != "authorization"}


def same_host(url: str, target: str) -> bool:
    return urlsplit(url).hostname == urlsplit(target).hostname
