"""Writes an offline bundle: fetches all artifacts of a configuration and packs them with their manifest."""

from __future__ import annotations

import io
import tarfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.bundle import BUNDLE_MANIFEST, BundleEntry, BundleManifest
from aks_flex_node.agent.artifacts.cache import ArtifactCache, VerifiedFile
from aks_flex_node.agent.artifacts.disk_space import explain_disk_full, make_directory, remove_tree
from aks_flex_node.agent.artifacts.download import TransferProgress
from aks_flex_node.agent.artifacts.fetcher import ArtifactFetcher
from aks_flex_node.agent.artifacts.tree_build import copy_file
from aks_flex_node.agent.artifacts.trust import LocalDigests
from aks_flex_node.agent.http.download_options import DownloadOptions, url_identity
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import Retrier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aks_flex_node.agent.artifacts.digest import TrustedDigest
    from aks_flex_node.agent.artifacts.model import Artifact, ArtifactTree

COMPRESSED_SUFFIXES = (".tar.gz", ".tgz")

FilesByArtifact = dict["Artifact", VerifiedFile]


def make_bundle(
    trees: Sequence[ArtifactTree],
    sources: DownloadOptions,
    cache: Path,
    target: Path,
    arch: str,
    *,
    digests: LocalDigests = LocalDigests(),  # noqa: B008 - frozen
) -> BundleManifest:
    """Creates a directory with every artifact of the trees, or a tar if the name of the target ends like one."""
    # An older bundle is replaced, nothing else.
    if target.is_dir() and any(target.iterdir()) and not (target / BUNDLE_MANIFEST).exists():
        raise ArtifactError(
            "offline-bundle-exists",
            f"{target} already exists and is not a bundle.",
            "Use a directory that does not exist, or a file name that ends in .tar or .tar.gz.",
        )
    needed = {url_identity(artifact.url): artifact for tree in trees for artifact in tree.artifacts}
    blobs = fetch_all(list(needed.values()), sources, ArtifactCache(cache), digests)
    manifest = BundleManifest(arch, tuple(bundle_entry(artifact, blob) for artifact, blob in blobs.items()))
    partial = target.with_name(f"{target.name}.partial")
    remove_tree(partial)
    make_directory(target.parent)
    try:
        with explain_disk_full(target, sum(blob.size for blob in blobs.values())):
            write_bundle(manifest, blobs, partial, target.name)
        remove_tree(target)
        partial.rename(target)
    finally:
        remove_tree(partial)
    return manifest


def find_digests(
    artifacts: Sequence[Artifact], sources: DownloadOptions, cache: Path, digests: LocalDigests
) -> list[TrustedDigest]:
    """Returns the digests of artifacts without downloading them: from this machine, or from their publishers."""
    with closing(
        ArtifactFetcher(ArtifactCache(cache), sources, Retrier(sources.attempts), digests, None)
    ) as fetching:
        return [fetching.trusted_digest(artifact) for artifact in artifacts]


def fetch_all(
    artifacts: Sequence[Artifact],
    sources: DownloadOptions,
    cache: ArtifactCache,
    digests: LocalDigests,
) -> FilesByArtifact:
    retrier = Retrier(sources.attempts)
    # A bundle that the configuration names is the one to be created, so it is not a source.
    fetching = ArtifactFetcher(cache, sources, retrier, digests, None)
    with ThreadPoolExecutor(sources.parallel) as pool:
        try:
            futures = [pool.submit(fetching.fetch, each, TransferProgress(each)) for each in artifacts]
            failed = next((each for each in as_completed(futures) if each.exception()), None)
            if failed:
                failed.result()
        finally:
            retrier.stopped.set()  # after a failure, stop the other downloads
            fetching.close()
    return {artifact: future.result() for artifact, future in zip(artifacts, futures, strict=True)}


def bundle_entry(artifact: Artifact, blob: VerifiedFile) -> BundleEntry:
    file = f"{blob.digest.folder}/{artifact.name}"
    return BundleEntry(
        artifact.component, artifact.version, url_identity(artifact.url), str(blob.digest), file, blob.size
    )


def write_bundle(manifest: BundleManifest, blobs: Mapping[Artifact, VerifiedFile], partial: Path, name: str) -> None:
    files = {entry.file: blob for entry, blob in zip(manifest.artifacts, blobs.values(), strict=True)}
    if name.endswith(COMPRESSED_SUFFIXES):
        with tarfile.open(partial, "w:gz", compresslevel=1) as tar:
            write_tar(manifest, files, tar)
    elif name.endswith(".tar"):
        with tarfile.open(partial, "w") as tar:
            write_tar(manifest, files, tar)
    else:
        make_directory(partial)
        for file, blob in files.items():
            make_directory((partial / file).parent)
            copy_file(blob, partial / file, 0o644)
        (partial / BUNDLE_MANIFEST).write_text(manifest.wire())


def write_tar(manifest: BundleManifest, files: Mapping[str, VerifiedFile], tar: tarfile.TarFile) -> None:
    """Writes the manifest first, so that it is found without reading the whole archive."""
    text = manifest.wire().encode()
    tar.addfile(tar_header(BUNDLE_MANIFEST, len(text)), io.BytesIO(text))
    for file, blob in files.items():
        with blob.path.open("rb") as source:
            source.seek(blob.offset)
            tar.addfile(tar_header(file, blob.size), source)


def tar_header(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info
