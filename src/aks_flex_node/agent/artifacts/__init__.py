"""Artifacts: fetches the programs of a node from their publishers and builds complete directory trees from them.

A tree passes through the modules in this order: `model` (what is needed), `trust` (who knows its digests), `store`
(worker threads), `fetcher`
(bundle, cache or network), `download` (one file, resumed and verified), `cache`, `unpack` (safe extraction, on
`archive`), `tree_build` (the complete staged tree). `bundle` and `bundle_writer` do the same for machines without a
network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile, ArtifactTree

if TYPE_CHECKING:
    from aks_flex_node.agent.artifacts.bundle import BundleEntry, BundleManifest
    from aks_flex_node.agent.artifacts.bundle_writer import find_digests, make_bundle
    from aks_flex_node.agent.artifacts.cache import CacheEntry, clean_cache, list_cache
    from aks_flex_node.agent.artifacts.download import Transfer, TransferState
    from aks_flex_node.agent.artifacts.model import StagedFile, TreeManifest
    from aks_flex_node.agent.artifacts.store import ArtifactStore
    from aks_flex_node.agent.http.download_options import DownloadOptions
    from aks_flex_node.retry import RetryBackoff

# All commands import the components, but few of them fetch artifacts. Modules that import TLS, tar or threads are
# therefore loaded on first access.
LAZY_EXPORTS = {
    "ArtifactStore": "aks_flex_node.agent.artifacts.store",
    "BundleEntry": "aks_flex_node.agent.artifacts.bundle",
    "BundleManifest": "aks_flex_node.agent.artifacts.bundle",
    "CacheEntry": "aks_flex_node.agent.artifacts.cache",
    "DownloadOptions": "aks_flex_node.agent.http.download_options",
    "RetryBackoff": "aks_flex_node.retry",
    "StagedFile": "aks_flex_node.agent.artifacts.model",
    "Transfer": "aks_flex_node.agent.artifacts.download",
    "TransferState": "aks_flex_node.agent.artifacts.download",
    "TreeManifest": "aks_flex_node.agent.artifacts.model",
    "clean_cache": "aks_flex_node.agent.artifacts.cache",
    "find_digests": "aks_flex_node.agent.artifacts.bundle_writer",
    "list_cache": "aks_flex_node.agent.artifacts.cache",
    "make_bundle": "aks_flex_node.agent.artifacts.bundle_writer",
}

__all__ = [
    "Artifact",
    "ArtifactFile",
    "ArtifactStore",
    "ArtifactTree",
    "BundleEntry",
    "BundleManifest",
    "CacheEntry",
    "DownloadOptions",
    "RetryBackoff",
    "StagedFile",
    "Transfer",
    "TransferState",
    "TreeManifest",
    "clean_cache",
    "find_digests",
    "list_cache",
    "make_bundle",
]


def __getattr__(name: str) -> Any:
    if name not in LAZY_EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(LAZY_EXPORTS[name]), name)
