"""The node-problem-detector component, which reports problems of the machine as conditions of its Node."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from aks_flex_node.agent.artifacts.model import ArtifactFile
from aks_flex_node.agent.components.artifact_urls import release
from aks_flex_node.agent.components.templates import command_argument, render_template
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, File, ProgramTree, Spec, Symlink, make_service

if TYPE_CHECKING:
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.settings.models import NodeConfig

UNIT = "/etc/systemd/system/node-problem-detector.service"
MONITORS = ("config/kernel-monitor.json", "config/readonly-monitor.json")


def desired(config: NodeConfig, machine: Machine) -> Spec:
    if not config.npd.enabled:
        return Spec()
    version, paths = config.npd.version, config.paths
    directory = f"{paths.install_dir}/npd/{version}"
    program = "bin/node-problem-detector"
    files = (ArtifactFile(program, program), ArtifactFile("config/", "config/"))
    kubeconfig = f"{paths.kubernetes.kubelet_dir}/kubeconfig"
    unit = File(
        UNIT, render_template(__name__, "node-problem-detector.service", **unit_values(config, machine, directory))
    )
    link = Symlink(f"{paths.bin_dir}/node-problem-detector", f"{directory}/{program}")
    return Spec(
        (
            Directory(f"{paths.install_dir}/npd", ours=True),
            ProgramTree(directory, "npd", version, (release("npd", config.npd, machine.arch, "vva", *files),)),
            link,
            unit,
            # It authenticates with the kubelet's credential, so it starts only when the kubeconfig exists.
            make_service("node-problem-detector.service", (unit, link), needs=kubeconfig, wait=False),
        )
    )


def unit_values(config: NodeConfig, machine: Machine, directory: str) -> dict[str, str]:
    server = config.node.kubelet.server_url or ""
    kubeconfig = f"{config.paths.kubernetes.kubelet_dir}/kubeconfig"
    return {
        "program": f"{config.paths.bin_dir}/node-problem-detector",
        "node": machine.node_name(config),
        "server": command_argument(f"{server}?inClusterConfig=false&auth={quote(kubeconfig)}"),
        "monitors": ",".join(f"{directory}/{name}" for name in MONITORS),
        "kubeconfig": kubeconfig,
    }


COMPONENT = Component("npd", "node-problem-detector", desired, reapply_after_join=True)
