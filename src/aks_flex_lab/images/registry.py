"""Configures Debian's docker-registry, and pushes images to it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aks_flex_lab.errors import ComponentError
from aks_flex_lab.images.builder import ImageIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from aks_flex_lab.images.builder import ImageBlob, OciImage, TaggedImage


Connect = Callable[[], http.client.HTTPConnection]


@dataclass(frozen=True)
class RegistryReply:
    status: int
    headers: Mapping[str, str]  # header names in lower case
    body: bytes


def push_images(connect: Connect, images: Iterable[TaggedImage]) -> int:
    """Pushes the images that the registry does not have; returns the number of new or changed names."""
    with registry_client(connect) as registry:
        return sum(registry.push(each.image, each.repository, each.tag) for each in images)


@contextmanager
def registry_client(connect: Connect) -> Iterator[RegistryClient]:
    """Yields a client with one connection; raises its failures as ComponentError."""
    connection = connect()
    try:
        yield RegistryClient(connection)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ComponentError(
            "registry-not-responding",
            f"The image registry does not respond correctly: {error or type(error).__name__}.",
            "Run `aks-flex-lab logs registry`.",
        ) from error
    finally:
        connection.close()


@dataclass(frozen=True)
class RegistryClient:
    """A client of the registry's API that uses one connection."""

    connection: http.client.HTTPConnection

    def push(self, image: OciImage | ImageIndex, repository: str, tag: str) -> bool:
        """Pushes an image, or an index with its images; returns whether the registry did not have it."""
        if self.digest_of(repository, tag, image.manifest.kind) == image.digest:
            return False
        if isinstance(image, ImageIndex):
            for each in image.images.values():
                self.push(each, repository, each.digest)
        else:
            for blob in (*image.layers, image.config):
                self.upload(repository, blob)
        kind = {"Content-Type": image.manifest.kind}
        self.call("PUT", f"/v2/{repository}/manifests/{tag}", 201, image.manifest.data, kind)
        return True

    def digest_of(self, repository: str, tag: str, kind: str) -> str | None:
        """Returns the digest of the manifest of a tag."""
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

    def call(
        self, method: str, path: str, expected: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> RegistryReply:
        """Sends a request and raises an error unless it succeeds."""
        reply = self.request(method, path, body, headers)
        if reply.status != expected:
            text = reply.body.decode("utf-8", "replace").strip()[:300]
            raise ComponentError(
                "registry-request-rejected",
                f"The image registry returned HTTP {reply.status} for {method} {path.partition('?')[0]}: {text}.",
                "Run `aks-flex-lab logs registry`.",
            )
        return reply

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> RegistryReply:
        self.connection.request(method, path, body or None, dict(headers or {}))
        answer = self.connection.getresponse()
        lowered = {name.lower(): value for name, value in answer.getheaders()}
        return RegistryReply(answer.status, lowered, answer.read())


REGISTRY_PROGRAM = "docker-registry"


@dataclass(frozen=True)
class RegistrySettings:
    address: str  # for example 198.18.0.5:443
    storage: Path
    cert: Path
    key: Path


def registry_config(settings: RegistrySettings) -> str:
    """Returns the configuration as YAML. JSON strings are valid in YAML, so paths are quoted as JSON."""
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
