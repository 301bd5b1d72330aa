"""A release of containerd on the mirror that was built to fail, to see what a node or a fleet does with it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import tarfile
from typing import TYPE_CHECKING

from aks_flex_lab.tools.artifacts import artifact_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab

FAILING_CONTAINERD = """#!/bin/sh
echo 'containerd: this one was built to fail' >&2
exit 1
"""
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")


@contextlib.contextmanager
def broken_containerd(lab: Lab, version: str) -> Iterator[str]:
    """Publishes a version of containerd that exits immediately; yields the version."""
    folder = artifact_tree(lab.toolbox) / f"github.com/containerd/containerd/releases/download/v{version}"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"containerd-{version}-linux-{lab.toolbox.arch}.tar.gz"
    try:
        with tarfile.open(archive, "w:gz", compresslevel=1) as made:
            for program in PROGRAMS:
                member = tarfile.TarInfo(f"bin/{program}")
                member.size, member.mode = len(FAILING_CONTAINERD), 0o755
                made.addfile(member, io.BytesIO(FAILING_CONTAINERD.encode()))
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        archive.with_name(f"{archive.name}.sha256sum").write_text(f"{digest}  {archive.name}\n")
        yield version
    finally:
        shutil.rmtree(folder, ignore_errors=True)
