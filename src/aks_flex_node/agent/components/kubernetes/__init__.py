"""kubelet, kubectl and kubeadm, from single files or from a node tarball."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts import Wanted
from aks_flex_node.agent.components.sources import artifact, filled, named, plain
from aks_flex_node.agent.engine.component import Component
from aks_flex_node.agent.engine.resources import Directory, Link, Program, Spec

if TYPE_CHECKING:
    from aks_flex_node.agent.artifacts import Artifact
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine

NEEDED = ("kubelet",)  # a node runs without the others, so nothing waits for them
TOOLS = ("kubectl", "kubeadm")
INSIDE = "kubernetes/node/bin"


def desired(config: NodeConfig, machine: Machine) -> Spec:
    template = address(config, machine)
    if is_tarball(template):
        return spec(config, "kubernetes", NEEDED + TOOLS, (tarball(config, machine, template),))
    return spec(config, "kubernetes", NEEDED, singles(config, machine, template, NEEDED))


def desired_tools(config: NodeConfig, machine: Machine) -> Spec:
    """What a person needs and the kubelet does not: fetched last, while the node is registering already."""
    template = address(config, machine)
    if is_tarball(template):
        return Spec()  # they came with the kubelet
    return spec(config, "kubernetes-tools", TOOLS, singles(config, machine, template, TOOLS))


def spec(config: NodeConfig, home: str, programs: tuple[str, ...], artifacts: tuple[Artifact, ...]) -> Spec:
    version, paths = plain(config.kubernetes.version or ""), config.paths
    place = f"{paths.install_dir}/{home}/{version}"
    return Spec(
        (
            Directory(f"{paths.install_dir}/{home}", ours=True),
            Program(place, "kubernetes", version, artifacts),
            *(Link(f"{paths.bin_dir}/{name}", f"{place}/bin/{name}") for name in programs),
        )
    )


def address(config: NodeConfig, machine: Machine) -> str:
    template = config.kubernetes.url_template
    return template if "{name}" in template else named(template, plain(config.kubernetes.version or ""), machine.arch)


def is_tarball(template: str) -> bool:
    return template.endswith((".tar.gz", ".tgz"))


def tarball(config: NodeConfig, machine: Machine, template: str) -> Artifact:
    version, hashes = plain(config.kubernetes.version or ""), config.kubernetes.sha256
    wanted = tuple(Wanted(f"{INSIDE}/{name}", f"bin/{name}") for name in NEEDED + TOOLS)
    return artifact("kubernetes", version, filled(template, version, machine.arch), wanted, hashes)


def singles(config: NodeConfig, machine: Machine, template: str, programs: tuple[str, ...]) -> tuple[Artifact, ...]:
    version, hashes = plain(config.kubernetes.version or ""), config.kubernetes.sha256
    if template.count("%s") < 3 and "{name}" not in template:
        template = template.rstrip("/") + "/%s"  # an address of the directory that holds them
    return tuple(
        artifact(
            "kubernetes",
            version,
            _single(template, version, machine.arch, name),
            (Wanted("", f"bin/{name}"),),
            hashes,
        )
        for name in programs
    )


def _single(template: str, version: str, arch: str, name: str) -> str:
    """The program comes last; before it the version, and before that the architecture, as far as there is room."""
    template = named(template, version, arch, name)
    words = {1: (name,), 2: (version, name)}.get(template.count("%s"), (version, arch, name))
    return filled(template, *words)


COMPONENT = Component("kubernetes", "the kubelet's program", desired)
PERSONS = Component("tools", "kubectl, kubeadm", desired_tools)
