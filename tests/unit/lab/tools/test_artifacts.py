"""Tests of the mirror's tree: the publishers' layout, and reproducible archives."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.tools import artifacts, catalog
from aks_flex_lab.tools.artifacts import ArchiveMember, make_archive, python_gzip
from aks_flex_lab.tools.recipes import GoTool
from aks_flex_lab.tools.toolbox import Toolbox
from aks_flex_lab.versions import NodeVersions
from tests.unit.lab.tools.fakes import store_fake_tool

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = """
dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet
dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet.sha512
dl.k8s.io/v1.36.3/kubernetes-node-linux-amd64.tar.gz
dl.k8s.io/release/v1.36.3/bin/linux/amd64/kubectl.sha256
dl.k8s.io/release/v1.35.4/kubernetes-node-linux-amd64.tar.gz.sha256
acs-mirror.azureedge.net/kubernetes/v1.36.3/binaries/kubernetes-node-linux-amd64.tar.gz
packages.aks.azure.com/kubernetes/v1.35.4/binaries/kubernetes-node-linux-amd64.tar.gz
github.com/containerd/containerd/releases/download/v2.4.2/containerd-2.4.2-linux-amd64.tar.gz.sha256sum
github.com/opencontainers/runc/releases/download/v1.5.2/runc.sha256sum
github.com/containernetworking/plugins/releases/download/v1.7.1/cni-plugins-linux-amd64-v1.7.1.tgz.sha512
github.com/kubernetes/node-problem-detector/releases/download/v1.34.0/node-problem-detector-v1.34.0-linux_amd64.tar.gz
""".split()


@pytest.fixture(scope="module")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> Toolbox:
    """Returns a toolbox with every tool of the catalog except those on demand, a few bytes each."""
    box = Toolbox(tmp_path_factory.mktemp("cache"), "amd64")
    for tool in box.tools:
        if isinstance(tool, GoTool) and not tool.on_demand:
            store_fake_tool(box.tool_directory(tool))
    return box


@pytest.fixture(scope="module")
def tree(toolbox: Toolbox) -> Path:
    return artifacts.artifact_tree(toolbox, compress=python_gzip)


def names_in(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return [member.name for member in tar if member.isfile()]


@pytest.mark.parametrize("url", EXPECTED)
def test_artifact_tree_contains_publisher_url(tree: Path, url: str) -> None:
    assert (tree / url).is_file()


def test_all_checksum_files_are_correct_and_in_publisher_format(tree: Path) -> None:
    checked = 0
    for path in tree.rglob("*"):
        kind = path.suffix.removesuffix("sum").removeprefix(".")
        if kind not in ("sha256", "sha512"):
            continue
        words = path.read_text().split()
        bare = path.is_relative_to(tree / "dl.k8s.io")
        file = path.with_suffix("") if bare else path.parent / words[1]
        assert words == [hashlib.new(kind, file.read_bytes()).hexdigest(), *([] if bare else [file.name])]
        checked += 1
    assert checked > 30


def test_stable_files_name_newest_version_overall_and_per_minor(tree: Path) -> None:
    release = tree / "dl.k8s.io" / "release"
    assert {path.name: path.read_text() for path in release.glob("*.txt")} == {
        "stable.txt": "v1.36.3",
        "stable-1.txt": "v1.36.3",
        "stable-1.36.txt": "v1.36.3",
        "stable-1.35.txt": "v1.35.4",
    }


def test_archives_have_publisher_layout(tree: Path) -> None:
    github = tree / "github.com"
    containerd = "containerd/containerd/releases/download/v2.4.2/containerd-2.4.2-linux-amd64.tar.gz"
    cni = "containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-amd64-v1.9.1.tgz"
    (npd,) = github.rglob("node-problem-detector-*.tar.gz")
    assert names_in(github / containerd) == [
        "bin/containerd",
        "bin/containerd-shim-runc-v2",
        "bin/containerd-stress",
        "bin/ctr",
    ]
    assert "./bridge" in names_in(github / cni)
    assert names_in(npd) == ["bin/health-checker", "bin/node-problem-detector", "config/settings.json"]
    assert names_in(tree / "dl.k8s.io/v1.35.4/kubernetes-node-linux-amd64.tar.gz") == [
        "kubernetes/node/bin/kube-proxy",
        "kubernetes/node/bin/kubeadm",
        "kubernetes/node/bin/kubectl",
        "kubernetes/node/bin/kubelet",
    ]


def test_tree_grows_by_the_tools_that_are_installed_later(tmp_path: Path) -> None:
    box = Toolbox(tmp_path, "amd64")
    for version in ("1.36.3", "1.35.4"):
        tree = artifacts.artifact_tree(install(box, "kubernetes", version), compress=refuse)
    assert not list(tree.rglob("kubernetes-node-*"))
    assert (tree / "dl.k8s.io/release/stable-1.35.txt").read_text() == "v1.35.4"

    kubelet = (tree / "dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet").stat()
    artifacts.artifact_tree(install(box, "kube-proxy", "1.35.4"), compress=python_gzip)
    assert [path.parent.name for path in (tree / "dl.k8s.io").glob("v*/kubernetes-node-linux-amd64.tar.gz")] == [
        "v1.35.4"
    ]
    assert (tree / "dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet").stat() == kubelet


def install(box: Toolbox, name: str, version: str) -> Toolbox:
    tool = catalog.find_tool(name, version)
    assert isinstance(tool, GoTool)
    store_fake_tool(box.tool_directory(tool))
    return box


def test_tools_of_another_architecture_extend_the_tree(tmp_path: Path) -> None:
    box = Toolbox(tmp_path, "amd64")
    artifacts.artifact_tree(install(box, "runc", "1.5.2"))
    foreign = box.for_architecture("arm64")
    for tool in foreign.tools:
        if isinstance(tool, GoTool):
            store_fake_tool(foreign.tool_directory(tool))
    tree = artifacts.artifact_tree(foreign, compress=python_gzip)

    versions, github = NodeVersions(), tree / "github.com"
    for url in (
        *(f"dl.k8s.io/v{versions.kubernetes}/bin/linux/arm64/{name}" for name in catalog.AGENT_COMMANDS),
        f"github.com/opencontainers/runc/releases/download/v{versions.runc}/runc.arm64",
    ):
        assert (tree / url).read_text().endswith(" for arm64\n")
    for name in (
        f"containerd-{versions.containerd}-linux-arm64.tar.gz",
        f"cni-plugins-linux-arm64-v{versions.cni}.tgz",
        f"node-problem-detector-v{versions.npd}-linux_arm64.tar.gz",
    ):
        assert len(list(github.rglob(name))) == 1
    assert not list(tree.rglob("kubernetes-node-*"))
    runc = github / "opencontainers/runc/releases/download/v1.5.2"
    assert (runc / "runc.sha256sum").read_text() == "".join(
        f"{hashlib.sha256((runc / name).read_bytes()).hexdigest()}  {name}\n" for name in ("runc.amd64", "runc.arm64")
    )


def test_artifacts_are_packed_again_only_when_a_tool_changes(tmp_path: Path) -> None:
    box = install(Toolbox(tmp_path, "amd64"), "cni-plugins", "1.7.1")
    tree = artifacts.artifact_tree(box, compress=python_gzip)
    assert artifacts.artifact_tree(box, compress=refuse) == tree
    (archive,) = tree.rglob("*.tgz")
    first = archive.read_bytes()
    tool = catalog.find_tool("cni-plugins", "1.7.1")
    assert isinstance(tool, GoTool)
    bench = box.tool_directory(tool).build_directory("build")
    shutil.copytree(box.tool_directory(tool).path, bench)
    (bench / "bridge").write_text("another build of the same version\n")
    box.tool_directory(tool).commit("build")

    artifacts.artifact_tree(box, compress=python_gzip)
    assert archive.read_bytes() != first
    assert (
        archive.with_name(f"{archive.name}.sha256").read_text().split()[0]
        == hashlib.sha256(archive.read_bytes()).hexdigest()
    )
    assert not artifacts.clean_artifacts(box)
    shutil.rmtree(box.tool_directory(tool).path)
    assert artifacts.clean_artifacts(box)
    assert not tree.exists()


def refuse(plain: Path, done: Path) -> None:
    raise AssertionError(f"{plain} was packed into {done} again")


def test_interrupted_packing_is_completed_by_the_next(tmp_path: Path) -> None:
    box = install(install(Toolbox(tmp_path, "amd64"), "containerd", "2.4.2"), "containerd", "1.7.29")
    with pytest.raises(AssertionError):
        artifacts.artifact_tree(box, compress=refuse)
    tree = artifacts.artifact_tree(box, compress=python_gzip)
    assert len(list(tree.rglob("*.tar.gz"))) == 2
    assert not list(tree.rglob(".*"))
    shutil.rmtree(tree)
    assert len(list(artifacts.artifact_tree(box, compress=python_gzip).rglob("*.tar.gz"))) == 2


def test_archive_does_not_depend_on_file_order_or_time(tmp_path: Path) -> None:
    made = []
    for turn, order in enumerate((("a", "b"), ("b", "a"))):
        folder = tmp_path / str(turn)
        folder.mkdir()
        members = []
        for name in order:
            (folder / name).write_text(f"the content of {name}")
            (folder / name).chmod(0o700 if turn else 0o755)
            os.utime(folder / name, (turn * 1000, turn * 1000))
            members.append(ArchiveMember(f"bin/{name}", folder / name))
        make_archive(members, folder / "made.tgz", python_gzip)
        made.append((folder / "made.tgz").read_bytes())
    assert made[0] == made[1]
