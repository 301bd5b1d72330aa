"""Tests of downloads from a real TLS server, with faults."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.mirror.fault_rules import (
    ByteAmount,
    CorruptFault,
    CutFault,
    SlowFault,
    StallFault,
    StatusFault,
)
from aks_flex_lab.processes import spawn
from aks_flex_node.agent.artifacts.cache import clean_cache
from aks_flex_node.agent.artifacts.download import TransferState
from aks_flex_node.errors import ArtifactError
from tests.service.agent.http_fakes import KUBELET as CONTENT
from tests.service.agent.http_fakes import refusal, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.artifacts.download import Transfer
    from aks_flex_node.agent.artifacts.model import ArtifactTree
    from tests.service.agent.http_fakes import Publisher

WHOLE = 1 << 20
KUBELET = "localhost/v1/kubelet"


def test_tree_is_staged_with_manifest_of_its_files(publisher: Publisher) -> None:
    tree = publisher.tree(publisher.kubelet(), publisher.tools())
    manifest = publisher.store().wait(tree, 60)
    assert sorted(manifest.files) == ["bin/kubelet", "bin/tool"]
    for path, file in manifest.files.items():
        content = (tree.staging / path).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (file.sha256, file.size)
        assert (tree.staging / path).stat().st_mode & 0o7777 == file.mode == 0o755
    written = json.loads((tree.staging / ".manifest.json").read_text())
    assert [each["url"] for each in written["artifacts"]] == [each.url for each in tree.artifacts]
    assert list(tree.staging.parent.iterdir()) == [tree.staging]


def test_trees_are_prepared_concurrently(publisher: Publisher) -> None:
    slow = publisher.tree(publisher.kubelet())
    quick = publisher.tree(publisher.runc(), component="runc")
    publisher.mirror.add(KUBELET, StallFault(after=ByteAmount.parse("10%")))
    store = publisher.store()
    store.prepare([slow, quick])
    assert store.wait(quick, 60).files["bin/runc"].size == 200_000
    assert not slow.staging.exists()
    publisher.mirror.reset()  # cuts the stalled download, which is then resumed
    assert store.wait(slow, 60).files["bin/kubelet"].size == WHOLE


def test_missing_checksum_file_falls_back_to_next_one(publisher: Publisher) -> None:
    publisher.fetch(publisher.tools())
    assert publisher.requests("tools.tar.gz.sha256") == publisher.requests("tools.tar.gz.sha512") == 1


def test_truncated_checksum_file_is_requested_again(publisher: Publisher) -> None:
    publisher.mirror.add(f"{KUBELET}.sha256", CutFault(after=ByteAmount.parse("15%")), times=2)
    assert publisher.fetch()
    assert publisher.requests("kubelet.sha256") == 3


def test_pinned_digest_needs_no_checksum_file(publisher: Publisher) -> None:
    artifact = publisher.kubelet(digest=f"sha512:{hashlib.sha512(CONTENT).hexdigest()}")
    manifest = publisher.fetch(artifact)
    assert manifest.files["bin/kubelet"].sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert publisher.requests("kubelet.sha256") == 0


def test_cached_artifact_is_not_downloaded_again(publisher: Publisher) -> None:
    publisher.fetch(publisher.kubelet(), publisher.tools())
    publisher.mirror.reset()
    store = publisher.store()
    store.wait(publisher.tree(publisher.kubelet(), publisher.tools(), component="again"), 60)
    assert publisher.mirror.requests() == {}
    assert all(each.cached and each.state is TransferState.READY for each in store.transfers())


def test_damaged_cache_entry_is_downloaded_again(publisher: Publisher) -> None:
    publisher.fetch(publisher.tools())
    cached = next(publisher.room.glob("cache/*/tools.tar.gz"))
    cached.write_bytes(cached.read_bytes()[:-1] + b"?")
    publisher.fetch(publisher.tools(), component="again")
    assert publisher.requests("tools.tar.gz") == 2


def test_staged_tree_is_reused_unless_altered(publisher: Publisher) -> None:
    tree = publisher.tree(publisher.tools())
    first = publisher.store().wait(tree, 60)
    inode = (tree.staging / "bin/tool").stat().st_ino
    assert publisher.store().wait(tree, 60) == first
    assert (tree.staging / "bin/tool").stat().st_ino == inode
    with (tree.staging / "bin/tool").open("r+b") as file:
        file.write(b"altered")
    assert publisher.store().wait(tree, 60) == first
    assert (tree.staging / "bin/tool").read_bytes().startswith(b"#!/bin/sh")


def test_slow_download_is_not_aborted(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, SlowFault(rate=1 << 20))
    assert publisher.fetch(stall_seconds=2.0)
    assert publisher.requests("kubelet") == 1


def test_stalled_download_is_resumed(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StallFault(), times=1)
    assert publisher.fetch(stall_seconds=0.3)
    assert publisher.sent("kubelet") < 2 * WHOLE
    assert any(each.startswith("bytes=") for each in publisher.ranges("kubelet", 2))


def test_repeatedly_cut_download_is_resumed(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, CutFault(), times=5)  # more cuts than attempts, but each attempt progressed
    assert publisher.fetch()
    assert publisher.sent("kubelet") < 2 * WHOLE
    first, *others = publisher.ranges("kubelet", 6)
    assert first == "-"
    assert len(others) == 5
    assert all(each.startswith("bytes=") for each in others)


def test_partial_download_is_kept_when_store_is_closed(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StallFault(after=ByteAmount.parse("60%")))
    seen: list[Transfer] = []
    store, tree = publisher.store(observe=seen.append), publisher.tree(publisher.kubelet())
    store.prepare([tree])
    until(lambda: any(each.done > WHOLE // 4 for each in seen))
    store.close()
    with pytest.raises(ArtifactError) as caught:
        store.wait(tree, 1)
    assert caught.value.name == "download-cancelled"
    assert not tree.staging.with_name(f"{tree.staging.name}.partial").exists()
    publisher.mirror.reset()
    publisher.store().wait(tree, 60)
    assert any(each.startswith("bytes=") for each in publisher.ranges("kubelet", 2))
    assert publisher.sent("kubelet") < WHOLE


def test_corrupt_download_is_retried_once(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, CorruptFault(), times=1)
    assert publisher.fetch()
    assert publisher.requests("kubelet") == 2


def test_repeatedly_corrupt_download_is_refused_with_both_hashes(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, CorruptFault())
    error = publisher.refuses()
    assert error.name == "artifact-checksum-mismatch"
    assert error.message.count("sha256:") == 2
    assert publisher.url("kubelet") in error.message
    assert publisher.requests("kubelet") == 2
    assert not list(publisher.room.glob("cache/*/kubelet*"))


def test_artifact_without_checksum_is_refused_without_download(publisher: Publisher) -> None:
    artifact = publisher.kubelet(url=publisher.url("orphan"), checksums=(publisher.url("orphan.sha256"),))
    error = publisher.refuses(artifact)
    assert error.name == "artifact-checksum-missing"
    assert publisher.requests("orphan") == 1  # its first byte, to know that it exists


def test_temporarily_unavailable_server_is_retried(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StatusFault(503, retry_after=1), times=1)
    publisher.mirror.add(KUBELET, StatusFault(429), times=1)
    assert publisher.fetch()
    assert publisher.requests("kubelet") == 3


@pytest.mark.parametrize(
    ("status", "name", "attempts"),
    [(404, "artifact-not-found", 1), (403, "artifact-request-rejected", 1), (503, "artifact-unreachable", 3)],
)
def test_download_is_attempted_again_only_if_that_can_help(
    publisher: Publisher, status: int, name: str, attempts: int
) -> None:
    publisher.mirror.add(KUBELET, StatusFault(status))
    error = publisher.refuses()
    assert (error.name, error.retryable) == (name, status == 503)
    assert publisher.url("kubelet") in error.message
    assert str(status) in error.message
    assert publisher.requests("kubelet") == attempts


def test_mirror_replaces_publisher_and_errors_name_both_urls(publisher: Publisher) -> None:
    artifact = publisher.kubelet(url="https://v1/kubelet", publisher_url="https://v1/kubelet")
    tree = publisher.tree(artifact)
    assert publisher.store(base_url=f"{publisher.base}/").wait(tree, 60)
    lost = publisher.kubelet(url="https://v1/lost", digest="0" * 64)
    error = publisher.refuses(lost, component="lost", base_url=publisher.base)
    assert error.name == "artifact-not-found"
    assert f"{publisher.base}/v1/lost" in error.message
    assert "https://v1/lost" in error.message


def test_progress_is_reported_from_fetching_to_ready(publisher: Publisher) -> None:
    seen: list[Transfer] = []
    store, tree = publisher.store(observe=seen.append), publisher.tree(publisher.kubelet())
    store.wait(tree, 60)
    states = list(dict.fromkeys(each.state for each in seen))
    assert states == [TransferState.FETCHING, TransferState.UNPACKING, TransferState.READY]
    assert (seen[-1].done, seen[-1].total, seen[-1].cached) == (WHOLE, WHOLE, False)
    assert store.transfers() == [seen[-1]]


def test_artifact_shared_by_trees_is_downloaded_once(publisher: Publisher) -> None:
    trees = [publisher.tree(publisher.kubelet(), component=name) for name in ("one", "two", "three")]
    store = publisher.store()
    store.prepare(trees)
    for tree in trees:
        assert store.wait(tree, 60)
    assert publisher.requests("kubelet") == 1


def test_store_works_with_one_thread(publisher: Publisher) -> None:
    trees = [
        publisher.tree(publisher.kubelet(), publisher.tools()),
        publisher.tree(publisher.runc(), component="runc"),
    ]
    store = publisher.store(parallel=1)
    store.prepare(trees)
    assert [len(store.wait(tree, 60).files) for tree in trees] == [2, 1]


def test_failed_tree_can_be_prepared_again(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StatusFault(503))
    store, tree = publisher.store(), publisher.tree(publisher.kubelet())
    refusal(store, tree)
    publisher.mirror.reset()
    store.prepare([tree])
    assert store.wait(tree, 60)
    tree.staging.rename(tree.staging.with_name("in-place"))
    store.prepare([tree])
    assert store.wait(tree, 60)


def test_partial_download_is_kept_when_process_is_killed(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StallFault(after=ByteAmount.parse("60%")))
    tree = publisher.tree(publisher.kubelet(), publisher.runc())
    kill_download(publisher, tree, lambda: has_begun(publisher) and publisher.requests("runc.amd64") == 1)
    publisher.mirror.reset()
    assert sorted(publisher.store().wait(tree, 60).files) == ["bin/kubelet", "bin/runc"]
    assert any(each.startswith("bytes=") for each in publisher.ranges("kubelet", 2))
    assert publisher.sent("kubelet") < WHOLE
    assert list(tree.staging.parent.iterdir()) == [tree.staging]


def kill_download(publisher: Publisher, tree: ArtifactTree, moment: Callable[[], bool]) -> None:
    """Builds a tree in another process, and kills it at a moment."""
    program = (
        f"import os; os.environ['SSL_CERT_FILE'] = '{publisher.authority}'\n"
        "from pathlib import Path, PosixPath\n"
        "from aks_flex_node.agent.artifacts.model import *\n"
        "from aks_flex_node.agent.artifacts.store import ArtifactStore\n"
        "from aks_flex_node.agent.http.download_options import DownloadOptions\n"
        f"ArtifactStore({publisher.room / 'cache'!r}, {publisher.sources!r}).wait({tree!r}, 60)\n"
    )
    process = spawn((sys.executable, "-c", program), log=publisher.room / "log")
    until(lambda: not process.alive or moment())
    assert process.alive, (publisher.room / "log").read_text()
    process.kill(signal.SIGKILL)
    until(lambda: not process.alive)


def has_begun(publisher: Publisher) -> bool:
    return any(path.stat().st_size > WHOLE // 4 for path in publisher.room.glob("cache/*/kubelet.partial"))


def test_tree_built_ahead_needs_no_mirror_even_after_a_kill(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, SlowFault(rate=WHOLE))
    tree = publisher.tree(publisher.kubelet(), publisher.tools())
    ahead = replace(tree, staging=publisher.room / "cache" / "next" / "kubernetes")
    kill_download(publisher, ahead, lambda: has_begun(publisher))
    assert not ahead.staging.exists()
    publisher.mirror.reset()
    publisher.store().wait(ahead, 60)

    clean_cache(publisher.room / "cache", set())
    publisher.mirror.reset()
    publisher.mirror.add("*", StatusFault(503))
    assert sorted(publisher.store().wait(replace(tree, ahead=ahead.staging), 60).files) == ["bin/kubelet", "bin/tool"]
    assert publisher.mirror.requests() == {}
    assert not ahead.staging.exists()
