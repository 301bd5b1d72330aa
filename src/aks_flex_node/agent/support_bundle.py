"""Collects status, logs and system facts into an archive for support, with secrets redacted."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from typing import TYPE_CHECKING

from aks_flex_node import __version__
from aks_flex_node.agent import status
from aks_flex_node.agent.config.resolved import join_token, log_file
from aks_flex_node.agent.paths import CLUSTER_FACTS, DAEMON_STATE, FAILED_CONFIG, JOB_RESULT, UPDATE_JOURNAL
from aks_flex_node.redaction import MASK, redact_output
from aks_flex_node.settings.base import to_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_node.agent.reconcile.engine import Engine

UNITS = ("kubelet", "containerd", "node-problem-detector", "aks-flex-node", "aks-flex-node-vpn", "himdsd")
COMMANDS = {
    "network/addresses.txt": ("ip", "address"),
    "network/routes.txt": ("ip", "route"),
    "network/rules.txt": ("iptables-save",),
    "network/rules-v6.txt": ("ip6tables-save",),
    "network/resolv.conf": ("cat", "/etc/resolv.conf"),
    "system/kernel.txt": ("uname", "-a"),
    "system/release.txt": ("cat", "/etc/os-release"),
    "system/memory.txt": ("free", "-m"),
    "system/disks.txt": ("df", "-h"),
    "system/inodes.txt": ("df", "-i"),
    "system/mounts.txt": ("cat", "/proc/self/mountinfo"),
    "system/failed-units.txt": ("systemctl", "list-units", "--failed", "--no-pager"),
    "azure/azcmagent.txt": ("azcmagent", "show"),
    "containers/pods.txt": ("ctr", "--namespace", "k8s.io", "containers", "list"),
}


def write_bundle(engine: Engine, path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        os.fchmod(file.fileno(), 0o600)
        for name, text in bundle_entries(engine):
            data = redact(text, engine).encode()
            entry = tarfile.TarInfo(f"aks-flex-node/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(data))


def bundle_entries(engine: Engine) -> Iterator[tuple[str, str]]:
    host, paths = engine.host, engine.config.paths
    yield "version.txt", f"{__version__}\n"
    yield "status.json", json.dumps(status.status(engine), indent=1, default=str)
    yield "config.json", json.dumps(to_document(engine.config), indent=1, ensure_ascii=False)
    for name in ("ledger.json", "state.json"):
        yield name, _text(host.read(f"{paths.data_dir}/{name}"))
    for path in (DAEMON_STATE, JOB_RESULT, UPDATE_JOURNAL, FAILED_CONFIG, CLUSTER_FACTS):
        yield path.rpartition("/")[2], _text(host.read(path))
    yield "agent.log", _text(host.read(log_file(engine.config)))[-(1 << 20) :]
    yield "kubelet-config.yaml", _text(host.read(f"{paths.kubernetes.kubelet_dir}/config.yaml"))
    yield "containerd-config.toml", _text(host.read("/etc/containerd/config.toml"))
    for unit in UNITS:
        yield f"units/{unit}.txt", host.query("systemctl", "status", "--no-pager", "--full", unit).out
        # The agent logs under its own syslog identifier, also from transient units and terminals.
        arguments = ("-t" if unit == "aks-flex-node" else "--unit", unit)
        shape = ("--lines", "2000", "--no-pager", "--output", "short-iso")
        yield f"journals/{unit}.txt", host.query("journalctl", *arguments, *shape, seconds=20).out
    for name, argv in COMMANDS.items():
        answer = host.query(*argv)
        yield name, answer.out or answer.err


def _text(content: bytes | None) -> str:
    return "(file does not exist)\n" if content is None else content.decode(errors="replace")


def redact(text: str, engine: Engine) -> str:
    """Masks this node's secrets and everything that looks like a secret."""
    azure = engine.config.azure
    known = [join_token(engine.config), azure.service_principal.client_secret if azure.service_principal else None]
    for secret in known:
        if secret:
            text = text.replace(secret.reveal(), MASK)
    return redact_output(text)
