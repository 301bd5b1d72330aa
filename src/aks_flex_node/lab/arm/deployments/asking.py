"""ARM asked from within, by a deployment that runs: with the token, and so the rights, of whoever asked for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import httpx2
from starlette.requests import Request

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from aks_flex_node.lab.arm.app import Front
    from aks_flex_node.lab.arm.deployments.problems import Problem
    from aks_flex_node.lab.arm.deployments.templates import Plan

SECONDS = 60.0
ATTEMPTS = 5  # of a call that a provider puts off
SUCCESS = range(200, 300)


class Refused(Exception):  # noqa: N818 - an answer, and often an expected one
    """A provider that says no."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem.get("message", ""))
        self.status = status
        self.problem = problem


class Asks(Protocol):
    async def ask(self, method: str, path: str, version: str, body: Any = None) -> tuple[int, Any]:
        """Status and document of an answer that is not no; Refused otherwise."""


@dataclass(frozen=True)
class Inside:
    front: Front
    authorization: str
    correlation: str

    @cached_property
    def _client(self) -> httpx2.AsyncClient:
        headers = {"Authorization": self.authorization, "x-ms-correlation-request-id": self.correlation}
        transport = httpx2.ASGITransport(self._answer)
        return httpx2.AsyncClient(
            transport=transport, base_url=self.front.management, headers=headers, timeout=SECONDS
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self.front.answer(Request(scope, receive))
        await answer(scope, receive, send)

    async def ask(self, method: str, path: str, version: str, body: Any = None) -> tuple[int, Any]:
        """A call that is put off is made again."""
        for _ in range(ATTEMPTS):
            answer = await self._client.request(method, path, params={"api-version": version}, json=body)
            if answer.status_code != 429:
                break
            await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
        document = answer.json() if answer.content else {}
        if answer.status_code not in SUCCESS:
            raise Refused(
                answer.status_code, document.get("error") or {"code": "Unknown", "message": "No reason given."}
            )
        return answer.status_code, document


@dataclass(frozen=True)
class Live:
    """What a template asks of resources while it is deployed. Called in a thread beside the event loop."""

    inside: Asks
    plan: Plan
    loop: asyncio.AbstractEventLoop

    def reference(self, resource: str, version: str, *, full: bool) -> Any:
        id_ = self.plan.find(resource)
        own = next((each.version for each in self.plan.resources if each.id == id_), "")
        document = self._asked("GET", id_, version or own)
        return document if full else document.get("properties", {})

    def act(self, action: str, resource: str, version: str, body: Any) -> Any:
        return self._asked("POST", f"{self.plan.find(resource)}/{action}", version, body)

    def _asked(self, method: str, path: str, version: str, body: Any = None) -> Any:
        work = self.inside.ask(method, path, version, body)
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()[1]
