"""Asynchronous client of the Kubernetes API and its HTTP session: objects are plain dicts, as the API server
returns them.

A library would know thousands of kinds; this needs five, and must see when a watch may have missed events.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import httpx2

from aks_flex_node.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping

    from aks_flex_rp.clusters.connections import DirectConnection


WATCH_SECONDS = 300  # after which the API server ends a watch
REQUEST_TIMEOUT = httpx2.Timeout(15.0, connect=5.0)
WATCH_TIMEOUT = httpx2.Timeout(15.0, connect=5.0, read=WATCH_SECONDS + 30.0)
# A peer that vanished without a word is noticed within a minute, also by a watch that has nothing to say.
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
    headers = {"Accept": "application/json", "User-Agent": "aks-flex-rp"}
    if connection.token:
        headers["Authorization"] = f"Bearer {connection.token}"
    return httpx2.AsyncClient(
        transport=transport, base_url=connection.server, headers=headers, timeout=REQUEST_TIMEOUT, trust_env=False
    )


def client_ssl_context(connection: DirectConnection) -> ssl.SSLContext:
    """The cluster's CA and no other; and our certificate, where that is how we log in."""
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
            f"The certificates for {connection.server} cannot be used: {error.reason or 'they are no certificates'}.",
            "Check that the kubeconfig's CA, client certificate and key are whole and belong together.",
        ) from None
    return context


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """A file for a library that takes nothing else. It is on no disk, and gone with the block."""
    file = os.memfd_create("credentials", os.MFD_CLOEXEC)
    try:
        os.write(file, text.encode())
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


KubeObject = dict[str, Any]
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
MANAGER = "aks-flex-rp"  # as whom we own fields
PAGE = 500


class ApiRefused(Exception):  # noqa: N818 - it is an answer, and often an expected one
    """The API server answered, and its answer is no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class ConnectionSource(Protocol):
    """Where the connection comes from, and whether asking again may give another one."""

    renewable: bool

    async def connection(self) -> DirectConnection: ...

    async def managed_cluster(self) -> KubeObject | None:
        """What Azure says of the cluster; None where Azure does not know it."""
        ...


class FixedConnection:
    """A connection that stays what it is."""

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
        """How the API server is reached just now."""
        await self._current()
        if self._direct is None:
            raise AssertionError("A session has a connection.")
        return self._direct

    async def managed_cluster(self) -> KubeObject | None:
        return await self._source.managed_cluster()

    async def get(self, path: str, **parameters: str) -> KubeObject:
        return await self.request("GET", path, parameters=parameters)

    async def find(self, path: str) -> KubeObject | None:
        """None when there is no such thing."""
        try:
            return await self.get(path)
        except ApiRefused as refusal:
            if refusal.status == 404:
                return None
            raise

    async def list(self, path: str, **parameters: str) -> tuple[list[KubeObject], str]:
        """All of them, and the version from which a watch goes on."""
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
        """Refused with 409 when it is not as it was read."""
        return await self.request("PUT", path, body, parameters={"fieldManager": MANAGER})

    async def merge(self, path: str, body: KubeObject) -> KubeObject:
        return await self.request("PATCH", path, body, MERGE, {"fieldManager": MANAGER})

    async def apply(self, path: str, body: KubeObject, *, dry: bool = False) -> KubeObject:
        """Make it so by server-side apply; what it then is, or would be."""
        parameters = {"fieldManager": MANAGER, "force": "true"} | ({"dryRun": "All"} if dry else {})
        return await self.request("PATCH", path, body, APPLY, parameters)

    async def delete(self, path: str, preconditions: Mapping[str, str] | None = None) -> bool:
        """False when it is gone already, or is not what the preconditions (uid, resourceVersion) say."""
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
        """What the server answers; Refused when it says no, ClusterError when it cannot be asked."""
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type} if content else {}
        answer = await self._sent(method, path, params=parameters, content=content, headers=headers)
        async with _finished(answer):
            await answer.aread()
            return _document(answer)

    async def watch(self, path: str, version: str, **parameters: str) -> AsyncGenerator[tuple[str, KubeObject], None]:
        """What happens after `version`, as (ADDED | MODIFIED | DELETED | BOOKMARK, object), until the server ends."""
        query = {
            **parameters,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        answer = await self._sent("GET", path, params=query, timeout=WATCH_TIMEOUT)
        async with _finished(answer):
            if answer.status_code >= 400:
                await answer.aread()
                _document(answer)
            async for line in answer.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _refused(event["object"].get("code", 500), event["object"])
                yield event["type"], event["object"]

    async def _sent(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """The beginning of an answer. Where credentials are worth nothing any more, fresh ones are tried once."""
        for last in (not self._source.renewable, True):
            session = await self._current()
            request = session.build_request(method, path, extensions=_names(await self.direct()), **options)
            try:
                answer = await _unhurried(session.send(request, stream=True))
            except (httpx2.HTTPError, OSError) as error:
                problem = connection_error(str(session.base_url), error)
                if problem.name != "cluster-untrusted" or last:
                    raise problem from error
            else:
                if answer.status_code != 401 or last:
                    return answer
                await answer.aclose()
            await self._forget(session)
        raise AssertionError("The last try returns or raises.")

    async def _current(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._closed:
                raise ClusterError(
                    "cluster-connection-closed",
                    "The connection to this cluster was closed, because the service ends or forgets the cluster.",
                    "Try again in a while.",
                    retryable=True,
                )
            if self._session is None:
                self._direct = await self._source.connection()
                self._session = self._opener(self._direct)
            return self._session

    async def _forget(self, session: httpx2.AsyncClient) -> None:
        """Unless somebody else has replaced it meanwhile. Its watches end, and begin again on the new one."""
        async with self._opening:
            if self._session is session:
                self._session = None
                await session.aclose()


async def _unhurried(sending: Coroutine[Any, Any, httpx2.Response]) -> httpx2.Response:
    """A handshake is let finish, also when we are cancelled: httpx2 would lose its socket in the middle of one."""
    task = asyncio.create_task(sending)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=1)
        task.cancel()  # no effect on one that is done
        for answer in await asyncio.gather(task, return_exceptions=True):
            if isinstance(answer, httpx2.Response):
                await answer.aclose()
        raise


@asynccontextmanager
async def _finished(answer: httpx2.Response) -> AsyncIterator[None]:
    """Read inside; the connection is free after it, and what breaks meanwhile is explained."""
    try:
        yield
    except (httpx2.HTTPError, OSError) as error:
        raise connection_error(str(answer.request.url.copy_with(path="/", query=None)), error) from error
    finally:
        await answer.aclose()


def _names(connection: DirectConnection) -> dict[str, str]:
    """Where the server's certificate is for another name than the one in its address."""
    return {"sni_hostname": connection.server_name} if connection.server_name else {}


def _document(answer: httpx2.Response) -> KubeObject:
    try:
        document = answer.json()
    except ValueError:
        document = {}
    if answer.status_code >= 400:
        raise _refused(answer.status_code, document if isinstance(document, dict) else {})
    return dict(document)


def _refused(status: int, document: KubeObject) -> ApiRefused:
    return ApiRefused(status, document.get("reason", ""), document.get("message") or f"HTTP {status}")


def connection_error(server: str, error: Exception) -> ClusterError:
    """Why the API server could not be asked, and what to do about it."""
    cause = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in cause or "certificate verify failed" in cause:
        return ClusterError(
            "cluster-untrusted",
            f"{server} does not show a certificate that the cluster's CA has signed.",
            "If the cluster's CA was replaced, add the cluster again with a fresh kubeconfig.",
            retryable=True,
        )
    return ClusterError(
        "cluster-unreachable",
        f"{server} cannot be reached: {cause.strip(' .') or type(error).__name__}.",
        "Check that the API server runs, and that no firewall is between it and this service.",
        retryable=True,
    )
