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
    return spec(config, machine, "kubernetes", NEEDED)


def desired_tools(config: NodeConfig, machine: Machine) -> Spec:
    """What a person needs and the kubelet does not: placed last, while the node is registering already."""
    return spec(config, machine, "kubernetes-tools", TOOLS)


def spec(config: NodeConfig, machine: Machine, home: str, programs: tuple[str, ...]) -> Spec:
    version, paths = plain(config.kubernetes.version or ""), config.paths
    place = f"{paths.install_dir}/{home}/{version}"
    return Spec(
        (
            Directory(f"{paths.install_dir}/{home}", ours=True),
            Program(place, "kubernetes", version, releases(config, machine, version, programs)),
            *(Link(f"{paths.bin_dir}/{name}", f"{place}/bin/{name}") for name in programs),
        )
    )


def releases(config: NodeConfig, machine: Machine, version: str, programs: tuple[str, ...]) -> tuple[Artifact, ...]:
    """Each by itself, or all out of one tarball, which is fetched once for whoever needs something of it.

    The places are the same either way, so that a node can change from one to the other.
    """
    template, hashes = config.kubernetes.url_template, config.kubernetes.sha256
    if "{name}" not in template:
        template = named(template, version, machine.arch)
    if template.endswith((".tar.gz", ".tgz")):
        wanted = tuple(Wanted(f"{INSIDE}/{name}", f"bin/{name}") for name in programs)
        return (artifact("kubernetes", version, filled(template, version, machine.arch), wanted, hashes),)
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
