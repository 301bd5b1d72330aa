"""The pinned list of all tools that the lab runs.

The first version of a tool is the default. Kubernetes is last because its build takes longest, so that errors in
shorter builds appear first. A lab installs `LAB_TOOLS`, and others when a command or a test asks for them. Tools that
only long tests use are installed on demand, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from aks_flex_lab.errors import UsageError, did_you_mean
from aks_flex_lab.tools.debian_tools import DebianTool
from aks_flex_lab.tools.python_tools import OWN_PYTHON, PythonTool
from aks_flex_lab.tools.recipes import (
    BuildRecipe,
    BuildRequirement,
    Checksum,
    Command,
    GoTool,
    ReleaseFile,
    TestCommand,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

GITHUB = "github.com"
C_TOOLCHAIN = (
    BuildRequirement("gcc", program="gcc"),
    BuildRequirement("pkg-config", program="pkg-config"),
    BuildRequirement("libc6-dev", library="libc.a"),
    BuildRequirement("libseccomp-dev", library="libseccomp.a"),
)
AGENT_COMMANDS = ("kubelet", "kubectl", "kubeadm")  # what the agent downloads
KUBE_PROXY = "kube-proxy"  # in the node tarball and in the cluster network, which few labs use
CONTROL_COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
E2E_IMAGE_FILES = ("agnhost/porter", "nautilus/html", "kitten/html")
CNI_PLUGINS = {
    "ipam": ("dhcp", "host-local", "static"),
    "main": ("bridge", "dummy", "host-device", "ipvlan", "loopback", "macvlan", "ptp", "tap", "vlan"),
    "meta": ("bandwidth", "firewall", "portmap", "sbr", "tuning", "vrf"),
}


def kubernetes(
    version: str, commands: tuple[str, ...], *, name: str = "kubernetes", on_demand: bool = False
) -> GoTool:
    asks = {"kubectl": ("version", "--client"), "kubeadm": ("version",)}
    return GoTool(
        name,
        version,
        tuple(Command(name, f"k8s.io/kubernetes/cmd/{name}", asks.get(name, ("--version",))) for name in commands),
        BuildRecipe(f"kubernetes-{version}", kubernetes_stamps(version), megabytes=3800),
        tuple(kubernetes_file(version, name) for name in commands),
        version_text=f"v{version}",
        on_demand=on_demand,
    )


def kubernetes_stamps(version: str) -> tuple[str, ...]:
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return tuple(f"{package}.{name}={value}" for package in packages for name, value in values.items())


def kubernetes_file(version: str, command: str) -> ReleaseFile:
    url = f"dl.k8s.io/v{version}/bin/linux/{{arch}}/{command}"
    sums = tuple(Checksum(f"{url}.{algorithm}", algorithm, named=False) for algorithm in ("sha256", "sha512"))
    return ReleaseFile(url, sums, (command,))


def containerd(version: str, commands: tuple[str, ...]) -> GoTool:
    package = "github.com/containerd/containerd" + ("/v2" if version.startswith("2.") else "")
    url = f"{GITHUB}/containerd/containerd/releases/download/v{version}/containerd-{version}-linux-{{arch}}.tar.gz"
    asks = {"containerd": ("--version",), "ctr": ("--version",), "containerd-shim-runc-v2": ("-v",)}
    return GoTool(
        "containerd",
        version,
        tuple(Command(name, f"{package}/cmd/{name}", asks.get(name)) for name in commands),
        BuildRecipe(f"containerd-{version}", (f"{package}/version.Version=v{version}",), megabytes=700),
        (ReleaseFile(url, (Checksum(f"{url}.sha256sum"),), commands, inside="bin"),),
        version_text=f"v{version}",
    )


def runc(version: str) -> GoTool:
    """Returns runc, whose version is in its source, so that the build sets none."""
    folder = f"{GITHUB}/opencontainers/runc/releases/download/v{version}"
    return GoTool(
        "runc",
        version,
        (Command("runc", "github.com/opencontainers/runc", ("--version",)),),
        BuildRecipe(
            f"runc-{version}",
            tags=("seccomp", "netgo", "osusergo"),
            cgo=True,
            requirements=C_TOOLCHAIN,
            libraries=("libseccomp-dev",),
            megabytes=150,
        ),
        (ReleaseFile(f"{folder}/runc.{{arch}}", (Checksum(f"{folder}/runc.sha256sum"),), ("runc",)),),
        version_text=f"runc version {version}",
    )


def cni_plugins(version: str) -> GoTool:
    package = "github.com/containernetworking/plugins"
    folder = f"{GITHUB}/containernetworking/plugins/releases/download/v{version}"
    url = f"{folder}/cni-plugins-linux-{{arch}}-v{version}.tgz"
    commands = {name: f"{package}/plugins/{kind}/{name}" for kind, names in CNI_PLUGINS.items() for name in names}
    sums = tuple(Checksum(f"{url}.{algorithm}", algorithm) for algorithm in ("sha256", "sha512"))
    return GoTool(
        "cni-plugins",
        version,
        tuple(Command(name, source, ask=()) for name, source in commands.items()),
        BuildRecipe(f"cni-plugins-{version}", (f"{package}/pkg/utils/buildversion.BuildVersion=v{version}",)),
        (ReleaseFile(url, sums, tuple(commands), inside="."),),
        version_text=f"plugin v{version}",
    )


def node_problem_detector(version: str) -> GoTool:
    """Returns node-problem-detector, built without cgo: it monitors the kernel log and files, but not the journal."""
    package = "k8s.io/node-problem-detector"
    folder = f"{GITHUB}/kubernetes/node-problem-detector/releases/download/v{version}"
    url = f"{folder}/node-problem-detector-v{version}-linux_{{arch}}.tar.gz"
    sums = (Checksum(f"{url}.sha512", "sha512"),)
    return GoTool(
        "node-problem-detector",
        version,
        (
            Command("node-problem-detector", f"{package}/cmd/nodeproblemdetector", ("--version",)),
            Command("health-checker", f"{package}/cmd/healthchecker"),
        ),
        BuildRecipe(
            f"node-problem-detector-{version}",
            (f"{package}/pkg/version.version=v{version}",),
            tags=("disable_stackdriver_exporter",),
            folders=((package, "config"),),
            megabytes=900,
        ),
        (ReleaseFile(url, sums, ("node-problem-detector", "health-checker"), inside="bin", folders=("config",)),),
        version_text=f"v{version}",
    )


def program(
    name: str, version: str, command: Command, text: str, recipe: BuildRecipe, *, on_demand: bool = True
) -> GoTool:
    """Returns a tool of one program without releases. `text` precedes the version in the output of the program."""
    return GoTool(name, version, (command,), recipe, version_text=f"{text}{version}", on_demand=on_demand)


def own_program(name: str, version: str, megabytes: int, *, on_demand: bool = False) -> GoTool:
    """Returns a program that is written for the lab."""
    recipe = BuildRecipe(name, (f"main.version={version}",), megabytes=megabytes)
    command = Command(name, f"flexlab/{name}", ("--version",))
    return program(name, version, command, f"{name} ", recipe, on_demand=on_demand)


def kubernetes_e2e(version: str) -> GoTool:
    """Returns the end-to-end tests of Kubernetes with the programs of their images."""
    package = "k8s.io/kubernetes/test"
    return GoTool(
        "kubernetes-e2e",
        version,
        (
            Command("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"),
            Command("agnhost", f"{package}/images/agnhost"),
            Command("nonewprivs", f"{package}/images/nonewprivs"),
            Command("sample-apiserver", "k8s.io/sample-apiserver"),
            TestCommand("e2e.test", f"{package}/e2e", ("--version",)),
        ),
        BuildRecipe(
            f"kubernetes-e2e-{version}",
            kubernetes_stamps(version),
            folders=tuple(("k8s.io/kubernetes", f"test/images/{each}") for each in E2E_IMAGE_FILES),
            megabytes=2500,
        ),
        version_text=f"v{version}",
        on_demand=True,
    )


TOXIPROXY = "github.com/Shopify/toxiproxy/v2"
CONTAINERD_COMMANDS = ("containerd", "containerd-shim-runc-v2", "containerd-stress", "ctr")
TOOLS: tuple[GoTool, ...] = (
    own_program("pause", "3.9", 50),  # of pod sandboxes
    program(
        "toxiproxy",
        "2.5.0",
        Command("toxiproxy-server", f"{TOXIPROXY}/cmd/server", ("--version",)),
        "version ",
        BuildRecipe("toxiproxy-2.5.0", (f"{TOXIPROXY}.Version=2.5.0",), megabytes=150),
        on_demand=False,
    ),
    runc("1.5.2"),
    runc("1.4.0"),
    cni_plugins("1.9.1"),
    cni_plugins("1.7.1"),
    node_problem_detector("1.34.0"),
    containerd("2.4.2", CONTAINERD_COMMANDS),
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
    kubernetes("1.36.3", (*CONTROL_COMMANDS, *AGENT_COMMANDS)),
    kubernetes("1.36.3", (KUBE_PROXY,), name=KUBE_PROXY),
    kubernetes("1.35.4", AGENT_COMMANDS),
    kubernetes("1.35.4", (KUBE_PROXY,), name=KUBE_PROXY),
    kubernetes("1.34.4", (*CONTROL_COMMANDS, *AGENT_COMMANDS), on_demand=True),
    kubernetes("1.33.13", AGENT_COMMANDS, on_demand=True),
    own_program("podnet", "1.0", 400, on_demand=True),  # no published network plugin can be built here
    # As Kubernetes 1.36 needs it: with the etcd of Debian 12, a watch without a version fails.
    program(
        "etcd",
        "3.6.8",
        Command("etcd", "flexlab/etcd", ("--version",)),
        "etcd Version: ",
        BuildRecipe("etcd-3.6.8", megabytes=400),
    ),
    # With the plugins that a cluster uses.
    program(
        "coredns",
        "1.15.0",
        Command("coredns", "flexlab/coredns", ("-version",)),
        "CoreDNS-",
        BuildRecipe("coredns-1.15.0", megabytes=600),
    ),
    # In the version of a test: a later one needs rights that the test does not give it.
    program(
        "sample-apiserver",
        "0.29.2",
        Command("sample-apiserver", "k8s.io/sample-apiserver"),
        "v",
        BuildRecipe("sample-apiserver-0.29.2", megabytes=900),
    ),
    kubernetes_e2e("1.36.3"),
)

BUSYBOX = DebianTool("busybox", "busybox-static", ("busybox",), static=True)
DEBIAN_TOOLS: tuple[DebianTool, ...] = (
    DebianTool("etcd", "etcd-server", ("etcd",)),
    DebianTool("docker-registry", "docker-registry", ("docker-registry",)),
    DebianTool("dnsmasq", "dnsmasq-base", ("dnsmasq",)),
    DebianTool("openvpn", "openvpn", ("openvpn",)),
    BUSYBOX,
)

MACHINES_PYTHON = "3.11"  # the version of Debian 12, which most machines run


def azure_cli(release: str) -> tuple[PythonTool, ...]:
    """Returns the Azure CLI for the host's Python and for that of the lab's machines."""
    pythons = dict.fromkeys((OWN_PYTHON, MACHINES_PYTHON))
    return tuple(PythonTool("azure-cli", release, "azure.cli", ("az",), ("version",), each) for each in pythons)


PYTHON_TOOLS: tuple[PythonTool, ...] = azure_cli("2.91.0")

AnyTool: TypeAlias = "GoTool | DebianTool | PythonTool"
ALL_TOOLS: tuple[AnyTool, ...] = (*DEBIAN_TOOLS, *PYTHON_TOOLS, *TOOLS)


def go_tool(name: str) -> GoTool:
    """Returns the default version of a tool that the lab downloads or builds, also if it is installed on demand."""
    return next(tool for tool in TOOLS if tool.name == name)


# About how long builds take on two cores that do nothing else, with empty caches of Go and in this order: later ones
# find packages of earlier ones compiled. Others take less than a minute.
BUILD_MINUTES = {
    "node-problem-detector 1.34.0": 1.2,
    "containerd 2.4.2": 1.9,
    "containerd 1.7.29": 1.6,
    "kubernetes 1.36.3": 5,
    "kube-proxy 1.36.3": 0.5,
    "kubernetes 1.35.4": 3.5,
    "kube-proxy 1.35.4": 0.5,
    "kubernetes 1.34.4": 5,
    "kubernetes 1.33.13": 3.5,
    "podnet 1.0": 0.5,
    "etcd 3.6.8": 1,
    "coredns 1.15.0": 2,
    "sample-apiserver 0.29.2": 2,
    "kubernetes-e2e 1.36.3": 4,
}
# What every lab runs, and what its nodes run in their default versions.
LAB_TOOLS = (
    *(tool.name for tool in DEBIAN_TOOLS),
    *(
        go_tool(name).selector
        for name in (
            *("pause", "toxiproxy", "runc", "cni-plugins", "node-problem-detector"),
            *("containerd", "kubernetes"),
        )
    ),
)


def suite_tools() -> tuple[str, ...]:
    """Returns the selectors of all tools but those on demand."""
    return tuple(dict.fromkeys(tool.selector if isinstance(tool, GoTool) else tool.name for tool in select_tools()))


# What a node of another architecture than the host's needs: its programs and those of images, in default versions.
# The older version of Kubernetes is for upgrades.
FOREIGN_TOOLS: tuple[AnyTool, ...] = (
    BUSYBOX,
    *map(go_tool, ("pause", "runc", "cni-plugins", "node-problem-detector", "containerd")),
    *(kubernetes(tool.version, AGENT_COMMANDS) for tool in TOOLS if tool.name == "kubernetes" and not tool.on_demand),
)


def is_on_demand(tool: AnyTool) -> bool:
    return isinstance(tool, GoTool) and tool.on_demand


def tool_versions(name: str, tools: Sequence[AnyTool] = ALL_TOOLS) -> tuple[AnyTool, ...]:
    """Returns all versions of a tool, the default first."""
    known = tuple(tool for tool in tools if tool.name == name)
    if not known:
        raise UsageError(
            "tool-unknown",
            f"The catalog has no tool {name!r}.",
            did_you_mean(name, tuple(dict.fromkeys(tool.name for tool in tools))),
        )
    return known


def find_tool(name: str, version: str | None = None, tools: Sequence[AnyTool] = ALL_TOOLS) -> AnyTool:
    """Returns a tool in a version, or in its default version."""
    known = tool_versions(name, tools)
    for tool in known:
        if version in (None, tool.version):
            return tool
    raise UsageError(
        "tool-version-unknown",
        f"{name} {version} is not in the catalog.",
        f"The catalog has {', '.join(tool.version for tool in known)}.",
    )


def select_tools(selectors: Sequence[str] = (), tools: Sequence[AnyTool] = ALL_TOOLS) -> tuple[AnyTool, ...]:
    """Returns the tools for names such as `runc` (all versions) and `runc@1.4.0`; all tools without names.

    A tool on demand is returned only for its name with its version.
    """
    if not selectors:
        return tuple(tool for tool in tools if not is_on_demand(tool))
    chosen: list[AnyTool] = []
    for word in selectors:
        name, _, version = word.partition("@")
        named = [find_tool(name, version, tools)] if version else tool_versions(name, tools)
        chosen += [tool for tool in named if version or not is_on_demand(tool)]
    return tuple(dict.fromkeys(chosen))
