"""Tests of the mirror's tree: the publishers' layout, and reproducible archives."""

from __future__ import annotations

import hashlib
import os
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.errors import ToolError
from aks_flex_lab.tools import artifacts, catalog
from aks_flex_lab.tools.artifacts import ArchiveMember, make_archive, python_gzip
from aks_flex_lab.tools.recipes import GoTool
from aks_flex_lab.tools.toolbox import Toolbox
from aks_flex_lab.versions import NodeVersions
from tests.unit.lab.tools.fakes import store_fake_tool

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = """
dl.k8s.io/release/stable-1.35.txt
dl.k8s.io/release/stable-1.36.txt
dl.k8s.io/release/stable-1.txt
dl.k8s.io/release/stable.txt
dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet
dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet.sha256
dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet.sha512
dl.k8s.io/v1.35.4/bin/linux/amd64/kubeadm
dl.k8s.io/v1.36.3/kubernetes-node-linux-amd64.tar.gz
dl.k8s.io/v1.36.3/kubernetes-node-linux-amd64.tar.gz.sha512
dl.k8s.io/release/v1.36.3/bin/linux/amd64/kubectl
dl.k8s.io/release/v1.36.3/bin/linux/amd64/kubectl.sha256
dl.k8s.io/release/v1.35.4/kubernetes-node-linux-amd64.tar.gz.sha256
acs-mirror.azureedge.net/kubernetes/v1.36.3/binaries/kubernetes-node-linux-amd64.tar.gz
packages.aks.azure.com/kubernetes/v1.35.4/binaries/kubernetes-node-linux-amd64.tar.gz
github.com/containerd/containerd/releases/download/v1.7.29/containerd-1.7.29-linux-amd64.tar.gz
github.com/containerd/containerd/releases/download/v2.4.2/containerd-2.4.2-linux-amd64.tar.gz.sha256sum
github.com/opencontainers/runc/releases/download/v1.4.0/runc.amd64
github.com/opencontainers/runc/releases/download/v1.5.2/runc.sha256sum
github.com/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-amd64-v1.9.1.tgz
github.com/containernetworking/plugins/releases/download/v1.7.1/cni-plugins-linux-amd64-v1.7.1.tgz.sha256
github.com/containernetworking/plugins/releases/download/v1.7.1/cni-plugins-linux-amd64-v1.7.1.tgz.sha512
github.com/kubernetes/node-problem-detector/releases/download/v1.34.0/node-problem-detector-v1.34.0-linux_amd64.tar.gz
github.com/kubernetes/node-problem-detector/releases/download/v1.34.0/node-problem-detector-v1.34.0-linux_amd64.tar.gz.sha512
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


def test_programs_in_artifact_tree_are_linked_not_copied(toolbox: Toolbox, tree: Path) -> None:
    kubelet = toolbox.path("kubernetes", "kubelet", "1.36.3")
    assert kubelet.samefile(tree / "dl.k8s.io/v1.36.3/bin/linux/amd64/kubelet")


def test_tool_on_demand_is_published_only_in_labs_that_demand_it(tmp_path: Path) -> None:
    older = catalog.find_tool("kubernetes", "1.33.13")
    assert isinstance(older, GoTool)
    box = Toolbox(tmp_path, "amd64", (older,), on_demand=("kubernetes@1.33.13",))
    assert [directory.tool for directory in artifacts.published_tools(box)] == [older]
    assert artifacts.published_tools(replace(box, on_demand=())) == []


def test_tree_with_tool_on_demand_links_the_files_of_the_other_tree(toolbox: Toolbox, tree: Path) -> None:
    older = catalog.find_tool("kubernetes", "1.33.13")
    assert isinstance(older, GoTool)
    store_fake_tool(toolbox.tool_directory(older))
    more = artifacts.artifact_tree(replace(toolbox, on_demand=("kubernetes@1.33.13",)), compress=python_gzip)

    archive = "github.com/containerd/containerd/releases/download/v2.4.2/containerd-2.4.2-linux-amd64.tar.gz"
    assert (more / archive).samefile(tree / archive)
    kubelet = more / "dl.k8s.io/v1.33.13/bin/linux/amd64/kubelet"
    assert kubelet.with_name("kubelet.sha256").read_text() == hashlib.sha256(kubelet.read_bytes()).hexdigest()
    assert not (tree / "dl.k8s.io/v1.33.13").exists()


@pytest.fixture(scope="module")
def foreign(toolbox: Toolbox, tree: Path) -> Path:
    """Returns the tree of another architecture, made of fake tools."""
    box = toolbox.for_architecture("arm64")
    for tool in box.tools:
        if isinstance(tool, GoTool):
            store_fake_tool(box.tool_directory(tool))
    return artifacts.foreign_tree(box, tree, compress=python_gzip)


def test_foreign_tree_has_the_programs_of_the_default_versions(foreign: Path) -> None:
    versions = NodeVersions()
    github = foreign / "github.com"
    for url in (
        *(f"dl.k8s.io/v{versions.kubernetes}/bin/linux/arm64/{name}" for name in catalog.AGENT_COMMANDS),
        f"github.com/opencontainers/runc/releases/download/v{versions.runc}/runc.arm64",
    ):
        assert (foreign / url).read_text().endswith(" for arm64\n")
    for name in (
        f"containerd-{versions.containerd}-linux-arm64.tar.gz",
        f"cni-plugins-linux-arm64-v{versions.cni}.tgz",
        f"node-problem-detector-v{versions.npd}-linux_arm64.tar.gz",
    ):
        assert len(list(github.rglob(name))) == 1
    assert not list(foreign.rglob("kubernetes-node-*"))


def test_foreign_tree_extends_checksum_files_of_all_architectures(foreign: Path, tree: Path) -> None:
    sums = "github.com/opencontainers/runc/releases/download/v1.5.2/runc.sha256sum"
    lines = (foreign / sums).read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["runc.amd64", "runc.arm64"]
    assert lines[:1] == (tree / sums).read_text().splitlines()
    runc = (foreign / sums).with_name("runc.arm64")
    assert lines[1].split()[0] == hashlib.sha256(runc.read_bytes()).hexdigest()


def test_artifact_tree_is_rebuilt_only_when_a_tool_changes(tmp_path: Path) -> None:
    runc = catalog.find_tool("runc", "1.4.0")
    assert isinstance(runc, GoTool)
    box = Toolbox(tmp_path, "amd64", (runc,))
    store_fake_tool(box.tool_directory(runc))
    first = artifacts.artifact_tree(box, compress=python_gzip)
    assert artifacts.artifact_tree(box, compress=refuse) == first
    bench = box.tool_directory(runc).build_directory("build")
    bench.mkdir()
    (bench / "runc").write_text("another build of the same version\n")
    box.tool_directory(runc).commit("build", 1.0)
    second = artifacts.artifact_tree(box, compress=python_gzip)
    assert second != first
    assert artifacts.clean_artifacts(box) > 0
    assert artifacts.clean_artifacts(box) == 0
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == [second.name]


def refuse(plain: Path, done: Path) -> None:
    raise AssertionError(f"{plain} was packed into {done} again")


def test_interrupted_artifact_tree_is_rebuilt_completely(toolbox: Toolbox) -> None:
    box = Toolbox(toolbox.cache, "amd64", tuple(tool for tool in toolbox.tools if tool.name == "containerd"))
    with pytest.raises(AssertionError):
        artifacts.artifact_tree(box, compress=refuse)
    tree = artifacts.artifact_tree(box, compress=python_gzip)
    assert len(list(tree.rglob("*.tar.gz"))) == 2
    assert not list(tree.rglob(".*"))


def test_artifact_tree_error_names_missing_tool(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"runc 1\.5\.2 is not installed") as missing:
        artifacts.artifact_tree(Toolbox(tmp_path, "amd64", catalog.tool_versions("runc")))
    assert missing.value.name == "tool-missing"


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


def test_archive_members_belong_to_root_and_keep_executable_bit(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("x")
    (tmp_path / "program").chmod(0o755)
    (tmp_path / "text").write_text("x")
    members = [ArchiveMember("bin/program", tmp_path / "program"), ArchiveMember("text", tmp_path / "text")]
    make_archive(members, tmp_path / "made.tgz", python_gzip)
    with tarfile.open(tmp_path / "made.tgz") as archive:
        entries = {entry.name: (entry.mode, entry.uid, entry.uname, entry.mtime) for entry in archive}
    assert entries == {
        "bin": (0o755, 0, "root", 0),
        "bin/program": (0o755, 0, "root", 0),
        "text": (0o644, 0, "root", 0),
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.tgz", "program", "text"]
