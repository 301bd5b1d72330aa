"""Asynchronous client of the Kubernetes API. Objects are plain dicts.

A Kubernetes library would add thousands of types. This client needs five, and must detect when a watch may have
missed events.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import httpx2

from aks_flex_node.errors import ClusterError, ConfigError
from aks_flex_rp.time_limit import end_task, within

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping

    from aks_flex_rp.clusters.connections import DirectConnection


REQUEST_SECONDS = 30.0  # for a whole request, and for the headers of a watch
MAX_ANSWER_BYTES = 64 << 20  # of one page of a list
MAX_LINE_BYTES = 4 << 20  # of one event of a watch
WATCH_SECONDS = 300  # after which the API server ends a watch
WATCH_TIMEOUT = httpx2.Timeout(15.0, connect=5.0, read=WATCH_SECONDS + 30.0)

T = TypeVar("T")
KubeObject = dict[str, Any]
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
MANAGER = "aks-flex-rp"  # field manager
PAGE = 500


REQUEST_TIMEOUT = httpx2.Timeout(15.0, connect=5.0)
# Detects within a minute that the peer is gone, also on an idle watch.
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


def open_session(connection: DirectConnection) -> httpx2.AsyncClient:
    transport = httpx2.AsyncHTTPTransport(
        verify=client_ssl_context(connection),
        trust_env=False,
        proxy=connection.proxy or None,
        socket_options=KEEPALIVE,
    )
    # A small compressed response could become a very large one.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "aks-flex-rp"}
    if connection.token:
        headers["Authorization"] = f"Bearer {connection.token}"
    return httpx2.AsyncClient(
        transport=transport, base_url=connection.server, headers=headers, timeout=REQUEST_TIMEOUT, trust_env=False
    )


def client_ssl_context(connection: DirectConnection) -> ssl.SSLContext:
    """Creates a TLS context that trusts only the cluster's CA, with the client certificate if there is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=connection.authority)
        if connection.certificate:
            with _in_memory(connection.certificate + "\n" + connection.key) as path:
                context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise ConfigError(
            "cluster-credentials-invalid",
            f"The certificates for {connection.server} are invalid: {error.reason or 'not PEM certificates'}.",
            "Check that the CA, client certificate and key of the kubeconfig are complete and belong together.",
        ) from None
    return context


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Yields the path of an in-memory file, for a library that only accepts files. Nothing is written to disk."""
    file = os.memfd_create("credentials", os.MFD_CLOEXEC)
    try:
        os.write(file, text.encode())
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


class ApiRefused(Exception):  # noqa: N818 - a response, and often an expected one
    """Raised when the API server responds with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class ConnectionSource(Protocol):
    """Source of the connection to a cluster. Some sources can return new credentials when asked again."""

    renewable: bool

    async def connection(self) -> DirectConnection: ...

    async def managed_cluster(self) -> KubeObject | None:
        """Returns the ARM resource of the cluster, or None if the cluster is not managed by Azure."""
        ...


class FixedConnection:
    """A connection that never changes."""

    renewable = False

    def __init__(self, connection: DirectConnection) -> None:
        self._connection = connection

    async def connection(self) -> DirectConnection:
        return self._connection

    async def managed_cluster(self) -> KubeObject | None:
        return None


class KubeClient:
    def __init__(
        self, source: ConnectionSource, opener: Callable[[DirectConnection], httpx2.AsyncClient] = open_session
    ) -> None:
        self._source = source
        self._opener = opener
        self._opening = asyncio.Lock()
        self._session: httpx2.AsyncClient | None = None
        self._closed = False
        self._direct: DirectConnection | None = None

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        async with self._opening:
            session, self._session = self._session, None
            if session:
                await session.aclose()

    async def direct(self) -> DirectConnection:
        """Returns the current connection to the API server."""
        await self._current()
        if self._direct is None:
            raise AssertionError("The session has no connection.")
        return self._direct

    async def managed_cluster(self) -> KubeObject | None:
        return await self._source.managed_cluster()

    async def get(self, path: str, **parameters: str) -> KubeObject:
        return await self.request("GET", path, parameters=parameters)

    async def find(self, path: str) -> KubeObject | None:
        """Returns the object, or None if it does not exist."""
        try:
            return await self.get(path)
        except ApiRefused as refusal:
            if refusal.status == 404:
                return None
            raise

    async def list(self, path: str, **parameters: str) -> tuple[list[KubeObject], str]:
        """Returns all objects, and the resource version from which a watch continues."""
        items: list[KubeObject] = []
        more = {**parameters, "limit": str(PAGE)}
        while True:
            page = await self.get(path, **more)
            items += page.get("items") or []
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return items, str(metadata["resourceVersion"])
            more["continue"] = metadata["continue"]

    async def create(self, path: str, body: KubeObject) -> KubeObject:
        return await self.request("POST", path, body, parameters={"fieldManager": MANAGER})

    async def replace(self, path: str, body: KubeObject) -> KubeObject:
        """Replaces the object. Raises ApiRefused with 409 if it changed since it was read."""
        return await self.request("PUT", path, body, parameters={"fieldManager": MANAGER})

    async def merge(self, path: str, body: KubeObject) -> KubeObject:
        return await self.request("PATCH", path, body, MERGE, {"fieldManager": MANAGER})

    async def apply(self, path: str, body: KubeObject, *, dry: bool = False) -> KubeObject:
        """Applies the object by server-side apply. Returns the result, or with `dry` what it would be."""
        parameters = {"fieldManager": MANAGER, "force": "true"} | ({"dryRun": "All"} if dry else {})
        return await self.request("PATCH", path, body, APPLY, parameters)

    async def delete(self, path: str, preconditions: Mapping[str, str] | None = None) -> bool:
        """Deletes the object.

        Returns False if it is gone, or does not match the preconditions (uid, resourceVersion).
        """
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": dict(preconditions or {})}
        try:
            await self.request("DELETE", path, body)
        except ApiRefused as refusal:
            if refusal.status in {404, 409}:
                return False
            raise
        return True

    async def request(
        self,
        method: str,
        path: str,
        body: KubeObject | None = None,
        content_type: str = "application/json",
        parameters: Mapping[str, str] | None = None,
    ) -> KubeObject:
        """Sends a request. Raises ApiRefused on an error status, ClusterError if the server is unreachable."""
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type} if content else {}
        began = time.monotonic()
        answer = await self._sent(method, path, params=parameters, content=content, headers=headers)
        async with _finished(answer):
            left = REQUEST_SECONDS - (time.monotonic() - began)
            data = await _in_time(_read(answer, MAX_ANSWER_BYTES), left)
            return _document(answer, data)

    async def text(self, path: str, **parameters: str) -> str:
        """Returns a text, such as the log of a pod."""
        answer = await self._sent("GET", path, params=parameters, headers={"Accept": "*/*"})
        async with _finished(answer):
            data = await _in_time(_read(answer, MAX_LINE_BYTES), REQUEST_SECONDS)
            if answer.status_code != 200:
                _document(answer, data)
            return data.decode(errors="replace")

    async def watch(self, path: str, version: str, **parameters: str) -> AsyncGenerator[tuple[str, KubeObject], None]:
        """Yields the changes after `version` as (ADDED | MODIFIED | DELETED | BOOKMARK, object), until the server
        ends it.
        """
        query = {
            **parameters,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        answer = await self._sent("GET", path, params=query, timeout=WATCH_TIMEOUT)
        async with _finished(answer):
            if answer.status_code != 200:
                _document(answer, await _in_time(_read(answer, MAX_LINE_BYTES), REQUEST_SECONDS))
                raise OSError(f"its response has status {answer.status_code}")
            async for line in _lines(answer, WATCH_TIMEOUT.read or 0.0):
                event: Any = None
                with suppress(ValueError, RecursionError):
                    event = json.loads(line)
                if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
                    raise ForeignResponseError("an event of the watch is not from Kubernetes")
                kind, item = str(event.get("type")), event["object"]
                if kind == "ERROR":
                    raise _refused(item.get("code", 500), item)
                yield kind, item

    async def _sent(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Sends a request and returns the response headers.

        Retries once with new credentials if they are rejected.
        """
        for last in (not self._source.renewable, True):
            session = await self._current()
            request = session.build_request(method, path, extensions=_names(await self.direct()), **options)
            try:
                answer = await _in_time(_finish_handshake(session.send(request, stream=True)), REQUEST_SECONDS)
            except (httpx2.HTTPError, OSError) as error:
                problem = connection_error(str(session.base_url), error)
                if problem.name != "cluster-untrusted" or last:
                    raise problem from error
            else:
                if answer.status_code != 401 or last:
                    return answer
                await answer.aclose()
            # Unless another task has replaced it. Its watches end and restart on the new session.
            async with self._opening:
                if self._session is session:
                    self._session = None
                    await session.aclose()
        raise AssertionError("The last attempt returns or raises.")

    async def _current(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._closed:
                raise ClusterError(
                    "cluster-connection-closed",
                    "The connection to this cluster was closed: the service is stopping, or the cluster was removed.",
                    "Try again later.",
                    retryable=True,
                )
            if self._session is None:
                self._direct = await self._source.connection()
                self._session = self._opener(self._direct)
            return self._session


async def _finish_handshake(sending: Coroutine[Any, Any, httpx2.Response]) -> httpx2.Response:
    """Lets a TLS handshake finish even if the caller is cancelled: httpx2 would otherwise leak the socket."""
    task = asyncio.create_task(sending)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=1)
        await end_task(task, _close_response)
        raise


@asynccontextmanager
async def _finished(answer: httpx2.Response) -> AsyncIterator[None]:
    """Reads a response inside the block, then frees the connection. Translates connection errors."""
    try:
        yield
    except (httpx2.HTTPError, OSError) as error:
        raise connection_error(str(answer.request.url.copy_with(path="/", query=None)), error) from error
    finally:
        await answer.aclose()


def _names(connection: DirectConnection) -> dict[str, str]:
    """Returns the TLS server name, if it differs from the host in the URL."""
    return {"sni_hostname": connection.server_name} if connection.server_name else {}


class ForeignResponseError(OSError):
    """The response does not come from Kubernetes."""


async def _in_time(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Limits the total time: a timeout of httpx2 limits only the time between two pieces."""
    try:
        return await within(seconds, work, _close_response)
    except asyncio.TimeoutError:
        raise OSError(f"no complete response within {REQUEST_SECONDS:g} s") from None


async def _close_response(result: object) -> None:
    if isinstance(result, httpx2.Response):
        await result.aclose()


def _pieces(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """Returns the pieces of a body. A compressed one, which was not asked for, could become very large."""
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise OSError("the response is compressed, which was not asked for")
    return answer.aiter_bytes()


async def _read(answer: httpx2.Response, limit: int) -> bytes:
    data = bytearray()
    async for piece in _pieces(answer):
        data += piece
        if len(data) > limit:
            raise OSError(f"the response is larger than {limit >> 20} MiB")
    return bytes(data)


async def _lines(answer: httpx2.Response, seconds: float) -> AsyncIterator[bytes]:
    """Yields the lines of a watch, until it ends or lasts longer than the server was asked for."""
    rest, end = bytearray(), time.monotonic() + seconds
    async for piece in _pieces(answer):
        rest += piece
        if b"\n" in piece:
            *complete, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in complete:
                if line.strip():
                    yield line
        if len(rest) > MAX_LINE_BYTES:
            raise OSError(f"a line is longer than {MAX_LINE_BYTES >> 20} MiB")
        if time.monotonic() > end:
            raise OSError(f"the watch did not end within {seconds:g} s")
    if rest.strip():
        yield bytes(rest)


def _document(answer: httpx2.Response, data: bytes) -> KubeObject:
    """Returns the object of a response. Raises ApiRefused only for a Status object of Kubernetes: a proxy, a load
    balancer or a sign-in page may answer at the same address.
    """
    document: Any = None
    with suppress(ValueError, RecursionError):
        document = json.loads(data)
    if isinstance(document, dict) and 200 <= answer.status_code < 300:
        return document
    if isinstance(document, dict) and answer.status_code >= 400 and document.get("kind") == "Status":
        raise _refused(answer.status_code, document)
    if answer.status_code == 429:  # an overloaded API server answers with plain text
        raise ApiRefused(429, "TooManyRequests", "too many requests")
    raise ForeignResponseError(f"it has status {answer.status_code} and is not from Kubernetes")


def _refused(status: int, document: KubeObject) -> ApiRefused:
    return ApiRefused(status, document.get("reason", ""), document.get("message") or f"HTTP {status}")


def _silent_cause(error: Exception) -> str:
    """Returns the cause of an error without a message."""
    if isinstance(error, httpx2.TimeoutException | TimeoutError):
        return "it did not respond in time"
    return "the connection was interrupted"


def connection_error(server: str, error: Exception) -> ClusterError:
    """Explains why the API server is unreachable, with a remedy."""
    cause = str(error) or _silent_cause(error)
    if "CERTIFICATE_VERIFY_FAILED" in cause or "certificate verify failed" in cause:
        return ClusterError(
            "cluster-untrusted",
            f"The certificate of {server} was not signed by the cluster's CA.",
            "If the cluster's CA was replaced, add the cluster again with a current kubeconfig.",
            retryable=True,
        )
    if isinstance(error, ForeignResponseError):
        return ClusterError(
            "cluster-unreachable",
            f"The response from {server} cannot be used: {cause}.",
            "A proxy, a load balancer or a sign-in page responds in place of the API server. Correct the proxy or "
            "the address of the cluster, or wait until the API server is back.",
            retryable=True,
        )
    return ClusterError(
        "cluster-unreachable",
        f"Cannot reach {server}: {cause.strip(' .')}.",
        "Check that the API server is running, and that no firewall blocks the service.",
        retryable=True,
    )
