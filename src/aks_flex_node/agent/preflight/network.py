"""The network probe of this machine: the system's resolver, and urllib3 with verified TLS.

Slow to import, so import it late and from one thread.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError

from aks_flex_node.agent.http.client import (
    MAX_REDIRECTS,
    basic_auth_header,
    is_redirect_allowed,
    is_retryable,
    parse_http_date,
    redirect_target,
    redirected_headers,
)
from aks_flex_node.agent.http.connections import (
    exception_chain,
    explain_failure,
    make_pool,
    shared_tls_context,
    tls_context,
    url_host,
)
from aks_flex_node.agent.preflight.interfaces import (
    BackgroundCall,
    CallTimeout,
    ProbeFailed,
    ProbeFailure,
    ProbeRequest,
    ProbeResponse,
)
from aks_flex_node.api.arm_errors import parse_object
from aks_flex_node.bounded_http.limits import RequestTimeout, time_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3 import BaseHTTPResponse, PoolManager

    from aks_flex_node.agent.http.download_options import DownloadOptions

LOOKUP_SECONDS, CONNECT_SECONDS, READ_SECONDS = 5.0, 3.0, 8.0
PARALLEL = 8
MAX_BODY_BYTES = 1 << 18
PARTIAL_CONTENT = 206
NO_ANSWER = {socket.EAI_AGAIN, socket.EAI_FAIL}
RETRY_IF_FASTER_SECONDS = 1.0  # a slow failure would take as long again
PAUSE_SECONDS = 0.2
PoolKey = tuple[str | None, bytes | None, str | None]  # a proxy, a CA, and a CA file


class NetworkProbe:
    def __init__(self, sources: DownloadOptions) -> None:
        self._sources = replace(
            sources, parallel=PARALLEL, connect_seconds=CONNECT_SECONDS, stall_seconds=READ_SECONDS
        )
        self._lock = threading.Lock()
        self._pools: dict[PoolKey, PoolManager] = {}
        self._lookups: dict[str, tuple[BackgroundCall[tuple[str, ...]], float]] = {}

    def resolve(self, name: str) -> tuple[str, ...]:
        """Returns the addresses of a name. Concurrent callers share the result. Raises ProbeFailed if it has none."""
        with self._lock:
            if name not in self._lookups:
                self._lookups[name] = (BackgroundCall(lambda: resolve_name(name)), time.monotonic() + LOOKUP_SECONDS)
            call, end = self._lookups[name]
        try:
            return call.wait(end)
        except CallTimeout:
            raise name_unknown(name, f"no DNS server responded within {LOOKUP_SECONDS:g} s") from None

    def ask_with_retry(self, request: ProbeRequest) -> ProbeResponse:
        """Sends a request. Retries once after a quick failure that can be temporary."""
        start = time.monotonic()
        try:
            response = self.ask(request)
            if not is_retryable(response.status):
                return response
        except ProbeFailed as failure:
            if failure.cause is not ProbeFailure.SILENCE or time.monotonic() - start > RETRY_IF_FASTER_SECONDS:
                raise
        time.sleep(PAUSE_SECONDS)
        return self.ask(request)

    def ask(self, request: ProbeRequest) -> ProbeResponse:
        """Returns the response, with any status. Raises ProbeFailed if there is none."""
        url = request.url
        headers = {**_headers(request), **({} if request.token else basic_auth_header(url))}
        for _ in range(MAX_REDIRECTS + 1):
            found = self._ask_once(request, url, headers)
            if isinstance(found, ProbeResponse):
                return found
            target = found
            headers = redirected_headers(headers, url, target)
            if not is_redirect_allowed(url, target):
                raise ProbeFailed(ProbeFailure.SILENCE, "it redirects from https to an unencrypted URL")
            url = target
        raise ProbeFailed(ProbeFailure.SILENCE, f"it redirects more than {MAX_REDIRECTS} times")

    def _ask_once(self, request: ProbeRequest, url: str, headers: Mapping[str, str]) -> ProbeResponse | str:
        """Returns the response, or the URL to which it redirects."""
        try:
            with time_limit(LOOKUP_SECONDS + 2 * READ_SECONDS), closing(self._send(request, url, headers)) as raw:
                target = redirect_target(url, raw.status, raw.headers)
                # Requests with credentials do not follow redirects.
                is_final = target is None or target == url or request.authority
                return _read_response(raw, request) if is_final or target is None else target
        except RequestTimeout as failed:
            raise explain_probe_failure(failed, url, self._sources.proxy_for(url)) from failed

    def _send(self, request: ProbeRequest, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        proxy = self._sources.proxy_for(url)
        self.resolve(urlsplit(proxy or url).hostname or "")  # gives a clearer error than urllib3
        body = None if request.body is None else json.dumps(request.body).encode()
        method = "GET" if body is None else "POST"
        pool = self._pool(proxy, request.authority, None if request.system_cas else self._sources.ca_file)
        try:
            return pool.request(
                method, url, body=body, headers=headers, preload_content=False, redirect=False, retries=False
            )
        except (HTTPError, OSError) as failed:
            raise explain_probe_failure(failed, url, proxy) from failed

    def _pool(self, proxy: str | None, authority: bytes | None, ca_file: str | None) -> PoolManager:
        with self._lock:
            key = (proxy, authority, ca_file)
            if key not in self._pools:
                self._pools[key] = make_pool(self._sources, proxy, probe_tls_context(authority, ca_file))
            return self._pools[key]


def resolve_name(name: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as failed:
        no_answer = isinstance(failed, socket.gaierror) and failed.errno in NO_ANSWER
        raise name_unknown(name, "no DNS server responded" if no_answer else "the name does not exist") from failed
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


def name_unknown(name: str, cause: str) -> ProbeFailed:
    return ProbeFailed(ProbeFailure.NAME, f"the DNS name {name} cannot be resolved: {cause}")


def probe_tls_context(authority: bytes | None, ca_file: str | None) -> ssl.SSLContext:
    """Trusts only this CA. Without one, trusts the CAs of the machine and of the configuration."""
    try:
        if authority is not None:
            return tls_context(system=False, pem=authority, partial_chain=True)
        return shared_tls_context(ca_file or None)
    except (OSError, ValueError) as failed:
        source = "node.kubelet.caCertData" if authority is not None else f"the CA file {ca_file}"
        raise ProbeFailed(ProbeFailure.UNTRUSTED, f"{source} cannot be read: {failed}") from failed


def explain_probe_failure(failed: Exception, url: str, proxy: str | None) -> ProbeFailed:
    """Classifies the failure of a request."""
    chain = list(exception_chain(failed))
    for each in chain:
        if isinstance(each, ssl.SSLCertVerificationError):
            return ProbeFailed(ProbeFailure.UNTRUSTED, each.verify_message or "it cannot be verified")
        # In urllib3, NewConnectionError is a subclass of ConnectTimeoutError.
        if isinstance(each, ConnectTimeoutError) and not isinstance(each, NewConnectionError):
            who = f"the proxy {url_host(proxy)}" if proxy else url_host(url)
            return ProbeFailed(
                ProbeFailure.SILENCE, f"{who} does not respond: no connection within {CONNECT_SECONDS:g} s"
            )
    known = failed if isinstance(failed, HTTPError | OSError) else OSError(str(failed))
    reason = explain_failure(known, url, proxy, READ_SECONDS).cause
    by_name = any(isinstance(each, NameResolutionError | socket.gaierror) for each in chain)
    return ProbeFailed(ProbeFailure.NAME if by_name else ProbeFailure.SILENCE, reason)


def _headers(request: ProbeRequest) -> dict[str, str]:
    headers = {"user-agent": "aks-flex-node", "accept-encoding": "identity"}
    if request.first_byte:
        return {**headers, "range": "bytes=0-0"}
    headers["accept"] = "application/json"
    if request.body is not None:
        headers["content-type"] = "application/json"
    if request.token is not None:
        headers["authorization"] = f"Bearer {request.token.reveal()}"
    return headers


def _read_response(raw: BaseHTTPResponse, request: ProbeRequest) -> ProbeResponse:
    try:
        # Any other status can have the whole file. A connection whose body is read is used again.
        is_read = not request.first_byte or raw.status == PARTIAL_CONTENT
        body = raw.read(MAX_BODY_BYTES, decode_content=False) if is_read else b""
    except (HTTPError, OSError) as failed:
        raise explain_probe_failure(failed, request.url, None) from failed
    return ProbeResponse(raw.status, parse_http_date(raw.headers.get("Date", "")), parse_object(body))
