"""Requests about the roll-outs of a pool, and how to follow one until it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from aks_flex_node.api import rollout_summary
from aks_flex_rp.api_client import RequestRefused, ServiceUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_rp.arm.ids import ClusterId

    Document = dict[str, Any]


class ServiceRequests(Protocol):
    """What is used of a ServiceClient."""

    def request(
        self, method: str, path: str, query: dict[str, str] | None = None, body: Document | None = None
    ) -> Document: ...

    def pages(self, path: str) -> Iterator[Document]: ...


@dataclass(frozen=True)
class RolloutClient:
    service: ServiceRequests
    cluster: ClusterId
    pool: str

    def list(self) -> Iterator[Document]:
        """Yields the roll-outs of the pool, the newest first."""
        return self.service.pages(self._path())

    def get(self, name: str) -> Document:
        return self.service.request("GET", self._path(name))

    def create(self, name: str, properties: Document) -> Document:
        """Creates and starts a roll-out. The same request again changes nothing."""
        return self.service.request("PUT", self._path(name), body={"properties": properties})

    def delete(self, name: str) -> None:
        self.service.request("DELETE", self._path(name))

    def act(self, name: str, action: str, body: Document | None = None) -> Document:
        """Sends an action, for example `pause`. Returns the roll-out."""
        return self.service.request("POST", self._path(name, action), body=body or {})

    def nodes(self, name: str, *, state: str = "", wave: int | None = None) -> Iterator[Document]:
        """Yields the nodes of a roll-out, by name. Pages are fetched as the caller iterates."""
        body: Document = {**({"state": state} if state else {}), **({"wave": wave} if wave else {})}
        while True:
            page = self.act(name, "listNodes", body)
            yield from page["value"]
            if not page.get("after"):
                return
            body["after"] = page["after"]

    def follow(
        self, rollout: Document, print_line: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
    ) -> Document:
        """Prints each change of a roll-out as one line until it has ended, and returns it."""

        def read(is_patient: bool) -> Document | None:
            try:
                return self.get(rollout["name"])
            except (RequestRefused, ServiceUnreachable) as error:
                if error.retryable and is_patient:
                    return None
                raise

        return rollout_summary.follow(rollout, read, print_line, sleep)

    def _path(self, *below: str) -> str:
        return "/".join((self.cluster.pool(quote(self.pool)), "rollouts", *map(quote, below)))
