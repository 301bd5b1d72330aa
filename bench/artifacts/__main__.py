"""Fetches and unpacks a node's programs from a local mirror, with our Store and with curl and tar, in turns.

The last line is one JSON object; `ratio` is our median over theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_lab.processes import run, spawn
from aks_flex_node.agent.artifacts import Artifact, ArtifactFile, ArtifactStore, ArtifactTree, DownloadOptions
from tests.service.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "localhost"
PUBLISHED = Path.home() / ".cache/aks-flex-lab/artifacts"
GITHUB = "github.com"
KUBERNETES, CONTAINERD, RUNC, CNI, NPD = "1.34.4", "2.4.2", "1.5.2", "1.9.1", "1.34.0"


def trees(staging: Path, tarball: bool) -> tuple[ArtifactTree, ...]:
    """The five components, as a node gets them."""
    release = "releases/download"
    containerd = f"{GITHUB}/containerd/containerd/{release}/v{CONTAINERD}/containerd-{CONTAINERD}-linux-amd64.tar.gz"
    runc = f"{GITHUB}/opencontainers/runc/{release}/v{RUNC}/runc.amd64"
    cni = f"{GITHUB}/containernetworking/plugins/{release}/v{CNI}/cni-plugins-linux-amd64-v{CNI}.tgz"
    npd = (
        f"{GITHUB}/kubernetes/node-problem-detector/{release}/v{NPD}/node-problem-detector-v{NPD}-linux_amd64.tar.gz"
    )
    return (
        tree(staging, "kubernetes", KUBERNETES, kubernetes(tarball)),
        tree(staging, "containerd", CONTAINERD, [(containerd, ".sha256sum", (ArtifactFile("bin/", "bin/"),))]),
        tree(staging, "cni", CNI, [(cni, ".sha256", (ArtifactFile("./", "bin/"),))]),
        tree(
            staging,
            "npd",
            NPD,
            [(npd, ".sha512", (ArtifactFile("bin/", "bin/"), ArtifactFile("config/", "config/")))],
        ),
        tree(staging, "runc", RUNC, [(runc, "", (ArtifactFile("", "bin/runc"),))]),
    )


def kubernetes(tarball: bool) -> list[tuple[str, str, tuple[ArtifactFile, ...]]]:
    base = f"dl.k8s.io/v{KUBERNETES}"
    if tarball:
        wanted = (ArtifactFile("kubernetes/node/bin/", "bin/"),)
        return [(f"{base}/kubernetes-node-linux-amd64.tar.gz", ".sha256", wanted)]
    names = ("kubelet", "kubeadm", "kubectl")
    return [(f"{base}/bin/linux/amd64/{name}", ".sha256", (ArtifactFile("", f"bin/{name}"),)) for name in names]


def tree(
    staging: Path, component: str, version: str, files: list[tuple[str, str, tuple[ArtifactFile, ...]]]
) -> ArtifactTree:
    artifacts = tuple(
        Artifact(component, version, f"https://{path}", wanted, checksums=(checksum(path, suffix),))
        for path, suffix, wanted in files
    )
    return ArtifactTree(component, version, artifacts, staging / component)


def checksum(path: str, suffix: str) -> str:
    return f"https://{path}{suffix}" if suffix else f"https://{path.rpartition('.')[0]}.sha256sum"


@contextmanager
def mirror(room: Path) -> Iterator[tuple[str, Path]]:
    """The lab's mirror on loopback, as `base_url`, and the certificate of its authority."""
    published = next(iter(sorted(PUBLISHED.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)))
    shutil.copytree(published, room / "tree" / HOST, copy_function=os.link)
    authority = CertificateAuthority(room / "pki")
    authority.directory.mkdir()
    authority.ensure()
    pair, port, control = authority.issue("server", "server", names=(HOST,)), free_port(), room / "control"
    where = ("--root", room / "tree", "--listen", f"127.0.0.1:{port}", "--control", control)
    words = (sys.executable, "-m", "aks_flex_lab.mirror", *where, "--cert", pair.certificate, "--key", pair.key)
    process = spawn(words, log=room / "log")
    try:
        while not control.is_socket():
            time.sleep(0.02)
        yield f"https://{HOST}:{port}", authority.certificate
    finally:
        process.stop()


def ours(room: Path, base_url: str, authority: Path, tarball: bool) -> None:
    store = ArtifactStore(room / "cache", DownloadOptions(base_url=base_url, ca_file=str(authority)))
    wanted = trees(room / "staged", tarball)
    store.prepare(wanted)
    for each in wanted:
        store.wait(each, 120)
    store.close()


def theirs(room: Path, base_url: str, authority: Path, tarball: bool) -> None:
    """What a person would type: no checksums, nothing resumed, nothing verified."""
    artifacts = [artifact for each in trees(room / "staged", tarball) for artifact in each.artifacts]
    urls = [f"{base_url}/{artifact.url.removeprefix('https://')}" for artifact in artifacts]
    options = [word for url in urls for word in ("-O", url)]
    (room / "staged").mkdir(parents=True)
    run("curl", "-sS", "--fail", "--parallel", "--cacert", authority, *options, cwd=room / "staged")
    with ThreadPoolExecutor() as pool:  # one tar a core
        list(pool.map(lambda artifact: untar(room, artifact), artifacts))


def untar(room: Path, artifact: Artifact) -> None:
    if artifact.is_plain:
        (room / "staged" / artifact.name).chmod(0o755)
    else:
        (room / artifact.component).mkdir()
        run("tar", "-xzf", room / "staged" / artifact.name, "-C", room / artifact.component)


def measure(way: Callable[[Path, str, Path, bool], None], base_url: str, authority: Path, tarball: bool) -> float:
    with tempfile.TemporaryDirectory() as room:
        began = time.monotonic()
        way(Path(room), base_url, authority, tarball)
        return time.monotonic() - began


def main() -> None:
    words = argparse.ArgumentParser(prog="bench.artifacts", description=__doc__)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--tarball", action="store_true", help="kubernetes as one tarball instead of three programs")
    told = words.parse_args()
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    # On the cache's own file system, so that the mirror's tree is made of hard links.
    with tempfile.TemporaryDirectory(dir=PUBLISHED.parent) as room, mirror(Path(room)) as (base_url, authority):
        for number in range(1, told.rounds + 1):
            for name, way in (("theirs", theirs), ("ours", ours)):
                seconds[name].append(measure(way, base_url, authority, told.tarball))
            print(
                f"round {number}:  ours {seconds['ours'][-1]:.2f} s  theirs {seconds['theirs'][-1]:.2f} s", flush=True
            )
    medians = {name: round(statistics.median(values), 3) for name, values in seconds.items()}
    ratio = round(medians["ours"] / medians["theirs"], 2)
    print(json.dumps({"bench": "artifacts", "rounds": told.rounds, "seconds": medians, "ratio": ratio}))


if __name__ == "__main__":
    main()
