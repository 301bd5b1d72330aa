"""The one pinned list of everything the lab runs.

The first version of a tool is the one taken when none is named. Kubernetes stands last, because its build is the long
one and a mistake in a short one should show first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from aks_flex_node.lab.errors import UsageError
from aks_flex_node.lab.suggestions import suggest
from aks_flex_node.lab.tools.debian import DebianTool
from aks_flex_node.lab.tools.packages import OWN_PYTHON, PythonTool
from aks_flex_node.lab.tools.recipes import Checksum, Command, Need, Recipe, ReleaseFile, Tool

if TYPE_CHECKING:
    from collections.abc import Sequence

GITHUB = "github.com"
C_TOOLCHAIN = (
    Need("gcc", program="gcc"),
    Need("pkg-config", program="pkg-config"),
    Need("libc6-dev", library="libc.a"),
    Need("libseccomp-dev", library="libseccomp.a"),
)
NODE_COMMANDS = ("kubelet", "kubectl", "kubeadm", "kube-proxy")
CONTROL_COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
CNI_PLUGINS = {
    "ipam": ("dhcp", "host-local", "static"),
    "main": ("bridge", "dummy", "host-device", "ipvlan", "loopback", "macvlan", "ptp", "tap", "vlan"),
    "meta": ("bandwidth", "firewall", "portmap", "sbr", "tuning", "vrf"),
}


def kubernetes(version: str, commands: tuple[str, ...]) -> Tool:
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    stamps = tuple(f"{package}.{name}={value}" for package in packages for name, value in values.items())
    asks = {"kubectl": ("version", "--client"), "kubeadm": ("version",)}
    return Tool(
        "kubernetes",
        version,
        tuple(Command(name, f"k8s.io/kubernetes/cmd/{name}", asks.get(name, ("--version",))) for name in commands),
        Recipe(f"kubernetes-{version}", stamps, megabytes=3800),
        tuple(kubernetes_file(version, name) for name in commands),
        says=f"v{version}",
    )


def kubernetes_file(version: str, command: str) -> ReleaseFile:
    url = f"dl.k8s.io/v{version}/bin/linux/{{arch}}/{command}"
    sums = tuple(Checksum(f"{url}.{algorithm}", algorithm, named=False) for algorithm in ("sha256", "sha512"))
    return ReleaseFile(url, sums, (command,))


def containerd(version: str, commands: tuple[str, ...]) -> Tool:
    package = "github.com/containerd/containerd" + ("/v2" if version.startswith("2.") else "")
    url = f"{GITHUB}/containerd/containerd/releases/download/v{version}/containerd-{version}-linux-{{arch}}.tar.gz"
    asks = {"containerd": ("--version",), "ctr": ("--version",), "containerd-shim-runc-v2": ("-v",)}
    return Tool(
        "containerd",
        version,
        tuple(Command(name, f"{package}/cmd/{name}", asks.get(name)) for name in commands),
        Recipe(f"containerd-{version}", (f"{package}/version.Version=v{version}",), megabytes=700),
        (ReleaseFile(url, (Checksum(f"{url}.sha256sum"),), commands, inside="bin"),),
        says=f"v{version}",
    )


def runc(version: str) -> Tool:
    """Its version is in its source, so there is nothing to stamp."""
    folder = f"{GITHUB}/opencontainers/runc/releases/download/v{version}"
    return Tool(
        "runc",
        version,
        (Command("runc", "github.com/opencontainers/runc", ("--version",)),),
        Recipe(f"runc-{version}", tags=("seccomp", "netgo", "osusergo"), cgo=True, needs=C_TOOLCHAIN, megabytes=150),
        (ReleaseFile(f"{folder}/runc.{{arch}}", (Checksum(f"{folder}/runc.sha256sum"),), ("runc",)),),
        says=f"runc version {version}",
    )


def cni_plugins(version: str) -> Tool:
    package = "github.com/containernetworking/plugins"
    folder = f"{GITHUB}/containernetworking/plugins/releases/download/v{version}"
    url = f"{folder}/cni-plugins-linux-{{arch}}-v{version}.tgz"
    commands = {name: f"{package}/plugins/{kind}/{name}" for kind, names in CNI_PLUGINS.items() for name in names}
    sums = tuple(Checksum(f"{url}.{algorithm}", algorithm) for algorithm in ("sha256", "sha512"))
    return Tool(
        "cni-plugins",
        version,
        tuple(Command(name, source, ask=()) for name, source in commands.items()),
        Recipe(f"cni-plugins-{version}", (f"{package}/pkg/utils/buildversion.BuildVersion=v{version}",)),
        (ReleaseFile(url, sums, tuple(commands), inside="."),),
        says=f"plugin v{version}",
    )


def node_problem_detector(version: str) -> Tool:
    """Built without cgo: it watches the kernel log, files, checks and metrics, but not the journal."""
    package = "k8s.io/node-problem-detector"
    folder = f"{GITHUB}/kubernetes/node-problem-detector/releases/download/v{version}"
    url = f"{folder}/node-problem-detector-v{version}-linux_{{arch}}.tar.gz"
    sums = (Checksum(f"{url}.sha512", "sha512"),)
    return Tool(
        "node-problem-detector",
        version,
        (
            Command("node-problem-detector", f"{package}/cmd/nodeproblemdetector", ("--version",)),
            Command("health-checker", f"{package}/cmd/healthchecker"),
        ),
        Recipe(
            f"node-problem-detector-{version}",
            (f"{package}/pkg/version.version=v{version}",),
            tags=("disable_stackdriver_exporter",),
            folders=((package, "config"),),
            megabytes=900,
        ),
        (ReleaseFile(url, sums, ("node-problem-detector", "health-checker"), inside="bin", folders=("config",)),),
        says=f"v{version}",
    )


def toxiproxy(version: str) -> Tool:
    package = "github.com/Shopify/toxiproxy/v2"
    return Tool(
        "toxiproxy",
        version,
        (Command("toxiproxy-server", f"{package}/cmd/server", ("--version",)),),
        Recipe(f"toxiproxy-{version}", (f"{package}.Version={version}",), megabytes=150),
        says=f"version {version}",
    )


def pause(version: str) -> Tool:
    """What a pod sandbox runs; ours, because no image registry is reachable."""
    return Tool(
        "pause",
        version,
        (Command("pause", "flexlab/pause", ("--version",)),),
        Recipe("pause", (f"main.version={version}",), megabytes=50),
        says=f"pause {version}",
    )


TOOLS: tuple[Tool, ...] = (
    pause("3.9"),
    toxiproxy("2.5.0"),
    runc("1.5.2"),
    runc("1.4.0"),
    cni_plugins("1.9.1"),
    cni_plugins("1.7.1"),
    node_problem_detector("1.34.0"),
    containerd("2.4.2", ("containerd", "containerd-shim-runc-v2", "containerd-stress", "ctr")),
    containerd(
        "1.7.29",
        (
            "containerd",
            "containerd-shim",
            "containerd-shim-runc-v1",
            "containerd-shim-runc-v2",
            "containerd-stress",
            "ctr",
        ),
    ),
    kubernetes("1.34.4", (*CONTROL_COMMANDS, *NODE_COMMANDS)),
    kubernetes("1.33.13", NODE_COMMANDS),
)

DEBIAN_TOOLS: tuple[DebianTool, ...] = (
    DebianTool("etcd", "etcd-server", ("etcd",)),
    DebianTool("docker-registry", "docker-registry", ("docker-registry",)),
    DebianTool("dnsmasq", "dnsmasq-base", ("dnsmasq",)),
    DebianTool("openvpn", "openvpn", ("openvpn",)),
    DebianTool("busybox", "busybox-static", ("busybox",), static=True),
)

MACHINES_PYTHON = "3.11"  # of Debian 12, which most machines run


def azure_cli(release: str) -> tuple[PythonTool, ...]:
    """For this machine, and for the lab's own."""
    pythons = dict.fromkeys((OWN_PYTHON, MACHINES_PYTHON))
    return tuple(PythonTool("azure-cli", release, "azure.cli", ("az",), ("version",), each) for each in pythons)


PYTHON_TOOLS: tuple[PythonTool, ...] = azure_cli("2.91.0")

AnyTool: TypeAlias = "Tool | DebianTool | PythonTool"
EVERYTHING: tuple[AnyTool, ...] = (*DEBIAN_TOOLS, *PYTHON_TOOLS, *TOOLS)


def names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(tool.name for tool in EVERYTHING))


def versions(name: str) -> tuple[AnyTool, ...]:
    """All versions of a tool, the default first."""
    known = tuple(tool for tool in EVERYTHING if tool.name == name)
    if not known:
        raise UsageError("tool-unknown", f"There is no tool {name!r}.", suggest(name, names()))
    return known


def find(name: str, version: str | None = None) -> AnyTool:
    """One tool: the default version of it, or the one that is named."""
    known = versions(name)
    for tool in known:
        if version in (None, tool.version):
            return tool
    raise UsageError(
        "tool-version-unknown",
        f"{name} {version} is not in the catalog.",
        f"It has {', '.join(tool.version for tool in known)}.",
    )


def select(words: Sequence[str] = ()) -> tuple[AnyTool, ...]:
    """The tools that words like `runc` (all its versions) and `runc@1.4.0` mean; everything when there are none."""
    if not words:
        return EVERYTHING
    chosen: list[AnyTool] = []
    for word in words:
        name, _, version = word.partition("@")
        chosen += [find(name, version)] if version else versions(name)
    return tuple(dict.fromkeys(chosen))
