"""Connections of the agent, on urllib3: whom TLS trusts, pools of connections with their proxies and timeouts, and
the translation of connection errors into sentences that an operator understands.

Every connection of the agent is made here, so that this page says whom it trusts. urllib3 is imported on first use.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from aks_flex_node.agent.http.download_options import DownloadOptions, redact_url
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import AttemptFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3 import PoolManager
    from urllib3.exceptions import HTTPError


def tls_context(
    *,
    system: bool,
    ca_file: str | None = None,
    pem: bytes | None = None,
    der: bytes | None = None,
    partial_chain: bool = False,
) -> ssl.SSLContext:
    """Verify servers, their names included, by the system's CAs (`system`) and by those given; by nobody else.

    `partial_chain`: an intermediate CA that is given is trusted without its root, as a kubelet does.
    Raises OSError or ValueError when the CAs that are given cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if system:
        context.load_default_certs()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    if pem is not None:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    if der is not None:
        context.load_verify_locations(cadata=der)
    if partial_chain:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def configured_tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Trusts the system's CAs and the CA file of the configuration (`artifacts.caFile`), if it names one."""
    try:
        return tls_context(system=True, ca_file=ca_file)
    except OSError as error:
        raise ArtifactError(
            "ca-file-invalid",
            f"The CA file {ca_file} cannot be used: {error}.",
            "`artifacts.caFile` names a file of PEM certificates; see `openssl x509 -in FILE -noout -subject`.",
        ) from error


def unverified_tls_context() -> ssl.SSLContext:
    """Verifies nothing. Only to look at a server's certificates: a request must never be sent with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(frozen=True)
class TlsFiles:
    """The only CA that is trusted, and the client certificate that is shown (with its key, in one file), if any.

    Each new connection reads both files, so that a certificate that was rotated is used without a restart. An HTTPS
    proxy on the way is verified by the same CA.
    """

    ca_file: str
    client_certificate: str = ""


def make_pool(
    options: DownloadOptions, proxy: str | None, trust: ssl.SSLContext | TlsFiles | None = None
) -> PoolManager:
    """A pool of connections to servers that `trust` vouches for; by default as the configuration says."""
    from urllib3 import PoolManager, ProxyManager, Timeout, make_headers

    if trust is None:
        trust = configured_tls_context(options.ca_file)
    settings: dict[str, Any] = {
        "maxsize": options.parallel,
        "timeout": Timeout(connect=min(options.connect_seconds, options.stall_seconds), read=options.stall_seconds),
        **_trust_settings(trust),
    }
    if proxy is None:
        return PoolManager(**settings)
    # The login is sent as a header, so that no exception ever holds a URL with it.
    login = url_credentials(proxy)
    headers = make_headers(proxy_basic_auth=login) if login else None
    return ProxyManager(redact_url(proxy), proxy_headers=headers, **settings)


def _trust_settings(trust: ssl.SSLContext | TlsFiles) -> dict[str, Any]:
    if isinstance(trust, ssl.SSLContext):
        return {"ssl_context": trust}
    return {
        "cert_reqs": "CERT_REQUIRED",
        "ca_certs": trust.ca_file,
        "cert_file": trust.client_certificate or None,
    }


def url_credentials(url: str) -> str:
    """`user:password` of a URL, or nothing. A user alone has an empty password, as in RFC 7617."""
    login, _, _ = urlsplit(url).netloc.rpartition("@")
    return unquote(login if ":" in login or not login else f"{login}:")


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


def translate_error(error: BaseException, who: str, stall: float) -> AttemptFailed | None:
    """One exception's meaning, if it has one."""
    if "Tunnel connection failed" in str(error):
        return AttemptFailed(f"{who} refused to connect us ({error})", retryable="failed: 4" not in str(error))
    for kinds, sentence, retryable in error_meanings():
        if isinstance(error, kinds):
            return AttemptFailed(
                sentence.format(who=who, name=who.rpartition(":")[0] or who, error=error, stall=stall),
                retryable=retryable,
            )
    if isinstance(error, OSError) and error.strerror:
        return AttemptFailed(f"{who} cannot be reached ({error.strerror})")
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


def find_certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """Why the server's certificate was refused, if that is the cause of a failure."""
    return next((each for each in exception_chain(error) if isinstance(each, ssl.SSLCertVerificationError)), None)


def url_host(url: str) -> str:
    return redact_url(url).partition("://")[2].partition("/")[0]
