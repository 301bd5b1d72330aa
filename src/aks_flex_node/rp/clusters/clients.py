"""A thin asynchronous client of the Kubernetes API: objects are plain data, as the API server writes them.

A library would know thousands of kinds; here are five, and what matters is what happens when things go wrong: one
that reconnects a watch by itself hides from us that events were missed.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import httpx2

from aks_flex_node.errors import ClusterError
from aks_flex_node.rp.clusters.sessions import WATCH, WATCH_SECONDS, open_session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping

    from aks_flex_node.rp.clusters.connections import Direct

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
MANAGER = "aks-flex-rp"  # as whom we own fields
PAGE = 500


class Refused(Exception):  # noqa: N818 - it is an answer, and often an expected one
    """The API server answered, and its answer is no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class Source(Protocol):
    """Where the connection comes from, and whether asking again may give another one."""

    renewable: bool

    async def connection(self) -> Direct: ...

    async def managed_cluster(self) -> Object | None:
        """What Azure says of the cluster; None where Azure does not know it."""
        ...


class Fixed:
    """A connection that stays what it is."""

    renewable = False

    def __init__(self, connection: Direct) -> None:
        self._connection = connection

    async def connection(self) -> Direct:
        return self._connection

    async def managed_cluster(self) -> Object | None:
        return None


class Client:
    def __init__(self, source: Source, opener: Callable[[Direct], httpx2.AsyncClient] = open_session) -> None:
        self._source = source
        self._opener = opener
        self._opening = asyncio.Lock()
        self._session: httpx2.AsyncClient | None = None
        self._closed = False
        self._direct: Direct | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        async with self._opening:
            session, self._session = self._session, None
            if session:
                await session.aclose()

    async def direct(self) -> Direct:
        """How the API server is reached just now."""
        await self._current()
        if self._direct is None:
            raise AssertionError("A session has a connection.")
        return self._direct

    async def managed_cluster(self) -> Object | None:
        return await self._source.managed_cluster()

    async def get(self, path: str, **parameters: str) -> Object:
        return await self.request("GET", path, parameters=parameters)

    async def find(self, path: str) -> Object | None:
        """None when there is no such thing."""
        try:
            return await self.get(path)
        except Refused as refusal:
            if refusal.status == 404:
                return None
            raise

    async def list(self, path: str, **parameters: str) -> tuple[list[Object], str]:
        """All of them, and the version from which a watch goes on."""
        items: list[Object] = []
        more = {**parameters, "limit": str(PAGE)}
        while True:
            page = await self.get(path, **more)
            items += page.get("items") or []
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return items, str(metadata["resourceVersion"])
            more["continue"] = metadata["continue"]

    async def create(self, path: str, body: Object) -> Object:
        return await self.request("POST", path, body, parameters={"fieldManager": MANAGER})

    async def replace(self, path: str, body: Object) -> Object:
        """Refused with 409 when it is not as it was read."""
        return await self.request("PUT", path, body, parameters={"fieldManager": MANAGER})

    async def merge(self, path: str, body: Object) -> Object:
        return await self.request("PATCH", path, body, MERGE, {"fieldManager": MANAGER})

    async def apply(self, path: str, body: Object, *, dry: bool = False) -> Object:
        """Make it so by server-side apply; what it then is, or would be."""
        parameters = {"fieldManager": MANAGER, "force": "true"} | ({"dryRun": "All"} if dry else {})
        return await self.request("PATCH", path, body, APPLY, parameters)

    async def delete(self, path: str, preconditions: Mapping[str, str] | None = None) -> bool:
        """False when it is gone already, or is not what the preconditions (uid, resourceVersion) say."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": dict(preconditions or {})}
        try:
            await self.request("DELETE", path, body)
        except Refused as refusal:
            if refusal.status in {404, 409}:
                return False
            raise
        return True

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = "application/json",
        parameters: Mapping[str, str] | None = None,
    ) -> Object:
        """What the server answers; Refused when it says no, ClusterError when it cannot be asked."""
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type} if content else {}
        answer = await self._sent(method, path, params=parameters, content=content, headers=headers)
        async with _finished(answer):
            await answer.aread()
            return _document(answer)

    async def watch(self, path: str, version: str, **parameters: str) -> AsyncGenerator[tuple[str, Object], None]:
        """What happens after `version`, as (ADDED | MODIFIED | DELETED | BOOKMARK, object), until the server ends."""
        asked = {
            **parameters,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        answer = await self._sent("GET", path, params=asked, timeout=WATCH)
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
                problem = explained(str(session.base_url), error)
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
                    "cluster-closed",
                    "The connection to this cluster was closed, because the service ends or forgets the cluster.",
                    "Try again in a while.",
                    again=True,
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
        raise explained(str(answer.request.url.copy_with(path="/", query=None)), error) from error
    finally:
        await answer.aclose()


def _names(connection: Direct) -> dict[str, str]:
    """Where the server's certificate is for another name than the one in its address."""
    return {"sni_hostname": connection.server_name} if connection.server_name else {}


def _document(answer: httpx2.Response) -> Object:
    try:
        document = answer.json()
    except ValueError:
        document = {}
    if answer.status_code >= 400:
        raise _refused(answer.status_code, document if isinstance(document, dict) else {})
    return dict(document)


def _refused(status: int, said: Object) -> Refused:
    return Refused(status, said.get("reason", ""), said.get("message") or f"HTTP {status}")


def explained(server: str, error: Exception) -> ClusterError:
    """Why the API server could not be asked, and what to do about it."""
    cause = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in cause or "certificate verify failed" in cause:
        return ClusterError(
            "cluster-untrusted",
            f"{server} does not show a certificate that the cluster's CA has signed.",
            "If the cluster's CA was replaced, add the cluster again with a fresh kubeconfig.",
            again=True,
        )
    return ClusterError(
        "cluster-unreachable",
        f"{server} cannot be reached: {cause.strip(' .') or type(error).__name__}.",
        "Check that the API server runs, and that no firewall is between it and this service.",
        again=True,
    )
