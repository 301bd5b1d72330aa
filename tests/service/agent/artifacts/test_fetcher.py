"""Artifacts come from a real server over TLS, whatever it does meanwhile."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.mirror.fault_rules import (
    ByteAmount,
    ChecksumFault,
    CorruptFault,
    CutFault,
    SlowFault,
    StallFault,
    StatusFault,
)
from aks_flex_lab.processes import spawn
from aks_flex_node.agent.artifacts import ArtifactFile, TransferState
from aks_flex_node.errors import ArtifactError
from tests.service.agent.http_fakes import KUBELET as CONTENT
from tests.service.agent.http_fakes import refusal, until

if TYPE_CHECKING:
    from aks_flex_node.agent.artifacts import Transfer
    from tests.service.agent.http_fakes import Publisher

WHOLE = 1 << 20
KUBELET = "localhost/v1/kubelet"


def test_a_tree_is_staged_with_a_manifest_of_what_is_in_it(publisher: Publisher) -> None:
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


def test_two_trees_are_prepared_at_a_time(publisher: Publisher) -> None:
    slow = publisher.tree(publisher.kubelet())
    quick = publisher.tree(publisher.runc(), component="runc")
    publisher.mirror.add(KUBELET, StallFault(after=ByteAmount.parse("10%")))
    store = publisher.store()
    store.prepare([slow, quick])
    assert store.wait(quick, 60).files["bin/runc"].size == 200_000
    assert not slow.staging.exists()
    publisher.mirror.reset()  # ends the stall with a cut, which is resumed
    assert store.wait(slow, 60).files["bin/kubelet"].size == WHOLE


def test_a_checksum_file_that_is_not_there_is_followed_by_the_next(publisher: Publisher) -> None:
    publisher.store().wait(publisher.tree(publisher.tools()), 60)
    assert publisher.requests("tools.tar.gz.sha256") == publisher.requests("tools.tar.gz.sha512") == 1


def test_a_checksum_file_that_is_cut_is_asked_for_again(publisher: Publisher) -> None:
    publisher.mirror.add(f"{KUBELET}.sha256", CutFault(after=ByteAmount.parse("15%")), times=2)
    assert publisher.store().wait(publisher.tree(publisher.kubelet()), 60)
    assert publisher.requests("kubelet.sha256") == 3


def test_a_pinned_digest_asks_for_no_checksum_file(publisher: Publisher) -> None:
    artifact = publisher.kubelet(digest=f"sha512:{hashlib.sha512(CONTENT).hexdigest()}")
    manifest = publisher.store().wait(publisher.tree(artifact), 60)
    assert manifest.files["bin/kubelet"].sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert publisher.requests("kubelet.sha256") == 0


def test_what_is_cached_is_not_asked_for_again(publisher: Publisher) -> None:
    publisher.store().wait(publisher.tree(publisher.kubelet(), publisher.tools()), 60)
    publisher.mirror.reset()
    store = publisher.store()
    store.wait(publisher.tree(publisher.kubelet(), publisher.tools(), component="again"), 60)
    assert publisher.mirror.requests() == {}
    assert all(each.cached and each.state is TransferState.READY for each in store.transfers())


def test_a_damaged_cache_is_fetched_anew(publisher: Publisher) -> None:
    publisher.store().wait(publisher.tree(publisher.tools()), 60)
    cached = next(publisher.room.glob("cache/*/tools.tar.gz"))
    cached.write_bytes(cached.read_bytes()[:-1] + b"?")
    publisher.store().wait(publisher.tree(publisher.tools(), component="again"), 60)
    assert publisher.requests("tools.tar.gz") == 2


def test_a_tree_that_is_staged_is_used_as_it_is_unless_it_was_altered(publisher: Publisher) -> None:
    tree = publisher.tree(publisher.tools())
    first = publisher.store().wait(tree, 60)
    inode = (tree.staging / "bin/tool").stat().st_ino
    assert publisher.store().wait(tree, 60) == first
    assert (tree.staging / "bin/tool").stat().st_ino == inode
    with (tree.staging / "bin/tool").open("r+b") as file:
        file.write(b"altered")
    assert publisher.store().wait(tree, 60) == first
    assert (tree.staging / "bin/tool").read_bytes().startswith(b"#!/bin/sh")


def test_a_slow_server_is_waited_for(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, SlowFault(rate=1 << 20))
    assert publisher.store(stall_seconds=2.0).wait(publisher.tree(publisher.kubelet()), 60)
    assert publisher.requests("kubelet") == 1


def test_a_stalled_download_is_resumed(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StallFault(), times=1)
    assert publisher.store(stall_seconds=0.3).wait(publisher.tree(publisher.kubelet()), 60)
    assert publisher.sent("kubelet") < 2 * WHOLE
    assert any(each.startswith("bytes=") for each in publisher.ranges("kubelet", 2))


def test_a_download_that_is_cut_is_resumed_again_and_again(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, CutFault(), times=5)  # more often than there are attempts, but each got further
    assert publisher.store().wait(publisher.tree(publisher.kubelet()), 60)
    assert publisher.sent("kubelet") < 2 * WHOLE
    first, *others = publisher.ranges("kubelet", 6)
    assert first == "-"
    assert len(others) == 5
    assert all(each.startswith("bytes=") for each in others)


def test_what_was_fetched_before_the_store_was_closed_is_kept(publisher: Publisher) -> None:
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


def test_wrong_bytes_are_fetched_anew_once(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, CorruptFault(), times=1)
    assert publisher.store().wait(publisher.tree(publisher.kubelet()), 60)
    assert publisher.requests("kubelet") == 2


def test_wrong_bytes_are_refused_with_both_hashes(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, CorruptFault())
    error = refusal(publisher.store(), publisher.tree(publisher.kubelet()))
    assert error.name == "artifact-checksum-mismatch"
    assert error.message.count("sha256:") == 2
    assert publisher.url("kubelet") in error.message
    assert publisher.requests("kubelet") == 2
    assert not list(publisher.room.glob("cache/*/kubelet*"))


def test_a_checksum_of_another_file_is_refused(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, ChecksumFault())
    assert refusal(publisher.store(), publisher.tree(publisher.kubelet())).name == "artifact-checksum-mismatch"


def test_what_nobody_vouches_for_is_refused(publisher: Publisher) -> None:
    artifact = publisher.kubelet(url=publisher.url("orphan"), checksums=(publisher.url("orphan.sha256"),))
    error = refusal(publisher.store(), publisher.tree(artifact))
    assert error.name == "artifact-checksum-missing"
    assert publisher.requests("orphan") == 0


def test_what_is_missing_is_not_asked_for_twice(publisher: Publisher) -> None:
    artifact = publisher.kubelet(url=publisher.url("nothing"), digest="0" * 64)
    error = refusal(publisher.store(), publisher.tree(artifact))
    assert (error.name, error.retryable) == ("artifact-not-found", False)
    assert publisher.url("nothing") in error.message
    assert publisher.requests("nothing") == 1


def test_a_server_that_is_away_for_a_while_is_asked_again(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StatusFault(503, retry_after=1), times=1)
    publisher.mirror.add(KUBELET, StatusFault(429), times=1)
    assert publisher.store().wait(publisher.tree(publisher.kubelet()), 60)
    assert publisher.requests("kubelet") == 3


def test_a_server_that_stays_away_is_given_up(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StatusFault(503))
    error = refusal(publisher.store(), publisher.tree(publisher.kubelet()))
    assert (error.name, error.retryable) == ("artifact-unreachable", True)
    assert "503" in error.message
    assert publisher.requests("kubelet") == 3


def test_a_server_that_refuses_us_is_not_asked_twice(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StatusFault(403))
    assert refusal(publisher.store(), publisher.tree(publisher.kubelet())).name == "artifact-request-rejected"
    assert publisher.requests("kubelet") == 1


def test_a_certificate_that_is_not_trusted_is_named(publisher: Publisher) -> None:
    error = refusal(publisher.store(ca_file=None), publisher.tree(publisher.kubelet()))
    assert (error.name, error.retryable) == ("artifact-unreachable", False)
    assert "certificate" in error.message
    assert "not trusted" in error.message


def test_a_port_where_nobody_listens_is_named(publisher: Publisher) -> None:
    artifact = publisher.kubelet(url="https://localhost:1/kubelet", digest="0" * 64)
    error = refusal(publisher.store(), publisher.tree(artifact))
    assert error.name == "artifact-unreachable"
    assert "localhost:1 refused the connection" in error.message


def test_a_name_that_does_not_exist_is_named(publisher: Publisher) -> None:
    artifact = publisher.kubelet(url="https://nowhere.invalid/kubelet", digest="0" * 64)
    assert "DNS" in refusal(publisher.store(), publisher.tree(artifact)).message


def test_a_ca_file_that_is_none_is_named(publisher: Publisher) -> None:
    store = publisher.store(ca_file="/dev/null")
    assert refusal(store, publisher.tree(publisher.kubelet())).name == "ca-file-invalid"


def test_a_hostile_archive_leaves_nothing(publisher: Publisher) -> None:
    sums = (publisher.url("hostile.tar.gz.sha256"),)
    files = (ArtifactFile("bin/good", "bin/good"),)
    artifact = publisher.kubelet(url=publisher.url("hostile.tar.gz"), files=files, checksums=sums)
    error = refusal(publisher.store(), publisher.tree(artifact))
    assert error.name == "archive-unsafe"
    assert "../../etc/cron.d/evil" in error.message


def test_the_mirror_is_asked_in_the_publishers_place_and_both_are_named(publisher: Publisher) -> None:
    artifact = publisher.kubelet(url="https://v1/kubelet", checksums=("https://v1/kubelet.sha256",))
    tree = publisher.tree(artifact)
    assert publisher.store(base_url=f"{publisher.base}/").wait(tree, 60)
    lost = publisher.kubelet(url="https://v1/lost", digest="0" * 64)
    error = refusal(publisher.store(base_url=publisher.base), publisher.tree(lost, component="lost"))
    assert error.name == "artifact-not-found"
    assert f"{publisher.base}/v1/lost" in error.message
    assert "https://v1/lost" in error.message


def test_whoever_waits_too_short_is_told_how_far_it_is(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StallFault())
    store, tree = publisher.store(), publisher.tree(publisher.kubelet())
    with pytest.raises(ArtifactError) as caught:
        store.wait(tree, 0.05)
    assert (caught.value.name, caught.value.retryable) == ("artifact-timeout", True)


def test_a_plain_program_is_shared_with_the_cache(publisher: Publisher) -> None:
    tree = publisher.tree(publisher.kubelet())
    publisher.store().wait(tree, 60)
    cached = next(publisher.room.glob("cache/*/kubelet"))
    assert cached.samefile(tree.staging / "bin/kubelet")


def test_progress_is_told_from_waiting_to_ready(publisher: Publisher) -> None:
    seen: list[Transfer] = []
    store, tree = publisher.store(observe=seen.append), publisher.tree(publisher.kubelet())
    store.wait(tree, 60)
    states = list(dict.fromkeys(each.state for each in seen))
    assert states == [TransferState.FETCHING, TransferState.UNPACKING, TransferState.READY]
    assert (seen[-1].done, seen[-1].total, seen[-1].cached) == (WHOLE, WHOLE, False)
    assert store.transfers() == [seen[-1]]


def test_what_two_trees_share_is_fetched_once(publisher: Publisher) -> None:
    trees = [publisher.tree(publisher.kubelet(), component=name) for name in ("one", "two", "three")]
    store = publisher.store()
    store.prepare(trees)
    for tree in trees:
        assert store.wait(tree, 60)
    assert publisher.requests("kubelet") == 1


def test_one_thread_is_enough(publisher: Publisher) -> None:
    trees = [
        publisher.tree(publisher.kubelet(), publisher.tools()),
        publisher.tree(publisher.runc(), component="runc"),
    ]
    store = publisher.store(parallel=1)
    store.prepare(trees)
    assert [len(store.wait(tree, 60).files) for tree in trees] == [2, 1]


def test_a_tree_that_failed_can_be_tried_again(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StatusFault(503))
    store, tree = publisher.store(), publisher.tree(publisher.kubelet())
    refusal(store, tree)
    publisher.mirror.reset()
    store.prepare([tree])
    assert store.wait(tree, 60)
    tree.staging.rename(tree.staging.with_name("in-place"))
    store.prepare([tree])
    assert store.wait(tree, 60)


def test_what_was_fetched_before_the_program_was_killed_is_kept(publisher: Publisher) -> None:
    publisher.mirror.add(KUBELET, StallFault(after=ByteAmount.parse("60%")))
    tree = publisher.tree(publisher.kubelet(), publisher.runc())
    program = (
        "from pathlib import Path, PosixPath\n"
        "from aks_flex_node.agent.artifacts import *\n"
        f"ArtifactStore({publisher.room / 'cache'!r}, {publisher.sources!r}).wait({tree!r}, 60)\n"
    )
    process = spawn((sys.executable, "-c", program), log=publisher.room / "log")
    until(lambda: not process.alive or (has_begun(publisher) and publisher.requests("runc.amd64") == 1))
    assert process.alive, (publisher.room / "log").read_text()
    process.kill(signal.SIGKILL)
    until(lambda: not process.alive)
    publisher.mirror.reset()
    assert sorted(publisher.store().wait(tree, 60).files) == ["bin/kubelet", "bin/runc"]
    assert any(each.startswith("bytes=") for each in publisher.ranges("kubelet", 2))
    assert publisher.sent("kubelet") < WHOLE
    assert list(tree.staging.parent.iterdir()) == [tree.staging]


def has_begun(publisher: Publisher) -> bool:
    return any(path.stat().st_size > WHOLE // 4 for path in publisher.room.glob("cache/*/kubelet.partial"))
