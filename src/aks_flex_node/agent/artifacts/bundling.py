"""Making an offline bundle: everything is fetched into the cache, and copied from there."""

from __future__ import annotations

import io
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.bundles import MANIFEST, Bundle, BundleEntry, BundleManifest
from aks_flex_node.agent.artifacts.caches import Blob, Cache
from aks_flex_node.agent.artifacts.connections import Network
from aks_flex_node.agent.artifacts.fetching import Fetching
from aks_flex_node.agent.artifacts.persistence import Pace, Persistence
from aks_flex_node.agent.artifacts.sources import Sources, identity
from aks_flex_node.agent.artifacts.space import make_folder, remove_tree, room_for
from aks_flex_node.agent.artifacts.staging import copy_file
from aks_flex_node.agent.artifacts.transfers import Progress
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from aks_flex_node.agent.artifacts.transfers import Transfer
    from aks_flex_node.agent.artifacts.trees import Artifact, Tree

PACKED = (".tar.gz", ".tgz")

Blobs = dict["Artifact", Blob]


def make_bundle(
    trees: Sequence[Tree],
    sources: Sources,
    cache: Path,
    target: Path,
    arch: str,
    *,
    observe: Callable[[Transfer], None] | None = None,
) -> BundleManifest:
    """A directory, or a tar when the target is named like one, with every artifact of the trees."""
    require_free(target)
    needed = {identity(artifact.url): artifact for tree in trees for artifact in tree.artifacts}
    blobs = fetch_all(list(needed.values()), sources, Cache(cache), observe)
    manifest = BundleManifest(arch, tuple(entry_of(artifact, blob) for artifact, blob in blobs.items()))
    partial = target.with_name(f"{target.name}.partial")
    remove_tree(partial)
    make_folder(target.parent)
    try:
        with room_for(target, sum(blob.size for blob in blobs.values())):
            write(manifest, blobs, partial, target.name)
        remove_tree(target)
        partial.rename(target)
    finally:
        remove_tree(partial)
    return manifest


def fetch_all(
    artifacts: Sequence[Artifact], sources: Sources, cache: Cache, observe: Callable[[Transfer], None] | None
) -> Blobs:
    stopped, network = threading.Event(), Network(sources)
    bundle = Bundle.at(sources.bundle, cache) if sources.bundle else None
    fetching = Fetching(cache, sources, network, Persistence(sources.attempts, Pace(), stopped), bundle)
    with ThreadPoolExecutor(sources.parallel) as pool:
        try:
            futures = [pool.submit(fetching.obtain, each, Progress(each, observe)) for each in artifacts]
            failed = next((each for each in as_completed(futures) if each.exception()), None)
            if failed:
                failed.result()
        finally:
            stopped.set()  # when one failed, the others need not go on
            network.close()
    return {artifact: future.result() for artifact, future in zip(artifacts, futures, strict=True)}


def entry_of(artifact: Artifact, blob: Blob) -> BundleEntry:
    file = f"{blob.digest.folder}/{artifact.name}"
    return BundleEntry(
        artifact.component, artifact.version, identity(artifact.url), str(blob.digest), file, blob.size
    )


def write(manifest: BundleManifest, blobs: Mapping[Artifact, Blob], partial: Path, name: str) -> None:
    files = {entry.file: blob for entry, blob in zip(manifest.artifacts, blobs.values(), strict=True)}
    if name.endswith(PACKED):
        with tarfile.open(partial, "w:gz", compresslevel=1) as tar:
            write_tar(manifest, files, tar)
    elif name.endswith(".tar"):
        with tarfile.open(partial, "w") as tar:
            write_tar(manifest, files, tar)
    else:
        write_folder(manifest, files, partial)


def write_folder(manifest: BundleManifest, files: Mapping[str, Blob], folder: Path) -> None:
    make_folder(folder)
    for file, blob in files.items():
        make_folder((folder / file).parent)
        copy_file(blob, folder / file, 0o644)
    (folder / MANIFEST).write_text(manifest.wire())


def write_tar(manifest: BundleManifest, files: Mapping[str, Blob], tar: tarfile.TarFile) -> None:
    """The manifest comes first, so that it is found without reading all the rest."""
    text = manifest.wire().encode()
    tar.addfile(describe(MANIFEST, len(text)), io.BytesIO(text))
    for file, blob in files.items():
        with blob.path.open("rb") as source:
            source.seek(blob.offset)
            tar.addfile(describe(file, blob.size), source)


def describe(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def require_free(target: Path) -> None:
    """An older bundle is replaced; anything else is not ours to take away."""
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).exists():
        raise ArtifactError(
            "bundle-target-taken",
            f"{target} is there already, and is not a bundle.",
            "Name a directory that does not exist yet, or a file that ends in .tar or .tar.gz.",
        )
