"""Tests of offline bundles: created from a real publisher and used without one."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.artifacts.bundle_writer import make_bundle
from aks_flex_node.agent.artifacts.cache import clean_cache
from aks_flex_node.agent.artifacts.model import ArtifactFile
from aks_flex_node.errors import ArtifactError
from tests.service.agent.http_fakes import refusal

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.agent.artifacts.model import ArtifactTree
    from tests.service.agent.http_fakes import Publisher

KINDS = ("bundle", "bundle.tar", "bundle.tar.gz")


@pytest.fixture
def tree(publisher: Publisher) -> ArtifactTree:
    return publisher.tree(publisher.kubelet(), publisher.tools())


def bundled(publisher: Publisher, tree: ArtifactTree, name: str) -> Path:
    target = publisher.room / name
    made = make_bundle([tree], publisher.sources, publisher.room / "cache", target, "amd64")
    assert [entry.size > 0 for entry in made.artifacts] == [True, True]
    publisher.mirror.reset()
    return target


@pytest.mark.parametrize("kind", KINDS)
def test_bundle_serves_all_artifacts_offline(publisher: Publisher, tree: ArtifactTree, kind: str) -> None:
    expected = publisher.fetch(*tree.artifacts, component=tree.component)
    target = bundled(publisher, tree, kind)
    offline = publisher.store(bundle=str(target), cache="elsewhere")
    again = publisher.tree(*tree.artifacts, component="offline")
    assert offline.wait(again, 60).files == expected.files
    assert publisher.mirror.requests() == {}
    assert all(each.cached for each in offline.transfers())


def test_artifact_shared_by_two_trees_is_bundled_once(publisher: Publisher, tree: ArtifactTree) -> None:
    other = publisher.tree(
        replace(publisher.tools(), files=(ArtifactFile("bin/tool", "bin/renamed"),)), component="other"
    )
    made = make_bundle([tree, other], publisher.sources, publisher.room / "cache", publisher.room / "b.tar", "amd64")
    assert [entry.url for entry in made.artifacts] == [publisher.url("kubelet"), publisher.url("tools.tar.gz")]
    offline = publisher.store(bundle=str(publisher.room / "b.tar"), cache="elsewhere")
    assert list(offline.wait(other, 60).files) == ["bin/renamed"]


@pytest.mark.parametrize("kind", KINDS)
def test_incomplete_bundle_error_names_missing_artifact(publisher: Publisher, tree: ArtifactTree, kind: str) -> None:
    target = bundled(publisher, tree, kind)
    lacking = publisher.tree(publisher.runc(), component="runc")
    error = refusal(publisher.store(bundle=str(target), cache="elsewhere"), lacking)
    assert error.name == "offline-bundle-incomplete"
    assert publisher.url("runc.amd64") in error.message


@pytest.mark.parametrize("kind", ["bundle", "bundle.tar"])
def test_altered_bundle_error_names_file(publisher: Publisher, tree: ArtifactTree, kind: str) -> None:
    target = bundled(publisher, tree, kind)
    file = next(target.glob("*/kubelet")) if target.is_dir() else target
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2 if target.is_dir() else 200_000)
        opened.write(b"altered")
    error = refusal(publisher.store(bundle=str(target)), tree)
    assert error.name == "offline-bundle-corrupt"
    assert "kubelet" in error.message


def test_bundle_with_missing_file_is_reported_with_its_name(publisher: Publisher, tree: ArtifactTree) -> None:
    target = bundled(publisher, tree, "bundle")
    next(target.glob("*/tools.tar.gz")).unlink()
    error = refusal(publisher.store(bundle=str(target)), tree)
    assert error.name == "offline-bundle-incomplete"
    assert "tools.tar.gz" in error.message


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        ("{", "is invalid"),
        ('{"format": 99}', "format 99 is not supported"),
        ('{"format": 1, "arch": "amd64"}', "artifacts"),
    ],
)
def test_invalid_bundle_manifest_is_refused(publisher: Publisher, tree: ArtifactTree, wire: str, reason: str) -> None:
    target = bundled(publisher, tree, "bundle")
    (target / "manifest.json").write_text(wire)
    error = refusal(publisher.store(bundle=str(target)), tree)
    assert error.name == "offline-bundle-corrupt"
    assert reason in error.message


def test_bundle_manifest_path_outside_bundle_is_refused(publisher: Publisher, tree: ArtifactTree) -> None:
    target = bundled(publisher, tree, "bundle")
    wire = json.loads((target / "manifest.json").read_text())
    for entry in wire["artifacts"]:
        entry["file"] = f"../bundle/{entry['file']}"
    (target / "manifest.json").write_text(json.dumps(wire))
    assert refusal(publisher.store(bundle=str(target)), tree).name == "offline-bundle-incomplete"


def test_missing_bundle_is_reported(publisher: Publisher, tree: ArtifactTree) -> None:
    error = refusal(publisher.store(bundle="/nowhere/bundle.tar"), tree)
    assert error.name == "offline-bundle-corrupt"
    assert "/nowhere/bundle.tar" in error.message


def test_configured_digest_overrides_bundle_digest(publisher: Publisher, tree: ArtifactTree) -> None:
    target = bundled(publisher, tree, "bundle.tar")
    pinned = publisher.tree(publisher.kubelet(digest="sha256:" + "0" * 64))
    assert refusal(publisher.store(bundle=str(target)), pinned).name == "offline-bundle-corrupt"


def test_bundle_archive_starts_with_manifest_owned_by_root(publisher: Publisher, tree: ArtifactTree) -> None:
    with tarfile.open(bundled(publisher, tree, "bundle.tar")) as tar:
        names = [(info.name, info.uid, info.mode) for info in tar]
    assert names[0] == ("manifest.json", 0, 0o644)
    assert len(names) == 3


def test_bundle_replaces_older_bundle_but_no_other_directory(publisher: Publisher, tree: ArtifactTree) -> None:
    target = bundled(publisher, tree, "bundle")
    assert bundled(publisher, tree, "bundle") == target
    (target / "manifest.json").unlink()
    with pytest.raises(ArtifactError) as caught:
        bundled(publisher, tree, "bundle")
    assert caught.value.name == "offline-bundle-exists"
    assert list(target.iterdir())


def test_failed_bundle_creation_leaves_no_files(publisher: Publisher) -> None:
    lost = publisher.tree(publisher.kubelet(url=publisher.url("lost"), digest="0" * 64), publisher.tools())
    target = publisher.room / "bundle.tar"
    with pytest.raises(ArtifactError) as caught:
        make_bundle([lost], publisher.sources, publisher.room / "cache", target, "amd64")
    assert caught.value.name == "artifact-not-found"
    assert not list(publisher.room.glob("bundle*"))


def test_cache_is_cleaned_except_kept_digests(publisher: Publisher, tree: ArtifactTree) -> None:
    cache = publisher.room / "cache"
    publisher.store().wait(tree, 60)
    kubelet, tools = next(cache.glob("*/kubelet")), next(cache.glob("*/tools.tar.gz"))
    size, freed = tools.stat().st_size, clean_cache(cache, {kubelet.parent.name.replace("-", ":")})
    assert freed >= size
    assert [path.name for path in cache.iterdir()] == [kubelet.parent.name]
    size = kubelet.stat().st_size
    assert clean_cache(cache, set()) < size  # the tree still links to it
    assert (tree.staging / "bin/kubelet").exists()
