"""The network for real: names by the system's resolver, requests by urllib3, TLS always verified.

Slow to import, so whoever needs it imports it late; and in one thread.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from urllib3 import PoolManager, ProxyManager, Timeout, make_headers
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError

from aks_flex_node.agent.artifacts.causes import causes, explain, host_of
from aks_flex_node.agent.artifacts.connections import authorization, credentials
from aks_flex_node.agent.artifacts.sources import without_secrets
from aks_flex_node.agent.preflight.seams import Cause, Heard, Request, Unheard
from aks_flex_node.agent.preflight.threads import Call, Late

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3 import BaseHTTPResponse

    from aks_flex_node.agent.artifacts.sources import Sources

LOOKUP_SECONDS, CONNECT_SECONDS, READ_SECONDS = 5.0, 3.0, 4.0
MOST_REDIRECTS = 5
REDIRECTS = {301, 302, 303, 307, 308}
LARGEST = 1 << 18
NO_ANSWER = {socket.EAI_AGAIN, socket.EAI_FAIL}
Key = tuple[str | None, bytes | None]  # a proxy, and a CA


class LiveNetwork:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._pools: dict[Key, PoolManager] = {}
        self._lookups: dict[str, tuple[Call[tuple[str, ...]], float]] = {}

    def resolve(self, name: str) -> tuple[str, ...]:
        """A name is looked up once, and whoever asks for it meanwhile gets the same answer."""
        with self._lock:
            if name not in self._lookups:
                self._lookups[name] = (Call(lambda: look_up(name)), time.monotonic() + LOOKUP_SECONDS)
            call, end = self._lookups[name]
        try:
            return call.wait(end)
        except Late:
            raise unknown(name, f"no name server answers within {LOOKUP_SECONDS:g} s") from None

    def ask(self, request: Request) -> Heard:
        url = request.url
        sent = {**_headers(request), **({} if request.token else authorization(url))}
        for _ in range(MOST_REDIRECTS + 1):
            with closing(self._send(request, url, sent)) as raw:
                target = urljoin(url, raw.headers.get("Location", ""))
                # A server that we speak to with credentials has no business to send us elsewhere.
                if raw.status not in REDIRECTS or target == url or request.authority:
                    return _heard(raw, request)
            if urlsplit(target).hostname != urlsplit(url).hostname:
                sent = {name: value for name, value in sent.items() if name != "authorization"}
            url = _followed(url, target)
        raise Unheard(Cause.SILENCE, f"it redirects more than {MOST_REDIRECTS} times")

    def _send(self, request: Request, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        proxy = self._sources.proxy_for(url)
        self.resolve(urlsplit(proxy or url).hostname or "")  # says more about a failure than urllib3 does
        body = None if request.body is None else json.dumps(request.body).encode()
        method = "GET" if body is None else "POST"
        pool = self._pool(proxy, request.authority)
        try:
            return pool.request(
                method, url, body=body, headers=headers, preload_content=False, redirect=False, retries=False
            )
        except (HTTPError, OSError) as failed:
            raise unheard(failed, url, proxy) from failed

    def _pool(self, proxy: str | None, authority: bytes | None) -> PoolManager:
        with self._lock:
            key = (proxy, authority)
            if key not in self._pools:
                self._pools[key] = make_pool(proxy, trust(authority, self._sources.ca_file))
            return self._pools[key]


def look_up(name: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as failed:
        silent = isinstance(failed, socket.gaierror) and failed.errno in NO_ANSWER
        raise unknown(name, "no name server answers" if silent else "there is no such name") from failed
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


def unknown(name: str, why: str) -> Unheard:
    return Unheard(Cause.NAME, f"the name {name} cannot be looked up: {why}")


def make_pool(proxy: str | None, context: ssl.SSLContext) -> PoolManager:
    timeout = Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
    if proxy is None:
        return PoolManager(timeout=timeout, ssl_context=context, maxsize=8)
    login = credentials(proxy)
    headers = make_headers(proxy_basic_auth=login) if login else None
    return ProxyManager(
        without_secrets(proxy), proxy_headers=headers, timeout=timeout, ssl_context=context, maxsize=8
    )


def trust(authority: bytes | None, ca_file: str | None) -> ssl.SSLContext:
    """Trust this CA alone; without one, those of the machine and of the configuration."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if authority is not None:
            context.load_verify_locations(cadata=authority.decode())
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate CA will do, as for a kubelet
            return context
        context.load_default_certs()
        if ca_file:
            context.load_verify_locations(ca_file)
    except (OSError, ValueError) as failed:
        what = "node.kubelet.caCertData" if authority is not None else f"the CA file {ca_file}"
        raise Unheard(Cause.UNTRUSTED, f"{what} cannot be read: {failed}") from failed
    return context


def unheard(failed: Exception, url: str, proxy: str | None) -> Unheard:
    """Why a request failed, in plain words."""
    chain = list(causes(failed))
    for each in chain:
        if isinstance(each, ssl.SSLCertVerificationError):
            return Unheard(Cause.UNTRUSTED, each.verify_message or "it cannot be verified")
        # A new connection that fails in another way is, to urllib3, a kind of time that ran out.
        if isinstance(each, ConnectTimeoutError) and not isinstance(each, NewConnectionError):
            who = f"the proxy {host_of(proxy)}" if proxy else host_of(url)
            return Unheard(Cause.SILENCE, f"{who} does not answer: no connection within {CONNECT_SECONDS:g} s")
    known = failed if isinstance(failed, HTTPError | OSError) else OSError(str(failed))
    words = explain(known, url, proxy, READ_SECONDS).cause
    by_name = any(isinstance(each, NameResolutionError | socket.gaierror) for each in chain)
    return Unheard(Cause.NAME if by_name else Cause.SILENCE, words)


def _headers(request: Request) -> dict[str, str]:
    headers = {"user-agent": "aks-flex-node", "accept-encoding": "identity"}
    if request.first_byte:
        return {**headers, "range": "bytes=0-0"}
    headers["accept"] = "application/json"
    if request.body is not None:
        headers["content-type"] = "application/json"
    if request.token is not None:
        headers["authorization"] = f"Bearer {request.token.reveal()}"
    return headers


def _followed(url: str, target: str) -> str:
    if urlsplit(target).scheme != "https" and urlsplit(url).scheme == "https":
        raise Unheard(Cause.SILENCE, "it redirects from TLS to what is not protected")
    return target


def _heard(raw: BaseHTTPResponse, request: Request) -> Heard:
    try:
        body = b"" if request.first_byte else raw.read(LARGEST)
    except (HTTPError, OSError) as failed:
        raise unheard(failed, request.url, None) from failed
    return Heard(raw.status, read_date(raw.headers.get("Date", "")), read_document(body))


def read_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None


def read_document(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
