"""Artifacts: the programs of a node, from their publishers to complete trees beside the places they will have.

A tree passes through the modules in this order: `trees` (what is wanted), `store` (the threads), `fetching` (bundle,
cache or network), `downloads` (one file, resumed and verified, by way of `persistence` and `connections`), `caches`
(where it is kept), `archives` (unpacked safely), `staging` (the complete tree) and `manifests` (what is in it).
`bundles` are the same files for a machine without a network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.artifacts.trees import Artifact, Tree, Wanted

if TYPE_CHECKING:
    from aks_flex_node.agent.artifacts.bundles import BundleEntry, BundleManifest
    from aks_flex_node.agent.artifacts.bundling import make_bundle
    from aks_flex_node.agent.artifacts.caches import Cached, clean, listing
    from aks_flex_node.agent.artifacts.manifests import Manifest, StagedFile
    from aks_flex_node.agent.artifacts.persistence import Pace
    from aks_flex_node.agent.artifacts.sources import Sources
    from aks_flex_node.agent.artifacts.store import Store
    from aks_flex_node.agent.artifacts.transfers import State, Transfer

# Every command imports the components, which say what they want; few of them fetch it. So all that takes TLS, tar and
# threads to import is imported by whoever asks for it.
PLACES = {
    "BundleEntry": "bundles",
    "BundleManifest": "bundles",
    "Cached": "caches",
    "Manifest": "manifests",
    "Pace": "persistence",
    "Sources": "sources",
    "StagedFile": "manifests",
    "State": "transfers",
    "Store": "store",
    "Transfer": "transfers",
    "clean": "caches",
    "listing": "caches",
    "make_bundle": "bundling",
}

__all__ = [
    "Artifact",
    "BundleEntry",
    "BundleManifest",
    "Cached",
    "Manifest",
    "Pace",
    "Sources",
    "StagedFile",
    "State",
    "Store",
    "Transfer",
    "Tree",
    "Wanted",
    "clean",
    "listing",
    "make_bundle",
]


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
