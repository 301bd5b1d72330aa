"""The cluster network, an optional part of the lab: network plugin, kube-proxy and CoreDNS on every node.

Their images are built from the lab's tools. In the cluster they are three DaemonSets with accounts, roles and
settings.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network
from aks_flex_lab.components.pod_routes import pod_routes_component
from aks_flex_lab.images.builder import (
    ContainerConfig,
    LayerEntry,
    LayerFile,
    LayerLink,
    OciImage,
    TaggedImage,
    make_image,
    make_layer,
)
from aks_flex_lab.images.package_layer import package_entries
from aks_flex_lab.tools.catalog import go_tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.progress import ProgressReporter
    from aks_flex_lab.tools.toolbox import Toolbox

REGISTRY_HOST = "registry.k8s.io"
PODNET_TOOL, COREDNS_TOOL, PROXY_TOOL = go_tool("podnet"), go_tool("coredns"), go_tool("kube-proxy")
NETWORK_TOOLS = tuple(tool.selector for tool in (PODNET_TOOL, COREDNS_TOOL, PROXY_TOOL))  # most labs do not need them
PODNET = ("flex/podnet", PODNET_TOOL.version)
KUBE_PROXY = ("kube-proxy", f"v{PROXY_TOOL.version}")
COREDNS = ("coredns/coredns", f"v{COREDNS_TOOL.version}")
PROXY_PACKAGES = ("iptables",)
FIREWALL_COMMANDS = (
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
)
NAMESPACE = "kube-system"
PODNET_NAME, PROXY_NAME, DNS_NAME = "podnet", "kube-proxy", "coredns"
DAEMON_SETS = (PODNET_NAME, PROXY_NAME, DNS_NAME)
CNI_DIRECTORY = "/etc/cni/net.d"

COREFILE = f"""\
.:53 {{
    errors
    health {{
        lameduck 1s
    }}
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }}
    forward . {network.DNS}
    cache 5
    loadbalance
    reload
}}
"""
# kube-proxy must not write the conntrack limits: all machines of the lab share a kernel.
PROXY_CONFIG = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "iptables",
    "clusterCIDR": network.PODS,
    "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
}

Object = dict[str, Any]


def install_network(lab: Lab, progress: ProgressReporter) -> None:
    """Installs the network plugin, kube-proxy and CoreDNS; existing and later nodes run them."""
    lab.toolbox.install(NETWORK_TOOLS, progress, purpose="the cluster network")
    with progress.step("images of the cluster network"):
        plugin = lab.toolbox.path("podnet", "podnet")
        dns = lab.toolbox.path("coredns", "coredns")
        lab.services.push(
            (
                TaggedImage(*PODNET, program_image(plugin, lab.toolbox.arch)),
                TaggedImage(*COREDNS, program_image(dns, lab.toolbox.arch)),
                TaggedImage(*KUBE_PROXY, kube_proxy_image(lab.toolbox)),
            )
        )
    with progress.step("routes to pods, network plugin, kube-proxy, CoreDNS"):
        lab.supervisor.start(pod_routes_component(lab.layout))
        lab.cluster.apply(*podnet_objects(), *proxy_objects(), *dns_objects())


def program_image(program: Path, architecture: str, *entries: LayerEntry) -> OciImage:
    """Builds an image that runs one program."""
    layer = make_layer([*entries, LayerFile(f"/{program.name}", program, 0o755)])
    return make_image(layer, ContainerConfig(entrypoint=(f"/{program.name}",)), architecture)


def kube_proxy_image(toolbox: Toolbox) -> OciImage:
    """Builds the image of kube-proxy with iptables, whose commands are links that its package's script creates."""
    links = [LayerLink(f"/usr/sbin/{name}", "xtables-nft-multi") for name in FIREWALL_COMMANDS]
    packages = package_entries(PROXY_PACKAGES, toolbox.cache)
    return program_image(toolbox.path("kube-proxy", "kube-proxy"), toolbox.arch, *packages, *links)


def reference(image: tuple[str, str]) -> str:
    return f"{REGISTRY_HOST}/{image[0]}:{image[1]}"


def podnet_objects() -> list[Object]:
    container = {
        "name": PODNET_NAME,
        "image": reference(PODNET),
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "CNI_CONF_DIR", "value": CNI_DIRECTORY},
        ],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
        "volumeMounts": [{"name": "cni", "mountPath": CNI_DIRECTORY}],
    }
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]
    volumes = [{"name": "cni", "hostPath": {"path": CNI_DIRECTORY, "type": "DirectoryOrCreate"}}]
    return [
        *account(PODNET_NAME),
        role(PODNET_NAME, rules),
        binding(PODNET_NAME, PODNET_NAME),
        daemon_set(PODNET_NAME, container, volumes, hostNetwork=True),
    ]


def proxy_objects() -> list[Object]:
    container = {
        "name": PROXY_NAME,
        "image": reference(KUBE_PROXY),
        "args": ["--config=/etc/kube-proxy/config.json", "--hostname-override=$(NODE_NAME)"],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": True},
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/kube-proxy"},
            {"name": "lock", "mountPath": "/run/xtables.lock"},
        ],
    }
    volumes = [
        {"name": "config", "configMap": {"name": PROXY_NAME}},
        {"name": "lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
    ]
    return [
        *account(PROXY_NAME),
        binding(PROXY_NAME, "system:node-proxier"),
        config_map(PROXY_NAME, {"config.json": json.dumps(PROXY_CONFIG)}),
        daemon_set(PROXY_NAME, container, volumes, hostNetwork=True),
    ]


def dns_objects() -> list[Object]:
    container = {
        "name": DNS_NAME,
        "image": reference(COREDNS),
        "args": ["-conf=/etc/coredns/Corefile"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
    }
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    volumes = [{"name": "config", "configMap": {"name": DNS_NAME}}]
    # It asks the lab's DNS server itself: with ClusterFirst it would ask itself.
    pod = {"dnsPolicy": "Default"}
    return [
        *account(DNS_NAME),
        role(DNS_NAME, rules),
        binding(DNS_NAME, DNS_NAME),
        config_map(DNS_NAME, {"Corefile": COREFILE}),
        daemon_set(DNS_NAME, container, volumes, **pod),
        dns_service(),
    ]


def dns_service() -> Object:
    ports = [{"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    spec = {"clusterIP": network.DNS_SERVICE, "selector": {"app": DNS_NAME}, "ports": ports}
    return _object("v1", "Service", "kube-dns", namespaced=True, spec=spec)


def daemon_set(name: str, container: Object, volumes: Sequence[Object], **pod: Any) -> Object:
    """Returns a DaemonSet that runs on every node, also on one that is not ready or is tainted."""
    labels = {"app": name}
    spec = {
        "serviceAccountName": name,
        "priorityClassName": "system-node-critical",
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": list(volumes),
        **pod,
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return _object(
        "apps/v1",
        "DaemonSet",
        name,
        namespaced=True,
        spec={"selector": {"matchLabels": labels}, "template": template},
    )


def account(name: str) -> list[Object]:
    return [_object("v1", "ServiceAccount", name, namespaced=True)]


def role(name: str, rules: list[Object]) -> Object:
    return _object("rbac.authorization.k8s.io/v1", "ClusterRole", name, rules=rules)


def binding(name: str, cluster_role: str) -> Object:
    return _object(
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        f"flex-lab:{name}",
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": cluster_role},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
    )


def config_map(name: str, data: Mapping[str, str]) -> Object:
    return _object("v1", "ConfigMap", name, namespaced=True, data=dict(data))


def _object(version: str, kind: str, name: str, *, namespaced: bool = False, **fields: Any) -> Object:
    metadata = {"name": name, **({"namespace": NAMESPACE} if namespaced else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
