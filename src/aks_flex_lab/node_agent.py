"""Installs the agent of this checkout in a machine, and writes a configuration for the lab's cluster.

The agent's tree is built once for each Python version, cached, and copied into machines.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aks_flex_node
from aks_flex_lab import network, release_keys
from aks_flex_lab.errors import HostError
from aks_flex_lab.files import file_lock
from aks_flex_lab.machines.base_system import BaseSystem, DebianRelease
from aks_flex_lab.processes import run
from aks_flex_lab.versions import NodeVersions
from aks_flex_node.agent.artifacts.trust import load_local_digests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_lab.architecture import Architecture
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


INSTALL_DIRECTORY = "usr/lib/aks-flex-node"
UNUSED_SECONDS = 7200.0  # after which the tree of another checkout is removed
COMMAND = "usr/bin/aks-flex-node"
CHECKSUMS_PATH = "etc/aks-flex-node/checksums.txt"
PYTHONS = {DebianRelease.BOOKWORM: "3.11", DebianRelease.TRIXIE: "3.13"}
PACKAGE = Path(aks_flex_node.__file__).parent
REQUIREMENTS = PACKAGE.parents[1] / "requirements" / "base.txt"
EXCLUDED = ("__pycache__",)
SCRIPT = f"""#!/usr/bin/python3 -I
import sys
sys.path.insert(0, "/{INSTALL_DIRECTORY}")
from aks_flex_node.agent.cli import main
main()
"""

# Compiles the second argument with the Python of the system in the first.
COMPILE_SCRIPT = """
root=$1 && mount --rbind /dev "$root/dev" && mount --bind "$2" "$root/mnt" && shift 2
exec chroot "$root" python3 -m compileall "$@"
"""


def install(machine: EdgeMachine) -> None:
    """Installs the agent of this checkout in a running machine."""
    tree = agent_tree(machine)
    machine.run("rm", "-rf", f"/{INSTALL_DIRECTORY}")
    machine.copy_in(tree, f"/{INSTALL_DIRECTORY}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        command = root / COMMAND
        command.parent.mkdir(parents=True)
        command.write_text(SCRIPT)
        command.chmod(0o755)
        write_trust(root, machine.layout.cache)
        # Copies files into a machine, without the attributes of the directories in which they are.
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            target = f"/{path.relative_to(root)}"
            script = 'mkdir -p "$(dirname "$1")" && base64 --decode >"$1" && chmod "$2" "$1"'
            mode = f"{path.stat().st_mode & 0o777:o}"
            machine.run("sh", "-c", script, "sh", target, mode, input=base64.b64encode(path.read_bytes()).decode())


def write_trust(root: Path, cache: Path) -> None:
    """Writes what the administrator of a machine decides: the lab's release key, and the hashes of its programs."""
    key = root / release_keys.PUBLIC_KEY_PATH
    key.parent.mkdir(parents=True, exist_ok=True)
    key.write_bytes(release_keys.public_key(cache))
    if checksums := own_checksums(cache / "artifacts"):
        (root / CHECKSUMS_PATH).write_text(checksums)


def own_checksums(trees: Path) -> str:
    """Returns the administrator's checksums file of a machine: the hashes of pinned programs as the lab serves them.

    The lab builds programs itself, so they differ from the publishers' files, whose hashes are pinned in the agent.
    """
    known: dict[str, str] = {}
    for tree in sorted(trees.glob("[!.]*/"), key=lambda tree: tree.stat().st_mtime):
        for url in load_local_digests(None).pins:
            file = tree / f"{url.removeprefix('https://')}.sha256"
            if file.is_file():
                known[url] = file.read_text().split()[0]
    return "".join(f"{value}  {url}\n" for url, value in known.items())


def agent_tree(machine: EdgeMachine) -> Path:
    """Returns the directory of the agent and its dependencies, compiled for the machine's Python."""
    trees = machine.layout.cache / "agents"
    total = hashlib.sha256(_requirements().read_bytes())
    for path in _sources():
        total.update(f"{path.relative_to(PACKAGE)}\n".encode() + path.read_bytes())
    key = f"{tree_name(machine)}-{total.hexdigest()[:12]}"
    with file_lock(trees / ".lock", "the agent's tree", wait=True):
        if not (trees / key).exists():
            _build_tree(machine, trees / key)
        os.utime(trees / key)
    return trees / key


def tree_name(machine: EdgeMachine) -> str:
    """Returns the first part of the name of a tree, which differs for every Python and architecture."""
    arch = foreign_architecture(machine)
    return f"{machine.record.system.value}-{arch.kernel_name}" if arch else machine.record.system.value


def foreign_architecture(machine: EdgeMachine) -> Architecture | None:
    """Returns the architecture of a virtual machine if it is another one than the host's."""
    arch = machine.record.arch
    return arch if arch and not arch.is_native else None


def _sources() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and not set(path.relative_to(PACKAGE).parts) & set(EXCLUDED)
    )


def _requirements() -> Path:
    if not REQUIREMENTS.exists():
        raise HostError(
            "checkout-required",
            "The agent can be installed in machines only from a checkout.",
            "Clone the repository, run `make setup`, and use its .venv/bin/aks-flex-lab.",
        )
    return REQUIREMENTS


def _build_tree(machine: EdgeMachine, target: Path) -> None:
    """Downloads the pinned packages, adds those of this checkout, and compiles all with the machine's Python."""
    python = PYTHONS[machine.record.system]
    parcel = target.parent / f".{target.name}.partial"
    shutil.rmtree(parcel, ignore_errors=True)
    uv = Path(sys.executable).parent / "uv"
    options = ["--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--link-mode", "copy"]
    if arch := foreign_architecture(machine):
        options += ["--python-platform", f"{arch.kernel_name}-manylinux_2_28"]
    run(
        uv,
        "pip",
        "install",
        *options,
        "--target",
        parcel,
        "--python-version",
        python,
        "-r",
        _requirements(),
        timeout=300,
    )
    for path in _sources():
        copy = parcel / "aks_flex_node" / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    _compile(machine, parcel)
    remove_unused(target.parent, tree_name(machine))
    parcel.rename(target)


def remove_unused(trees: Path, system: str) -> None:
    """Removes trees that no checkout has used for two hours. A lab of another checkout may be copying a newer one."""
    for old in trees.glob(f"{system}-*"):
        if time.time() - old.stat().st_mtime > UNUSED_SECONDS:
            shutil.rmtree(old)


def _compile(machine: EdgeMachine, parcel: Path) -> None:
    """Compiles a tree with the Python of the machine's release, for the path that it has in the machine.

    A container has this Python on any architecture of machines. It is mounted in a mount namespace that ends with it.
    """
    base = BaseSystem(machine.record.system, machine.layout.cache)
    base.build()
    words = ("-q", "-j2", "--invalidation-mode=unchecked-hash", "-s", "/mnt", "-p", f"/{INSTALL_DIRECTORY}", "/mnt")
    run("unshare", "--mount", "sh", "-c", COMPILE_SCRIPT, "sh", base.root, parcel, *words, timeout=600)


CONFIG_PATH = "/etc/aks-flex-node/config.json"


def configuration(
    lab: Lab, versions: NodeVersions | None = None, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns a configuration with a new bootstrap token; `changes` are merged into its sections."""
    versions = versions or NodeVersions()
    document: dict[str, Any] = {
        "azure": {"bootstrapToken": {"token": lab.cluster.bootstrap_token()}},
        "node": {
            "kubelet": {
                "serverURL": network.API_URL,
                "caCertData": base64.b64encode(lab.authority.certificate.read_bytes()).decode(),
                "dnsServiceIP": network.DNS_SERVICE,
            }
        },
        "kubernetes": {"version": versions.kubernetes},
        "containerd": {"version": versions.containerd},
        "runc": {"version": versions.runc},
        "cni": {"version": versions.cni},
        "npd": {"version": versions.npd},
    }
    return merge(document, changes or {})


def merge(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merges a document recursively into another one."""
    result = dict(document)
    for key, value in changes.items():
        below = result.get(key)
        result[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def write_configuration(machine: EdgeMachine, document: Mapping[str, Any], path: str = CONFIG_PATH) -> None:
    """Writes a configuration into a machine, readable by root only."""
    script = 'umask 077; mkdir -p "$(dirname "$1")"; cat >"$1"'
    machine.run("sh", "-c", script, "sh", path, input=json.dumps(document, indent=1))
