"""The kubelet component: KubeletConfiguration, kubeconfig, environment files, unit."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.components.templates import exec_user, kubeconfig, proxy_environment, render_template
from aks_flex_node.agent.config.resolved import ca_certificate, kubelet_auth, kubelet_credential_file
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import (
    MANAGED_MARK,
    Directory,
    File,
    FileLine,
    PemFile,
    RuntimePath,
    Spec,
    make_service,
)
from aks_flex_node.api.contract import MANAGED_LABEL
from aks_flex_node.settings.table import keys, value_at

if TYPE_CHECKING:
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.settings.models import NodeConfig


# The list of the CIS benchmark: only suites with forward secrecy and authenticated encryption.
TLS_CIPHERS = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
]


def kubelet_configuration(config: NodeConfig, machine: Machine) -> bytes:
    """Renders the file as JSON, which all versions of YAML read the same: a text such as `y` or `1e+3` stays one."""
    document = {**kubelet_settings(config, machine), **config.node.kubelet.extra_config}
    return f"# {MANAGED_MARK}\n{json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)}\n".encode()


def kubelet_settings(config: NodeConfig, machine: Machine) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        **security_settings(config),
        **own_fields(config),
        "cgroupDriver": machine.cgroup_driver(config),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        # Swap is disabled. If it is enabled again after a reboot, the node must still start.
        "failSwapOn": False,
        "resolvConf": machine.resolv_conf,
        "runtimeRequestTimeout": "15m",
    }
    if machine.cgroups == 1:
        chosen["failCgroupV1"] = False
    if config.node.kubelet.dns_service_ip:
        chosen["clusterDNS"] = [config.node.kubelet.dns_service_ip]
    return chosen


def own_fields(config: NodeConfig) -> dict[str, Any]:
    """Returns the fields to which the table of settings writes a setting unchanged."""
    values = {key.setting.kubelet: value_at(config, key) for key in keys() if key.setting.kubelet}
    return {field: value for field, value in values.items() if value is not None}


def security_settings(config: NodeConfig) -> dict[str, Any]:
    """Returns the settings that the CIS benchmark requires for a worker node."""
    authority = f"{config.paths.kubernetes.certs_dir}/ca.crt"
    return {
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": authority},
        },
        "authorization": {"mode": "Webhook"},
        "eventRecordQPS": 50,
        "makeIPTablesUtilChains": True,
        "protectKernelDefaults": True,
        "readOnlyPort": 0,
        # A kubelet that authenticates with tokens must not request a client certificate.
        "rotateCertificates": kubelet_auth(config) != "exec",
        "seccompDefault": True,
        "streamingConnectionIdleTimeout": "4h0m0s",
        "tlsCipherSuites": TLS_CIPHERS,
        "tlsMinVersion": "VersionTLS12",
    }


UNIT = "/etc/systemd/system/kubelet.service"
DROPINS = f"{UNIT}.d"
DEFAULTS = "/etc/default/kubelet"
REGISTRATION = "/etc/default/kubelet-node"
DEFAULT_DIRECTORY = "/var/lib/kubelet"


def desired(config: NodeConfig, machine: Machine) -> Spec:
    kubernetes_paths = config.paths.kubernetes
    values = unit_values(config, machine)
    inputs: tuple[File | FileLine, ...] = (
        File(f"{kubernetes_paths.kubelet_dir}/config.yaml", kubelet_configuration(config, machine), 0o600),
        # Proxy URLs may contain a password.
        File(DEFAULTS, render_template(__name__, "defaults", **values), 0o600, secret=bool(values["environment"])),
        File(UNIT, render_template(__name__, "kubelet.service", **values), 0o600),
        File(f"{DROPINS}/10-containerd.conf", render_template(__name__, "10-containerd.conf", **values), 0o600),
        File(f"{DROPINS}/10-kubeadm.conf", render_template(__name__, "10-kubeadm.conf", **values), 0o600),
        own_kubeconfig(config),
    )
    other_directory = kubernetes_paths.kubelet_dir != DEFAULT_DIRECTORY
    default_directory = (RuntimePath(DEFAULT_DIRECTORY, is_directory=True),) if other_directory else ()
    return Spec(
        (
            Directory(kubernetes_paths.manifests_dir),
            Directory(kubernetes_paths.volume_plugin_dir),
            Directory(f"{kubernetes_paths.kubelet_dir}/pods", 0o750),
            # The kubelet always creates the device plugin sockets in this directory.
            *default_directory,
            RuntimePath("/var/log/pods", is_directory=True),
            RuntimePath("/var/log/containers", is_directory=True),
            Directory(DROPINS),
            # The kubelet reads these only when it registers its Node. The agent and the provider apply later changes
            # to the Node, so a change does not require a restart.
            File(REGISTRATION, render_template(__name__, "registration", **values), 0o600),
            *inputs,
            *certificate_files(config),
            make_service("kubelet.service", (*inputs, *certificate_files(config)), *installed(config)),
        )
    )


def certificate_files(config: NodeConfig) -> tuple[PemFile, ...]:
    """Returns the certificates and keys that the kubelet creates when it starts and they are missing. It does not
    start with damaged ones.
    """
    folder = f"{config.paths.kubernetes.kubelet_dir}/pki"
    certificate, key = f"{folder}/kubelet.crt", f"{folder}/kubelet.key"
    return (
        *([PemFile(kubelet_credential_file(config))] if kubelet_auth(config) != "exec" else []),
        PemFile(f"{folder}/kubelet-server-current.pem"),
        PemFile(certificate, ("CERTIFICATE",), key),
        PemFile(key, ("PRIVATE KEY",), certificate),
    )


def own_kubeconfig(config: NodeConfig) -> File | FileLine:
    path = f"{config.paths.kubernetes.kubelet_dir}/kubeconfig"
    if kubelet_auth(config) == "exec":
        return File(path, kubeconfig(config, exec_user(config)), 0o600)
    # The kubelet writes this file when it has joined; only the server line is updated when the API server moves.
    return FileLine(path, "server: ", config.node.kubelet.server_url or "")


def installed(config: NodeConfig) -> tuple[str, str]:
    """Returns restart inputs from other components: the kubelet's version and the cluster CA."""
    authority = hashlib.sha256(ca_certificate(config) or b"").hexdigest()
    return f"kubelet {config.kubernetes.version}", f"authority {authority}"


def labels(config: NodeConfig) -> dict[str, str]:
    """Returns the desired labels of the Node. A node of an AKS pool sets those that AKS expects of its nodes."""
    return {**config.node.labels, **MANAGED_LABEL, **pool_labels(config.azure.target_agent_pool_name or "")}


def pool_labels(pool: str) -> dict[str, str]:
    """Returns the labels by which AKS recognizes a node of a flex node pool."""
    if not pool:
        return {}
    own = {"agentpool": pool, "mode": "user", "nodepool-type": "FlexNodes"}
    return {f"kubernetes.azure.com/{key}": value for key, value in own.items()}


def unit_values(config: NodeConfig, machine: Machine) -> dict[str, str]:
    kubelet_dir = config.paths.kubernetes.kubelet_dir
    # The unit of a managed node always names the bootstrap kubeconfig, because the node gets a new token after it
    # lost its certificate. A kubelet with a certificate ignores the option.
    auth = kubelet_auth(config)
    has_source = config.continuous_monitoring or config.azure.target_agent_pool_name
    may_bootstrap = config.azure.bootstrap_token or has_source or auth == "certificate"
    bootstrap = (
        f" --bootstrap-kubeconfig={kubelet_dir}/bootstrap-kubeconfig" if may_bootstrap and auth != "exec" else ""
    )
    taints = [f"{taint.key}={taint.value}:{taint.effect}" for taint in config.node.taints]
    return {
        "program": f"{config.paths.bin_dir}/kubelet",
        "labels": ",".join(f"{key}={value}" for key, value in sorted(labels(config).items())),
        # A flag, because a change of the configuration file would restart the kubelet.
        "taints": f"--register-with-taints={','.join(taints)}" if taints else "",
        "flags": " ".join(flags(config, machine)),
        "credentials": f"--kubeconfig={kubelet_dir}/kubeconfig --cert-dir={kubelet_dir}/pki{bootstrap}",
        "environment": proxy_environment(config.proxy),
    }


def flags(config: NodeConfig, machine: Machine) -> list[str]:
    """Returns the settings that can only be set as command-line flags."""
    kubelet_dir = config.paths.kubernetes.kubelet_dir
    chosen = [
        f"--config={kubelet_dir}/config.yaml",
        f"--root-dir={kubelet_dir}",
        f"--v={config.node.kubelet.verbosity}",
    ]
    if machine.address:
        # Without it, the kubelet resolves its host name, and waits half a minute if no name server responds.
        chosen.append(f"--node-ip={machine.address}")
    if config.node.name and config.node.name != machine.hostname.lower():
        chosen.append(f"--hostname-override={config.node.name}")
    return chosen


COMPONENT = Component("kubelet", "the kubelet", desired)
