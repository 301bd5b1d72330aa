"""The kubelet: its configuration, its unit, and itself."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.environment import proxy_lines
from aks_flex_node.agent.components.kubeconfigs import by_azure, kubeconfig
from aks_flex_node.agent.components.kubelet.configuration import configuration
from aks_flex_node.agent.components.sources import plain
from aks_flex_node.agent.components.templates import filled
from aks_flex_node.agent.config.derived import ca_certificate, kubelet_auth
from aks_flex_node.agent.engine.component import Component
from aks_flex_node.agent.engine.resources import Directory, File, Found, Line, Spec, service
from aks_flex_node.api.node_marks import MANAGED

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine

UNIT = "/etc/systemd/system/kubelet.service"
DROPINS = f"{UNIT}.d"
DEFAULTS = "/etc/default/kubelet"
REGISTRATION = "/etc/default/kubelet-node"
DEFAULT_DIRECTORY = "/var/lib/kubelet"


def desired(config: NodeConfig, machine: Machine) -> Spec:
    places = config.paths.kubernetes
    values = unit_values(config, machine)
    inputs: tuple[File | Line, ...] = (
        File(f"{places.kubelet_dir}/config.yaml", configuration(config, machine), 0o600),
        # The proxies in it may hold a password.
        File(DEFAULTS, filled(__name__, "defaults", **values), 0o600, secret=bool(values["environment"])),
        File(UNIT, filled(__name__, "kubelet.service", **values), 0o600),
        File(f"{DROPINS}/10-containerd.conf", filled(__name__, "10-containerd.conf", **values), 0o600),
        File(f"{DROPINS}/10-kubeadm.conf", filled(__name__, "10-kubeadm.conf", **values), 0o600),
        own_kubeconfig(config),
    )
    return Spec(
        (
            Directory(places.manifests_dir),
            Directory(places.volume_plugin_dir),
            Directory(f"{places.kubelet_dir}/pods", 0o750),
            # The kubelet puts the sockets of device plugins there, wherever the rest of it is.
            *([Found(DEFAULT_DIRECTORY)] if places.kubelet_dir != DEFAULT_DIRECTORY else []),
            Found("/var/log/pods"),
            Found("/var/log/containers"),
            Directory(DROPINS),
            # What a kubelet says of itself when it makes its Node. Afterwards that is on the Node, and changes of it
            # are brought there by others; so this is none of the inputs that a kubelet is restarted for.
            File(REGISTRATION, filled(__name__, "registration", **values), 0o600),
            *inputs,
            service("kubelet.service", inputs, *installed(config)),
        )
    )


def own_kubeconfig(config: NodeConfig) -> File | Line:
    path = f"{config.paths.kubernetes.kubelet_dir}/kubeconfig"
    if kubelet_auth(config) == "exec":
        return File(path, kubeconfig(config, by_azure(config)), 0o600)
    # Written by the kubelet when it has joined; an API server that moves is followed by this one line.
    return Line(path, "server: ", config.node.kubelet.server_url or "")


def installed(config: NodeConfig) -> tuple[str, str]:
    """What the kubelet also depends on, and other components bring: its version, and whom it trusts."""
    authority = hashlib.sha256(ca_certificate(config) or b"").hexdigest()
    return f"kubelet {plain(config.kubernetes.version or '')}", f"authority {authority}"


def labels(config: NodeConfig) -> dict[str, str]:
    """What the Node is to bear."""
    return {**config.node.labels, **MANAGED}


def unit_values(config: NodeConfig, machine: Machine) -> dict[str, str]:
    kubelet_dir = config.paths.kubernetes.kubelet_dir
    # A node that is followed gets a new token when it has lost its certificate, and needs no other unit for that. A
    # kubelet that has a certificate does not look whether there is such a file.
    auth = kubelet_auth(config)
    may_bootstrap = config.azure.bootstrap_token or config.continuous_monitoring or auth == "certificate"
    bootstrap = (
        f" --bootstrap-kubeconfig={kubelet_dir}/bootstrap-kubeconfig" if may_bootstrap and auth != "exec" else ""
    )
    return {
        "program": f"{config.paths.bin_dir}/kubelet",
        "labels": ",".join(f"{key}={value}" for key, value in sorted(labels(config).items())),
        "taints": registered_taints(config),
        "flags": " ".join(flags(config, machine)),
        "credentials": f"--kubeconfig={kubelet_dir}/kubeconfig --cert-dir={kubelet_dir}/pki{bootstrap}",
        "environment": proxy_lines(config.proxy),
    }


def registered_taints(config: NodeConfig) -> str:
    """As a flag, because all of the configuration file is an input that a kubelet is restarted for."""
    words = [f"{taint.key}={taint.value}:{taint.effect}" for taint in config.node.taints]
    return f"--register-with-taints={','.join(words)}" if words else ""


def flags(config: NodeConfig, machine: Machine) -> list[str]:
    """The few settings that have no place in the configuration file."""
    kubelet_dir = config.paths.kubernetes.kubelet_dir
    chosen = [
        f"--config={kubelet_dir}/config.yaml",
        f"--root-dir={kubelet_dir}",
        f"--v={config.node.kubelet.verbosity}",
    ]
    if machine.address:
        # A kubelet that is not told looks its own name up first, and waits half a minute where nobody answers.
        chosen.append(f"--node-ip={machine.address}")
    if config.node.name and config.node.name != machine.hostname.lower():
        chosen.append(f"--hostname-override={config.node.name}")
    return chosen


COMPONENT = Component("kubelet", "the kubelet", desired)
