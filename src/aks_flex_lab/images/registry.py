"""Debian's docker-registry: its configuration, and a client that pushes images and lists repositories."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aks_flex_lab.errors import ComponentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from aks_flex_lab.images.builder import ImageBlob, OciImage, TaggedImage


Connect = Callable[[], http.client.HTTPConnection]


@dataclass(frozen=True)
class RepositoryTags:
    """A repository of the registry and its tags."""

    repository: str
    tags: tuple[str, ...]


@dataclass(frozen=True)
class RegistryReply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


def push_images(connect: Connect, images: Iterable[TaggedImage]) -> int:
    """Push what the registry does not have yet, over one connection; how many names were new or changed."""
    with registry_client(connect) as registry:
        return sum(registry.push(each.image, each.repository, each.tag) for each in images)


def list_repositories(connect: Connect) -> tuple[RepositoryTags, ...]:
    """What the registry holds, in the order of names."""
    with registry_client(connect) as registry:
        return tuple(RepositoryTags(name, registry.tags(name)) for name in registry.repositories())


@contextmanager
def registry_client(connect: Connect) -> Iterator[RegistryClient]:
    """One connection, kept for several calls; whatever goes wrong on it is told as one kind of error."""
    connection = connect()
    try:
        yield RegistryClient(connection)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ComponentError(
            "registry-not-responding",
            f"The image registry does not answer as it should: {error or type(error).__name__}.",
            "See `aks-flex-lab logs registry`.",
        ) from error
    finally:
        connection.close()


@dataclass(frozen=True)
class RegistryClient:
    """The registry's API on one connection."""

    connection: http.client.HTTPConnection

    def push(self, image: OciImage, repository: str, tag: str) -> bool:
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
        reply = self.request("HEAD", f"/v2/{repository}/manifests/{tag}", headers={"Accept": kind})
        return reply.headers.get("docker-content-digest") if reply.status == 200 else None

    def upload(self, repository: str, blob: ImageBlob) -> None:
        if self.request("HEAD", f"/v2/{repository}/blobs/{blob.digest}").status == 200:
            return
        begun = self.call("POST", f"/v2/{repository}/blobs/uploads/", 202)
        location = urlsplit(begun.headers["location"])
        query = f"{location.query}&digest={blob.digest}" if location.query else f"digest={blob.digest}"
        kind = {"Content-Type": "application/octet-stream"}
        self.call("PUT", f"{location.path}?{query}", 201, blob.data, kind)

    def repositories(self) -> tuple[str, ...]:
        names: list[str] = []
        page = "/v2/_catalog?n=100"
        while page:
            reply = self.call("GET", page, 200)
            names += json.loads(reply.body)["repositories"]
            page = next_page(reply.headers.get("link", ""))
        return tuple(sorted(names))

    def tags(self, repository: str) -> tuple[str, ...]:
        reply = self.request("GET", f"/v2/{repository}/tags/list")
        found: Any = json.loads(reply.body)
        return tuple(sorted(found.get("tags") or ()))

    def call(
        self, method: str, path: str, expected: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> RegistryReply:
        """Ask for something that must succeed."""
        reply = self.request(method, path, body, headers)
        if reply.status != expected:
            text = reply.body.decode("utf-8", "replace").strip()[:300]
            raise ComponentError(
                "registry-request-rejected",
                f"The image registry answered {reply.status} to {method} {path.partition('?')[0]}: {text}.",
                "See `aks-flex-lab logs registry`.",
            )
        return reply

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> RegistryReply:
        self.connection.request(method, path, body or None, dict(headers or {}))
        answer = self.connection.getresponse()
        lowered = {name.lower(): value for name, value in answer.getheaders()}
        return RegistryReply(answer.status, lowered, answer.read())


def next_page(link: str) -> str:
    """The path in a `Link: </v2/_catalog?…>; rel="next"` header."""
    if 'rel="next"' not in link:
        return ""
    address = urlsplit(link.partition("<")[2].partition(">")[0])
    return f"{address.path}?{address.query}"


REGISTRY_PROGRAM = "docker-registry"


@dataclass(frozen=True)
class RegistrySettings:
    address: str  # such as 198.18.0.5:443
    storage: Path
    cert: Path
    key: Path


def registry_config(settings: RegistrySettings) -> str:
    """The YAML text. JSON's quotes are YAML's, so a path with odd letters stays one word."""
    return f"""\
version: 0.1
log:
  level: info
  accesslog:
    disabled: false
storage:
  filesystem:
    rootdirectory: {json.dumps(str(settings.storage))}
  delete:
    enabled: true
  cache:
    blobdescriptor: inmemory
http:
  addr: {json.dumps(settings.address)}
  relativeurls: true
  tls:
    certificate: {json.dumps(str(settings.cert))}
    key: {json.dumps(str(settings.key))}
"""


def registry_argv(config: Path) -> tuple[str, ...]:
    return (REGISTRY_PROGRAM, "serve", str(config))
