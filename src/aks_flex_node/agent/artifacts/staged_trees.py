"""Removes trees that were staged ahead and are no longer needed, with their downloads."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.cache import discard
from aks_flex_node.agent.artifacts.digest import Digest
from aks_flex_node.agent.artifacts.disk_space import remove_tree
from aks_flex_node.agent.artifacts.model import TreeManifest

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


def discard_staged(folder: Path, cache: Path, keep: Collection[str]) -> list[str]:
    """Removes the trees in a directory, except those to keep, and the downloads that only they were built from.
    Removes the directory itself if none is kept. Returns the names of what was removed.
    """
    if not folder.is_dir():
        return []
    others = [each for each in folder.iterdir() if each.name not in keep]
    # Files first: the record of what is staged must not outlive a tree.
    removed = [each.name for each in sorted(others, key=lambda each: (each.is_dir(), each.name))]
    used = {digest for name in keep for digest in _digests(folder / name)}
    unused = {digest for name in removed for digest in _digests(folder / name)} - used
    for name in removed:
        remove_tree(folder / name)
    for digest in unused:
        with suppress(FileNotFoundError):
            discard(cache / digest.folder)
    if not keep:
        folder.rmdir()
    return removed


def _digests(tree: Path) -> set[Digest]:
    manifest = TreeManifest.read(tree)
    texts = [each.digest.rpartition(":")[2] for each in manifest.artifacts] if manifest else []
    return {digest for text in texts if (digest := Digest.of(text))}
