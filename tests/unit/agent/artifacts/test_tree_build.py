"""Tests of program trees, manifests, the cache and free disk space."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.artifacts import tree_build
from aks_flex_node.agent.artifacts.cache import ArtifactCache, VerifiedFile, clean_cache
from aks_flex_node.agent.artifacts.digest import Digest, DigestSource
from aks_flex_node.agent.artifacts.disk_space import explain_disk_full, remove_tree, require_space
from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile, ArtifactTree, TreeManifest
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = b"#!/bin/sh\n"
DIGEST = Digest("sha256", hashlib.sha256(CONTENT).hexdigest())
URL = "https://publisher.example/runc"
RUNC = Artifact("runc", "1.5.2", URL, (ArtifactFile("", "bin/runc"),), publisher_url=URL)


@pytest.fixture
def tree(tmp_path: Path) -> ArtifactTree:
    return ArtifactTree("runc", "1.5.2", (RUNC,), tmp_path / "opt" / "runc-1.5.2")


@pytest.fixture
def blob(tmp_path: Path) -> VerifiedFile:
    cache = ArtifactCache(tmp_path / "cache")
    with cache.locked(DIGEST, time.sleep) as folder:
        (folder / "runc").write_bytes(CONTENT)
        cache.record_origin(DIGEST, RUNC, DigestSource.PUBLISHER)
    found = cache.find(DIGEST, "runc")
    assert found
    return found


def stage(tree: ArtifactTree, blob: VerifiedFile) -> TreeManifest:
    tree_build.begin_staging(tree)
    return tree_build.commit_staging(tree, {RUNC: (blob, tree_build.stage_artifact(tree, RUNC, blob, lambda: None))})


def test_staging_replaces_leftovers_of_a_killed_run(tree: ArtifactTree, blob: VerifiedFile) -> None:
    for left in (tree_build.partial_dir(tree), tree.staging):
        (left / "bin").mkdir(parents=True)
        (left / "bin/runc").write_bytes(b"half")
        (left / "bin/other").write_bytes(b"old")
    stage(tree, blob)
    assert sorted(path.name for path in tree.staging.rglob("*")) == [".manifest.json", "bin", "runc"]
    assert not tree_build.partial_dir(tree).exists()


@pytest.mark.parametrize("damage", ["content", "mode", "gone", "manifest", "link"])
def test_altered_staged_tree_is_not_considered_complete(tree: ArtifactTree, blob: VerifiedFile, damage: str) -> None:
    stage(tree, blob)
    file = tree.staging / "bin/runc"
    match damage:
        case "content":
            file.write_bytes(CONTENT[::-1])
        case "mode":
            file.chmod(0o4755)
        case "gone":
            file.unlink()
        case "manifest":
            (tree.staging / ".manifest.json").write_text("{}")
        case "link":
            file.rename(tree.staging / "aside")
            file.symlink_to(tree.staging / "aside")
    assert tree_build.find_staged(tree) is None


def test_staged_tree_of_different_artifacts_does_not_match(tree: ArtifactTree, blob: VerifiedFile) -> None:
    stage(tree, blob)
    others = (
        Artifact("runc", "1.5.2", "https://other.example/runc", RUNC.files),
        Artifact("runc", "1.5.2", RUNC.url, (ArtifactFile("", "sbin/runc"),)),
        Artifact("runc", "1.5.2", RUNC.url, RUNC.files, digest="0" * 64),
    )
    for other in others:
        assert tree_build.find_staged(ArtifactTree("runc", "1.5.2", (other,), tree.staging)) is None
    assert tree_build.find_staged(ArtifactTree("runc", "1.5.3", (RUNC,), tree.staging)) is None


def test_placed_file_is_hard_linked_to_cache_unless_its_mode_differs(tmp_path: Path, blob: VerifiedFile) -> None:
    for name, mode, shared in (("first", 0o755, True), ("second", 0o755, True), ("third", 0o700, False)):
        tree_build.place_file(blob, tmp_path / name, ArtifactFile("", name, mode))
        assert (tmp_path / name).samefile(blob.path) is shared
        assert (tmp_path / name).read_bytes() == CONTENT
        assert (tmp_path / name).stat().st_mode & 0o7777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_placed_file_is_copied_when_the_cached_file_has_another_owner(tmp_path: Path, blob: VerifiedFile) -> None:
    os.chown(blob.path, 1000, 1000)
    tree_build.place_file(blob, tmp_path / "one", ArtifactFile("", "one"))
    assert (tmp_path / "one").stat().st_uid == 0
    assert (tmp_path / "one").read_bytes() == CONTENT


def test_place_file_copies_a_byte_range_out_of_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "bundle.tar").write_bytes(b"before" + CONTENT + b"after")
    blob = VerifiedFile(tmp_path / "bundle.tar", len(CONTENT), DIGEST, DIGEST.value, offset=6)
    tree_build.place_file(blob, tmp_path / "runc", ArtifactFile("", "runc"))
    assert (tmp_path / "runc").read_bytes() == CONTENT


def test_cache_finds_digest_by_url_and_discards_damaged_files(tmp_path: Path, blob: VerifiedFile) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    assert cache.published_digest(RUNC) == DIGEST
    assert cache.published_digest(replace(RUNC, publisher_url="https://publisher.example/other")) is None
    assert cache.published_digest(replace(RUNC, publisher_url="")) is None
    assert cache.find(Digest("sha256", "0" * 64), "runc") is None
    blob.path.write_bytes(b"damaged")
    assert cache.find(DIGEST, "runc") is None
    assert not blob.path.exists()


def test_cache_cleanup_skips_locked_artifacts(tmp_path: Path, blob: VerifiedFile) -> None:
    with ArtifactCache(tmp_path / "cache").locked(DIGEST, time.sleep):
        assert clean_cache(tmp_path / "cache", set()) == 0
    assert clean_cache(tmp_path / "cache", set()) >= len(CONTENT)
    assert list((tmp_path / "cache").iterdir()) == []


def test_cache_cleanup_handles_missing_directory_and_foreign_entries(tmp_path: Path, blob: VerifiedFile) -> None:
    assert clean_cache(tmp_path / "nowhere", set()) == 0
    (tmp_path / "cache" / "lost+found").mkdir()
    (blob.path.parent / "late.partial").write_bytes(b"half")
    assert clean_cache(tmp_path / "cache", set()) >= len(CONTENT)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lost+found"]


def test_full_disk_error_names_the_path_and_the_missing_space(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as caught, explain_disk_full(tmp_path / "kubelet", 82_000_000):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.name == "disk-full"
    assert f"{tmp_path}/kubelet" in caught.value.message
    assert "82.0 MB" in caught.value.message
    with pytest.raises(ArtifactError):
        require_space(tmp_path / "huge", 1 << 60)
    with pytest.raises(PermissionError), explain_disk_full(tmp_path, 1):
        raise PermissionError


def test_remove_tree_keeps_the_targets_of_symlinks(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("kept")
    (tmp_path / "gone/deep").mkdir(parents=True)
    (tmp_path / "gone/deep/link").symlink_to(tmp_path / "kept")
    (tmp_path / "door").symlink_to(tmp_path / "kept")
    for name in ("gone", "door", "nothing"):
        remove_tree(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept/file").exists()
