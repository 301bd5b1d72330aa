"""Temporary releases on the mirror: the agent of this checkout as another version, and programs that fail."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shutil
import tarfile
from typing import TYPE_CHECKING

from aks_flex_lab import node_agent
from aks_flex_lab.release_keys import sign_release
from aks_flex_lab.tools.artifacts import artifact_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.architecture import Architecture
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

SCRIPT = """#!/usr/bin/python3 -I
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from aks_flex_node.agent.cli import main
main()
"""
FAILING = """#!/bin/sh
case $1 in
    version) echo VERSION ;;
    config) ;;
    *) echo 'this agent was built to fail' >&2; exit 1 ;;
esac
"""
FAILING_KUBELET = """#!/bin/sh
echo 'E0101 00:00:00.000000 1 run.go:74] "command failed" err="this one was built to fail"' >&2
exit 1
"""


@contextlib.contextmanager
def broken_kubelet(lab: Lab, version: str, arch: Architecture | None = None) -> Iterator[str]:
    """Publishes a version of Kubernetes whose programs exit immediately; yields the version."""
    folder = artifact_tree(lab.toolbox) / f"dl.k8s.io/v{version}"
    platform = arch.value if arch else lab.toolbox.arch
    for program in ("kubelet", "kubectl", "kubeadm"):
        place = folder / f"bin/linux/{platform}/{program}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(FAILING_KUBELET)
        place.with_name(f"{program}.sha256").write_text(hashlib.sha256(FAILING_KUBELET.encode()).hexdigest())
    try:
        yield version
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def published(lab: Lab, machine: EdgeMachine, version: str, *, works: bool) -> Iterator[None]:
    """Publishes a release at its usual URL, for the duration of the context."""
    folder = artifact_tree(lab.toolbox) / f"github.com/Azure/AKSFlexNode/releases/download/v{version}"
    folder.mkdir(parents=True)
    archive = folder / f"aks-flex-node-{version}-linux-{lab.toolbox.arch}.tar.gz"
    try:
        with tarfile.open(archive, "w:gz", compresslevel=1) as made:
            _script(made, SCRIPT if works else FAILING.replace("VERSION", version))
            if works:
                _add_tree(made, node_agent.agent_tree(machine), version)
            else:
                _add(made, "lib/README", b"nothing\n", 0o644)
        sign_release(folder, machine.layout.cache)
        yield
    finally:
        shutil.rmtree(folder)


def _script(made: tarfile.TarFile, text: str) -> None:
    _add(made, "bin/aks-flex-node", text.encode(), 0o755)


def _add(made: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    made.addfile(member, io.BytesIO(content))


def _add_tree(made: tarfile.TarFile, tree: Path, version: str) -> None:
    package = "aks_flex_node/__init__"
    for path in sorted(tree.rglob("*")):
        name = str(path.relative_to(tree))
        if not path.is_file() or name.startswith("aks_flex_node/__pycache__/__init__"):
            continue
        content = path.read_bytes()
        if name == f"{package}.py":
            content = re.sub(rb'__version__ = ".*"', f'__version__ = "{version}"'.encode(), content)
        _add(made, f"lib/{name}", content, 0o644)
