"""The kubernetes components: kubelet, kubectl and kubeadm, from single files or from a node tarball."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile
from aks_flex_node.agent.components.artifact_urls import artifact, fill_named_url, fill_url
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, ProgramTree, Spec, Symlink
from aks_flex_node.settings.models import Kubernetes, NodeConfig

if TYPE_CHECKING:
    from aks_flex_node.agent.machine import Machine

REQUIRED_PROGRAMS = ("kubelet",)  # the others are not required for a running node
TOOL_PROGRAMS = ("kubectl", "kubeadm")
TARBALL_DIR = "kubernetes/node/bin"
PUBLISHER_TARBALL = "https://dl.k8s.io/v%s/kubernetes-node-linux-%s.tar.gz"


def desired(config: NodeConfig, machine: Machine) -> Spec:
    return spec(config, machine, "kubernetes", REQUIRED_PROGRAMS)


def desired_tools(config: NodeConfig, machine: Machine) -> Spec:
    """Returns the spec of kubectl and kubeadm, which are installed last, while the node registers."""
    return spec(config, machine, "kubernetes-tools", TOOL_PROGRAMS)


def spec(config: NodeConfig, machine: Machine, home: str, programs: tuple[str, ...]) -> Spec:
    version, paths = config.kubernetes.version or "", config.paths
    directory = f"{paths.install_dir}/{home}/{version}"
    return Spec(
        (
            Directory(f"{paths.install_dir}/{home}", ours=True),
            ProgramTree(directory, "kubernetes", version, releases(config, machine, version, programs)),
            *(Symlink(f"{paths.bin_dir}/{name}", f"{directory}/bin/{name}") for name in programs),
        )
    )


def releases(config: NodeConfig, machine: Machine, version: str, programs: tuple[str, ...]) -> tuple[Artifact, ...]:
    """Returns one artifact per program, or one tarball for all, which is downloaded only once.

    The installed paths are the same in both cases, so that a node can switch between them.
    """
    template, hashes = config.kubernetes.url_template, config.kubernetes.sha256
    if "{name}" not in template:
        template = fill_named_url(template, version, machine.arch)
    if template.endswith((".tar.gz", ".tgz")):
        files = tuple(ArtifactFile(f"{TARBALL_DIR}/{name}", f"bin/{name}") for name in programs)
        url, publisher = (fill_url(each, version, machine.arch) for each in (template, PUBLISHER_TARBALL))
        return (artifact("kubernetes", version, url, files, hashes, publisher),)
    if template.count("%s") < 3 and "{name}" not in template:
        template = template.rstrip("/") + "/%s"  # the URL of the directory
    return tuple(
        artifact(
            "kubernetes",
            version,
            _single(template, version, machine.arch, name),
            (ArtifactFile("", f"bin/{name}"),),
            hashes,
            fill_url(Kubernetes().url_template, version, machine.arch, name),
        )
        for name in programs
    )


def _single(template: str, version: str, arch: str, name: str) -> str:
    """Fills a template with one, two or three `%s`: name; version and name; or version, architecture and name."""
    template = fill_named_url(template, version, arch, name)
    values = {1: (name,), 2: (version, name)}.get(template.count("%s"), (version, arch, name))
    return fill_url(template, *values)


COMPONENT = Component("kubernetes", "the kubelet's program", desired)
TOOLS_COMPONENT = Component("tools", "kubectl, kubeadm", desired_tools)
