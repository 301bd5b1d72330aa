"""The artifacts of the test publisher, and the stores that download them."""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.mirror.control import MirrorClient
from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile, ArtifactTree
from aks_flex_node.agent.artifacts.store import ArtifactStore
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import RetryBackoff

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_node.agent.artifacts.model import TreeManifest

KUBELET = random.Random(1).randbytes(1 << 20)  # noqa: S311 - no secret
RUNC = random.Random(2).randbytes(200_000)  # noqa: S311 - no secret
TOOL = b"#!/bin/sh\n" + random.Random(3).randbytes(300_000)  # noqa: S311 - no secret
QUICK = RetryBackoff(first_delay=0.01, max_delay=0.02, max_retry_after=0.05)


def archive(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def published() -> dict[str, bytes]:
    tools = archive({"./bin/tool": TOOL, "./README": b"read me"})
    return {
        "kubelet": KUBELET,
        "kubelet.sha256": hashlib.sha256(KUBELET).hexdigest().encode(),
        "runc.amd64": RUNC,
        "runc.sha256sum": f"{'a' * 64}  runc.arm64\n{hashlib.sha256(RUNC).hexdigest()} *runc.amd64\n".encode(),
        "tools.tar.gz": tools,
        "tools.tar.gz.sha512": f"{hashlib.sha512(tools).hexdigest()}  tools.tar.gz\n".encode(),
        "orphan": b"nobody vouches for me",
    }


@dataclass
class Publisher:
    """A running mirror, and the stores of one test."""

    base: str
    control: Path
    log: Path
    authority: Path
    room: Path
    opened: list[ArtifactStore] = field(default_factory=list)

    @property
    def mirror(self) -> MirrorClient:
        return MirrorClient(self.control)

    @property
    def sources(self) -> DownloadOptions:
        return DownloadOptions(ca_file=str(self.authority), attempts=3, stall_seconds=5.0)

    def store(self, observe: Any = None, cache: str = "cache", **changes: Any) -> ArtifactStore:
        digests = changes.pop("digests", None)
        sources = replace(self.sources, **changes)
        self.opened.append(ArtifactStore(self.room / cache, sources, observe=observe, backoff=QUICK, digests=digests))
        return self.opened[-1]

    def fetch(self, *artifacts: Artifact, component: str = "kubernetes", **changes: Any) -> TreeManifest:
        """Stages a tree of these artifacts, or of the kubelet."""
        return self.store(**changes).wait(self.tree(*(artifacts or (self.kubelet(),)), component=component), 60)

    def refuses(self, *artifacts: Artifact, component: str = "kubernetes", **changes: Any) -> ArtifactError:
        """Returns the error of a tree of these artifacts, or of the kubelet."""
        return refusal(self.store(**changes), self.tree(*(artifacts or (self.kubelet(),)), component=component))

    def url(self, name: str) -> str:
        return f"{self.base}/v1/{name}"

    def tree(self, *artifacts: Artifact, component: str = "kubernetes") -> ArtifactTree:
        return ArtifactTree(component, "1.0.0", artifacts, self.room / "staged" / component)

    def kubelet(self, **changes: Any) -> Artifact:
        plain = (ArtifactFile("", "bin/kubelet"),)
        url = self.url("kubelet")
        artifact = Artifact("kubernetes", "1.0.0", url, plain, "", url, (self.url("kubelet.sha256"),))
        return replace(artifact, **changes)

    def runc(self) -> Artifact:
        plain = (ArtifactFile("", "bin/runc"),)
        url = self.url("runc.amd64")
        return Artifact("runc", "1.0.0", url, plain, "", url, (self.url("runc.sha256sum"),))

    def tools(self) -> Artifact:
        sums = (self.url("tools.tar.gz.sha256"), self.url("tools.tar.gz.sha512"))
        url = self.url("tools.tar.gz")
        return Artifact("tools", "1.0.0", url, (ArtifactFile("bin/tool", "bin/tool"),), "", url, sums)

    def requests(self, name: str) -> int:
        fetched = self.mirror.requests().get(f"localhost/v1/{name}")
        return fetched.requests if fetched else 0

    def sent(self, name: str) -> int:
        return self.mirror.requests()[f"localhost/v1/{name}"].bytes

    def ranges(self, name: str, count: int) -> list[str]:
        """Returns the ranges requested in this test, in the order of completion, after this many responses."""
        until(lambda: len(self._logged_ranges(name)) >= count)
        return self._logged_ranges(name)

    def _logged_ranges(self, name: str) -> list[str]:
        words = [line.split() for line in self.log.read_text().splitlines() if f" localhost/v1/{name} " in line]
        return [word.removeprefix("range=") for line in words for word in line if word.startswith("range=")]


@dataclass(frozen=True)
class Server:
    base: str
    control: Path
    log: Path


def until(holds: Callable[[], bool]) -> None:
    while not holds():  # limited by the timeout of pytest
        time.sleep(0.01)


def refusal(store: ArtifactStore, tree: ArtifactTree) -> ArtifactError:
    """Returns the error of a tree, and checks that none of its files are left."""
    store.prepare([tree])
    with pytest.raises(ArtifactError) as caught:
        store.wait(tree, 60)
    assert not tree.staging.exists()
    assert not tree.staging.with_name(f"{tree.staging.name}.partial").exists()
    return caught.value
