"""Downloads and unpacks a node's programs from a local mirror, alternately with the agent's store and curl and tar.

The last line is one JSON object; `ratio` is the median of the store divided by that of curl and tar.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_lab.processes import run, spawn
from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile, ArtifactTree
from aks_flex_node.agent.artifacts.store import ArtifactStore
from aks_flex_node.agent.http.download_options import DownloadOptions
from bench.figures import medians, print_result, print_round
from bench.options import Option, parse
from tests.service.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "localhost"
PUBLISHED = Path.home() / ".cache/aks-flex-lab/artifacts"
GITHUB = "github.com"
KUBERNETES, CONTAINERD, RUNC, CNI, NPD = "1.36.3", "2.4.2", "1.5.2", "1.9.1", "1.34.0"


def trees(staging: Path, tarball: bool) -> tuple[ArtifactTree, ...]:
    """Returns the five components of a node."""
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
        files = (ArtifactFile("kubernetes/node/bin/", "bin/"),)
        return [(f"{base}/kubernetes-node-linux-amd64.tar.gz", ".sha256", files)]
    names = ("kubelet", "kubeadm", "kubectl")
    return [(f"{base}/bin/linux/amd64/{name}", ".sha256", (ArtifactFile("", f"bin/{name}"),)) for name in names]


def tree(
    staging: Path, component: str, version: str, files: list[tuple[str, str, tuple[ArtifactFile, ...]]]
) -> ArtifactTree:
    artifacts = tuple(
        Artifact(component, version, f"https://{path}", selected, checksums=(checksum(path, suffix),))
        for path, suffix, selected in files
    )
    return ArtifactTree(component, version, artifacts, staging / component)


def checksum(path: str, suffix: str) -> str:
    return f"https://{path}{suffix}" if suffix else f"https://{path.rpartition('.')[0]}.sha256sum"


@contextmanager
def mirror(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yields the URL of the lab's mirror on loopback, and the certificate of its CA."""
    published = next(iter(sorted(PUBLISHED.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)))
    shutil.copytree(published, directory / "tree" / HOST, copy_function=os.link)
    authority = CertificateAuthority(directory / "pki")
    authority.directory.mkdir()
    authority.ensure()
    pair, port, control = authority.issue("server", "server", names=(HOST,)), free_port(), directory / "control"
    where = ("--root", directory / "tree", "--listen", f"127.0.0.1:{port}", "--control", control)
    command = (sys.executable, "-m", "aks_flex_lab.mirror", *where, "--cert", pair.certificate, "--key", pair.key)
    process = spawn(command, log=directory / "log")
    try:
        while not control.is_socket():
            time.sleep(0.02)
        yield f"https://{HOST}:{port}", authority.certificate
    finally:
        process.stop()


def ours(directory: Path, base_url: str, authority: Path, tarball: bool) -> None:
    store = ArtifactStore(directory / "cache", DownloadOptions(base_url=base_url, ca_file=str(authority)))
    wanted_trees = trees(directory / "staged", tarball)
    store.prepare(wanted_trees)
    for each in wanted_trees:
        store.wait(each, 120)
    store.close()


def theirs(directory: Path, base_url: str, authority: Path, tarball: bool) -> None:
    """Downloads and unpacks with curl and tar, without checksums, resumption or verification."""
    artifacts = [artifact for each in trees(directory / "staged", tarball) for artifact in each.artifacts]
    urls = [f"{base_url}/{artifact.url.removeprefix('https://')}" for artifact in artifacts]
    options = [word for url in urls for word in ("-O", url)]
    (directory / "staged").mkdir(parents=True)
    run("curl", "-sS", "--fail", "--parallel", "--cacert", authority, *options, cwd=directory / "staged")
    with ThreadPoolExecutor() as pool:  # one tar per core
        list(pool.map(lambda artifact: untar(directory, artifact), artifacts))


def untar(directory: Path, artifact: Artifact) -> None:
    if artifact.is_plain:
        (directory / "staged" / artifact.name).chmod(0o755)
    else:
        (directory / artifact.component).mkdir()
        run("tar", "-xzf", directory / "staged" / artifact.name, "-C", directory / artifact.component)


def measure(method: Callable[[Path, str, Path, bool], None], base_url: str, authority: Path, tarball: bool) -> float:
    with tempfile.TemporaryDirectory() as directory:
        began = time.monotonic()
        method(Path(directory), base_url, authority, tarball)
        return time.monotonic() - began


def main() -> None:
    tarball = Option("--tarball", False, "kubernetes as one tarball instead of three programs")
    options = parse("artifacts", __doc__, Option("--rounds", 5), tarball)
    rounds: list[dict[str, float]] = []
    # On the file system of the cache, so that the mirror's tree can use hard links.
    with (
        tempfile.TemporaryDirectory(dir=PUBLISHED.parent) as directory,
        mirror(Path(directory)) as (base_url, authority),
    ):
        for number in range(1, options.rounds + 1):
            methods = {"theirs": theirs, "ours": ours}
            rounds.append(
                {name: measure(method, base_url, authority, options.tarball) for name, method in methods.items()}
            )
            print_round(f"round {number}", rounds[-1])
    seconds = medians(rounds, 3)
    ratio = round(seconds["ours"] / seconds["theirs"], 2)
    print_result("artifacts", rounds=options.rounds, seconds=seconds, ratio=ratio)


if __name__ == "__main__":
    main()
