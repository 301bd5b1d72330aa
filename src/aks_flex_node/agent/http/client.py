"""HTTP client of the agent, on urllib3: verified TLS, proxies, redirects, streamed responses, Retry-After; and the
translation of connection errors into sentences that an operator understands. urllib3 is imported on first use.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urljoin, urlsplit

from aks_flex_node.agent.http.download_options import DownloadOptions, DownloadUrl, redact_url
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import AttemptFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from urllib3 import BaseHTTPResponse, PoolManager
    from urllib3.exceptions import HTTPError


def explain_failure(error: HTTPError | OSError, url: str, proxy: str | None, stall: float) -> AttemptFailed:
    """The first cause, down the chain of exceptions, that says something to a person."""
    from urllib3.exceptions import ProxyError

    chain = list(exception_chain(error))
    through_proxy = proxy is not None and any(isinstance(each, ProxyError) for each in chain)
    who = f"the proxy {url_host(proxy)}" if proxy is not None and through_proxy else url_host(url)
    for each in reversed(chain):
        found = translate_error(each, who, stall)
        if found:
            return found
    return AttemptFailed(f"the connection to {who} failed ({type(chain[-1]).__name__})")


def translate_error(error: BaseException, caller: str, stall: float) -> AttemptFailed | None:
    """One exception's meaning, if it has one."""
    if "Tunnel connection failed" in str(error):
        return AttemptFailed(f"{caller} refused to connect us ({error})", again="failed: 4" not in str(error))
    for kinds, sentence, again in error_meanings():
        if isinstance(error, kinds):
            return AttemptFailed(
                sentence.format(who=caller, name=caller.rpartition(":")[0] or caller, error=error, stall=stall),
                again=again,
            )
    if isinstance(error, OSError) and error.strerror:
        return AttemptFailed(f"{caller} cannot be reached ({error.strerror})")
    return None


ExceptionTypes: TypeAlias = tuple[type[BaseException], ...]


def error_meanings() -> Iterator[tuple[ExceptionTypes, str, bool]]:
    """Kinds of exceptions, what each says in plain words, and whether trying again may help."""
    from urllib3 import exceptions as urllib3

    untrusted = "the TLS certificate of {who} is not trusted ({error.verify_message})"
    yield (ssl.SSLCertVerificationError,), untrusted, False
    yield (urllib3.NameResolutionError, socket.gaierror), "the name {name} cannot be looked up (DNS)", True
    yield (urllib3.ConnectTimeoutError,), "{who} did not answer in time (timed out while connecting)", True
    yield (urllib3.ReadTimeoutError, TimeoutError), "{who} went silent for {stall:g} s (timed out)", True
    yield (ConnectionRefusedError,), "{who} refused the connection", True
    cut = (urllib3.IncompleteRead, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)
    yield cut, "the connection to {who} was cut", True
    yield (ssl.SSLError,), "TLS with {who} failed ({error.reason})", True


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, what it was raised from or during, and the exceptions it holds, outermost first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        held = next((each for each in error.args if isinstance(each, BaseException)), None)
        error = getattr(error, "original_error", None) or error.__cause__ or held or error.__context__


def url_host(url: str) -> str:
    return redact_url(url).partition("://")[2].partition("/")[0]


MAX_REDIRECTS = 5
REDIRECT_STATUSES = {301, 302, 303, 307, 308}
RETRYABLE_STATUSES = {408, 425, 429}  # of the client errors, those that time heals
CONNECT_SECONDS = 15.0


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
            if response.status not in REDIRECT_STATUSES or not response.headers.get("Location"):
                return self._judge(response, location)
            target = urljoin(url, response.headers["Location"])
            self.discard(response)
            url, sent = (
                check_redirect(url, target, location),
                sent if same_host(url, target) else without_authorization(sent),
            )
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
            "artifact-refused",
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
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def make_pool(sources: DownloadOptions, proxy: str | None, context: ssl.SSLContext | None = None) -> PoolManager:
    """`context`: whom to trust, when it is another than the configuration says."""
    from urllib3 import PoolManager, ProxyManager, Timeout, make_headers

    stall, context = sources.stall_seconds, context or tls_context(sources.ca_file)
    timeout = Timeout(connect=min(CONNECT_SECONDS, stall), read=stall)
    if proxy is None:
        return PoolManager(maxsize=sources.parallel, timeout=timeout, ssl_context=context)
    # The login is sent as a header, so that no exception ever holds a URL with it.
    login = url_credentials(proxy)
    headers = make_headers(proxy_basic_auth=login) if login else None
    return ProxyManager(
        redact_url(proxy), proxy_headers=headers, maxsize=sources.parallel, timeout=timeout, ssl_context=context
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


def check_redirect(url: str, target: str, location: DownloadUrl) -> str:
    """Where a redirect leads, if it may."""
    scheme = urlsplit(target).scheme
    if scheme == "https" or (scheme == "http" and urlsplit(url).scheme == "http"):
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
    return ArtifactError("artifact-missing", f"There is no {location} (status {status}).", hint)


def url_credentials(url: str) -> str:
    """`user:password` of a URL, or nothing."""
    login, at, _ = urlsplit(url).netloc.rpartition("@")
    return unquote(login) if at else ""


def basic_auth_header(url: str) -> dict[str, str]:
    from urllib3 import make_headers

    login = url_credentials(url)
    return dict(make_headers(basic_auth=login)) if login else {}


def without_authorization(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() != "authorization"}


def same_host(url: str, target: str) -> bool:
    return urlsplit(url).hostname == urlsplit(target).hostname
