"""Connections of the agent, on urllib3: TLS trust, connection pools with proxies and timeouts, and the translation of
connection errors into messages for operators.

All connections of the agent are created here, so that TLS trust is defined in one module. urllib3 is imported on
first use.
"""

from __future__ import annotations

import socket
import ssl
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from aks_flex_node.agent.http.download_options import DownloadOptions, redact_url
from aks_flex_node.bounded_http.limits import RequestTimeout
from aks_flex_node.errors import ArtifactError
from aks_flex_node.lean_dataclass import frozen
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
    """Returns a context that verifies servers and their names with the system's CAs (`system`) and the passed CAs
    only.

    `partial_chain`: a passed intermediate CA is trusted without its root, as the kubelet does. Raises OSError or
    ValueError if the passed CAs cannot be read.
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


def shared_tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Trusts the system's CAs and a CA file, if set. Connections share the context until one of these files changes,
    because reading the CAs of a system costs as much CPU time as ten requests.
    """
    system = ssl.get_default_verify_paths().cafile
    if system is None:  # the CAs are in a directory, whose changes show in no file
        return tls_context(system=True, ca_file=ca_file)
    paths = (system, ca_file)
    states = [Path(path).stat() for path in paths if path]
    return _shared_tls_context(ca_file, tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in states))


@lru_cache(maxsize=2)
def _shared_tls_context(ca_file: str | None, _states: tuple[tuple[int, int, int], ...]) -> ssl.SSLContext:
    return tls_context(system=True, ca_file=ca_file)


def configured_tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Trusts the system's CAs and the configured CA file (`artifacts.caFile`), if set."""
    try:
        return shared_tls_context(ca_file)
    except OSError as error:
        raise ArtifactError(
            "ca-file-invalid",
            f"The CA file {ca_file} cannot be used: {error}.",
            "Set `artifacts.caFile` to a file of PEM certificates. Check it with `openssl x509 -in FILE -noout "
            "-subject`.",
        ) from error


def unverified_tls_context() -> ssl.SSLContext:
    """Returns a context that verifies nothing. Only for reading certificates, never for requests."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@frozen
class TlsFiles:
    """The only trusted CA, and an optional client certificate (with its key in the same file).

    Each new connection reads both files, so that a rotated certificate is used without a restart. An HTTPS proxy is
    verified with the same CA.
    """

    ca_file: str
    client_certificate: str = ""


def make_pool(
    options: DownloadOptions, proxy: str | None, trust: ssl.SSLContext | TlsFiles | None = None
) -> PoolManager:
    """Returns a connection pool that trusts `trust`, or the configured CAs by default. `time_limit` limits the total
    time of its requests.
    """
    from urllib3 import PoolManager, ProxyManager, Timeout, make_headers

    from aks_flex_node.bounded_http.connections import bound

    if trust is None:
        trust = configured_tls_context(options.ca_file)
    settings: dict[str, Any] = {
        "maxsize": options.parallel,
        "timeout": Timeout(connect=min(options.connect_seconds, options.stall_seconds), read=options.stall_seconds),
    }
    if isinstance(trust, ssl.SSLContext):
        settings["ssl_context"] = trust
    else:
        certificate = trust.client_certificate or None
        settings |= {"cert_reqs": "CERT_REQUIRED", "ca_certs": trust.ca_file, "cert_file": certificate}
    if proxy is None:
        return bound(PoolManager(**settings))
    # The login is sent as a header, so that exceptions never contain a URL with credentials.
    login = url_credentials(proxy)
    headers = make_headers(proxy_basic_auth=login) if login else None
    return bound(ProxyManager(redact_url(proxy), proxy_headers=headers, **settings))


def url_credentials(url: str) -> str:
    """Returns `user:password` of a URL, or an empty string. A user without a password has an empty one, as in RFC
    7617.
    """
    login, _, _ = urlsplit(url).netloc.rpartition("@")
    return unquote(login if ":" in login or not login else f"{login}:")


def explain_failure(error: HTTPError | OSError, url: str, proxy: str | None, stall: float) -> AttemptFailed:
    """Returns the innermost cause in the exception chain that has a message for operators."""
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
    """Returns the message for one exception, or None if it has no known meaning."""
    if "Tunnel connection failed" in str(error):
        return AttemptFailed(
            f"{who} rejected the tunnel connection ({error})", retryable="failed: 4" not in str(error)
        )
    name = who.rpartition(":")[0] or who
    text = "".join(each if each.isprintable() else "?" for each in str(error)[:MAX_TEXT])  # may be of the server
    for kinds, sentence, retryable in error_meanings():
        if isinstance(error, kinds):
            message = sentence.format(who=who, name=name, error=error, text=text, stall=stall)
            return AttemptFailed(message, retryable=retryable)
    if isinstance(error, OSError) and error.strerror:
        return AttemptFailed(f"{who} cannot be reached ({error.strerror})")
    return None


MAX_TEXT = 120
ExceptionTypes: TypeAlias = tuple[type[BaseException], ...]


def error_meanings() -> Iterator[tuple[ExceptionTypes, str, bool]]:
    """Yields exception types, the message for each, and whether a retry can succeed."""
    from http.client import HTTPException

    from urllib3 import exceptions as urllib3

    untrusted = "the TLS certificate of {who} is not trusted ({error.verify_message})"
    yield (ssl.SSLCertVerificationError,), untrusted, False
    yield (urllib3.NameResolutionError, socket.gaierror), "the DNS name {name} cannot be resolved", True
    late = "{who} did not complete its response within {error.seconds:g} s (timed out)"
    yield (RequestTimeout,), late, True
    yield (urllib3.ConnectTimeoutError,), "timed out while connecting to {who}", True
    yield (urllib3.ReadTimeoutError, TimeoutError), "{who} sent no data for {stall:g} s (timed out)", True
    yield (ConnectionRefusedError,), "{who} refused the connection", True
    cut = (urllib3.IncompleteRead, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)
    yield cut, "the connection to {who} was interrupted", True
    yield (ssl.SSLError,), "TLS with {who} failed ({error.reason})", True
    yield (HTTPException,), "{who} did not send a valid HTTP response ({text})", True


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception, its causes and the exceptions in its arguments, outermost first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = next((each for each in error.args if isinstance(each, BaseException)), None)
        context = None if error.__suppress_context__ else error.__context__
        error = getattr(error, "original_error", None) or error.__cause__ or inner or context


def find_certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """Returns the certificate verification error in the exception chain, if any."""
    return next((each for each in exception_chain(error) if isinstance(each, ssl.SSLCertVerificationError)), None)


def url_host(url: str) -> str:
    return redact_url(url).partition("://")[2].partition("/")[0]
