"""Bring images into a registry by its HTTP API, and see what it holds.

The registry lives in a network namespace, so the caller says how to reach it: any function that returns an
`http.client` connection will do.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aks_flex_node.lab.errors import PartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aks_flex_node.lab.images.contents import Named
    from aks_flex_node.lab.images.images import Blob, Image

Connect = Callable[[], http.client.HTTPConnection]


@dataclass(frozen=True)
class Held:
    """A repository of the registry and its tags."""

    repository: str
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


def push_all(connect: Connect, images: Iterable[Named]) -> int:
    """Push what the registry does not have yet, over one connection; how many names were new or changed."""
    with calling(connect) as registry:
        return sum(registry.push(each.image, each.repository, each.tag) for each in images)


def held(connect: Connect) -> tuple[Held, ...]:
    """What the registry holds, in the order of names."""
    with calling(connect) as registry:
        return tuple(Held(name, registry.tags(name)) for name in registry.repositories())


@contextmanager
def calling(connect: Connect) -> Iterator[Calls]:
    """One connection, kept for several calls; whatever goes wrong on it is told as one kind of error."""
    connection = connect()
    try:
        yield Calls(connection)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise PartError(
            "registry-not-answering",
            f"The image registry does not answer as it should: {error or type(error).__name__}.",
            "See `aks-flex-lab logs registry`.",
        ) from error
    finally:
        connection.close()


@dataclass(frozen=True)
class Calls:
    """The registry's API on one connection."""

    connection: http.client.HTTPConnection

    def push(self, image: Image, repository: str, tag: str) -> bool:
        """Whether anything had to be sent."""
        if self.digest_of(repository, tag, image.manifest.kind) == image.digest:
            return False
        for blob in (image.layer, image.config):
            self.upload(repository, blob)
        kind = {"Content-Type": image.manifest.kind}
        self.call("PUT", f"/v2/{repository}/manifests/{tag}", 201, image.manifest.data, kind)
        return True

    def digest_of(self, repository: str, tag: str, kind: str) -> str | None:
        """The digest of the manifest that a tag stands for."""
        reply = self.ask("HEAD", f"/v2/{repository}/manifests/{tag}", headers={"Accept": kind})
        return reply.headers.get("docker-content-digest") if reply.status == 200 else None

    def upload(self, repository: str, blob: Blob) -> None:
        if self.ask("HEAD", f"/v2/{repository}/blobs/{blob.digest}").status == 200:
            return
        begun = self.call("POST", f"/v2/{repository}/blobs/uploads/", 202)
        place = urlsplit(begun.headers["location"])
        query = f"{place.query}&digest={blob.digest}" if place.query else f"digest={blob.digest}"
        kind = {"Content-Type": "application/octet-stream"}
        self.call("PUT", f"{place.path}?{query}", 201, blob.data, kind)

    def repositories(self) -> tuple[str, ...]:
        names: list[str] = []
        page = "/v2/_catalog?n=100"
        while page:
            reply = self.call("GET", page, 200)
            names += json.loads(reply.body)["repositories"]
            page = next_page(reply.headers.get("link", ""))
        return tuple(sorted(names))

    def tags(self, repository: str) -> tuple[str, ...]:
        reply = self.ask("GET", f"/v2/{repository}/tags/list")
        found: Any = json.loads(reply.body)
        return tuple(sorted(found.get("tags") or ()))

    def call(
        self, method: str, path: str, expected: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Ask for something that must succeed."""
        reply = self.ask(method, path, body, headers)
        if reply.status != expected:
            said = reply.body.decode("utf-8", "replace").strip()[:300]
            raise PartError(
                "registry-refused",
                f"The image registry answered {reply.status} to {method} {path.partition('?')[0]}: {said}.",
                "See `aks-flex-lab logs registry`.",
            )
        return reply

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
        self.connection.request(method, path, body or None, dict(headers or {}))
        answer = self.connection.getresponse()
        lowered = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, lowered, answer.read())


def next_page(link: str) -> str:
    """The path in a `Link: </v2/_catalog?…>; rel="next"` header."""
    if 'rel="next"' not in link:
        return ""
    address = urlsplit(link.partition("<")[2].partition(">")[0])
    return f"{address.path}?{address.query}"
