"""The KubeletConfiguration file. The same settings always give the same bytes: it never restarts for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config.derived import kubelet_auth
from aks_flex_node.agent.marks import MARK

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine

# The CIS benchmark's list: forward secrecy, authenticated encryption, nothing else.
CIPHERS = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
]


def configuration(config: NodeConfig, machine: Machine) -> bytes:
    import yaml  # noqa: PLC0415

    document = {**settings(config, machine), **config.node.kubelet.extra_config}
    return f"# {MARK}\n{yaml.safe_dump(document, sort_keys=True)}".encode()


def settings(config: NodeConfig, machine: Machine) -> dict[str, Any]:
    kubelet, places = config.node.kubelet, config.paths.kubernetes
    chosen: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        **security(config),
        "cgroupDriver": machine.cgroup_driver(config),
        "clusterDomain": kubelet.cluster_domain,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": dict(kubelet.eviction_hard),
        # Swap is off. If a reboot brings it back in a way that we do not know, the node must come up all the same.
        "failSwapOn": False,
        "imageGCHighThresholdPercent": kubelet.image_gc_high_threshold,
        "imageGCLowThresholdPercent": kubelet.image_gc_low_threshold,
        "maxPods": config.node.max_pods,
        "nodeStatusUpdateFrequency": kubelet.node_status_update_frequency,
        "resolvConf": machine.resolv_conf,
        "runtimeRequestTimeout": "15m",
        "staticPodPath": places.manifests_dir,
        "volumePluginDir": places.volume_plugin_dir,
    }
    if machine.cgroups == 1:
        chosen["failCgroupV1"] = False
    if kubelet.dns_service_ip:
        chosen["clusterDNS"] = [kubelet.dns_service_ip]
    for key, value in (("kubeReserved", kubelet.kube_reserved), ("systemReserved", kubelet.system_reserved)):
        if value:
            chosen[key] = dict(value)
    return chosen


def security(config: NodeConfig) -> dict[str, Any]:
    """What the CIS benchmark asks of a worker."""
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
        "podPidsLimit": config.node.kubelet.pod_pids_limit,
        "protectKernelDefaults": True,
        "readOnlyPort": 0,
        # A kubelet that shows tokens has no certificate to renew, and would ask for one if it were to.
        "rotateCertificates": kubelet_auth(config) != "exec",
        "seccompDefault": True,
        "serverTLSBootstrap": config.node.kubelet.server_tls_bootstrap,
        "streamingConnectionIdleTimeout": "4h0m0s",
        "tlsCipherSuites": CIPHERS,
        "tlsMinVersion": "VersionTLS12",
    }
