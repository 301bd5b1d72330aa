"""Tests of trees that were built ahead: an update takes them over, and those that nothing needs are removed."""

from __future__ import annotations

import errno
import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts import tree_build
from aks_flex_node.agent.artifacts.cache import ArtifactCache, VerifiedFile, discard_staged
from aks_flex_node.agent.artifacts.digest import Digest, DigestSource
from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile, ArtifactTree, TreeManifest
from aks_flex_node.agent.artifacts.trust import LocalDigests

if TYPE_CHECKING:
    import pytest

URL = "https://publisher.example/runc"


def artifact(version: str) -> Artifact:
    return Artifact("runc", version, f"{URL}-{version}", (ArtifactFile("", "bin/runc"),), publisher_url=URL)


def build(root: Path, version: str) -> ArtifactTree:
    """Builds a tree ahead from a download in the cache; returns the tree of the update."""
    content = f"runc {version}".encode()
    digest, one = Digest("sha256", hashlib.sha256(content).hexdigest()), artifact(version)
    cache = ArtifactCache(root / "cache")
    with cache.locked(digest, time.sleep) as folder:
        (folder / "runc").write_bytes(content)
        cache.record_origin(digest, one, DigestSource.PUBLISHER)
    blob = cache.find(digest, "runc")
    assert isinstance(blob, VerifiedFile)
    blob = replace(blob, source=DigestSource.PUBLISHER)
    ahead = ArtifactTree("runc", version, (one,), root / "cache" / "next" / f"runc-{version}")
    tree_build.begin_staging(ahead)
    files = tree_build.stage_artifact(ahead, one, blob, lambda: None)
    tree_build.commit_staging(ahead, {one: (blob, files)})
    return replace(ahead, staging=root / "opt" / "runc" / f".{version}.flex-new", ahead=ahead.staging)


def adopt(tree: ArtifactTree, digests: LocalDigests | None = None) -> TreeManifest | None:
    return tree_build.adopt_ahead(tree, (digests or LocalDigests()).find)


def downloads(root: Path) -> int:
    return len(list((root / "cache").glob("sha256-*")))


def test_tree_built_ahead_is_moved_to_its_staging_path(tmp_path: Path) -> None:
    tree = build(tmp_path, "1.5.2")
    assert adopt(tree) == tree_build.find_staged(tree) is not None
    assert tree.ahead
    assert not tree.ahead.exists()
    assert adopt(tree) is None


def test_tree_built_ahead_is_copied_from_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, rename = build(tmp_path, "1.5.2"), Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path == tree.ahead:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    assert adopt(tree) == tree_build.find_staged(tree) is not None
    assert tree.ahead
    assert not tree.ahead.exists()
    assert not tree_build.partial_dir(tree).exists()


def test_altered_tree_built_ahead_is_not_used(tmp_path: Path) -> None:
    tree = build(tmp_path, "1.5.2")
    assert tree.ahead
    (tree.ahead / "bin/runc").write_bytes(b"runc 6.6.6")
    assert adopt(tree) is None
    assert not tree.staging.exists()


def test_tree_built_ahead_with_another_pin_is_not_used(tmp_path: Path) -> None:
    tree = build(tmp_path, "1.5.2")
    pinned = replace(tree.artifacts[0], digest=f"sha256:{'0' * 64}")
    assert adopt(replace(tree, artifacts=(pinned,))) is None


def test_tree_built_ahead_is_not_used_if_another_file_is_pinned(tmp_path: Path) -> None:
    tree = build(tmp_path, "1.5.2")
    assert adopt(tree, LocalDigests(administrator={tree.artifacts[0].url: Digest("sha256", "0" * 64)})) is None
    assert not tree.staging.exists()
    assert adopt(tree)


def test_trees_that_are_no_longer_next_are_removed_with_their_downloads(tmp_path: Path) -> None:
    old, new = build(tmp_path, "1.5.1"), build(tmp_path, "1.5.2")
    folder = tmp_path / "cache" / "next"
    (folder / "staged.json").write_text(json.dumps({"identity": "old", "trees": ["runc-1.5.1"]}))
    (folder / "runc-1.5.0.partial").mkdir()
    assert downloads(tmp_path) == 2
    removed = discard_staged(folder, tmp_path / "cache", ["runc-1.5.2", "runc-9"])
    assert removed[0] == "staged.json"  # before the trees that it lists
    assert sorted(removed) == ["runc-1.5.0.partial", "runc-1.5.1", "staged.json"]
    assert downloads(tmp_path) == 1
    assert adopt(old) is None
    assert adopt(new)


def test_folder_is_removed_when_nothing_is_next(tmp_path: Path) -> None:
    build(tmp_path, "1.5.2")
    discard_staged(tmp_path / "cache" / "next", tmp_path / "cache", [])
    assert list((tmp_path / "cache").iterdir()) == []
    assert discard_staged(tmp_path / "cache" / "next", tmp_path / "cache", []) == []
