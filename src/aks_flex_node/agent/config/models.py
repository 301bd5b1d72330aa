"""Every setting of a node as pydantic models, with meaning and default.

docs/configuration.md is generated from them.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, model_validator
from pydantic_core import PydanticCustomError

from aks_flex_node.agent.config.azure_models import Azure
from aks_flex_node.agent.config.base_model import ConfigModel, HttpsURL, Path, ProxyURL, Version


class Kubernetes(ConfigModel):
    version: Version | None = Field(
        default=None, description="Version of kubelet, kubectl and kubeadm, with its patch level."
    )
    url_template: str = Field(
        default="https://dl.k8s.io/v%s/bin/linux/%s/%s",
        description="Version, architecture, program; or version and architecture of a kubernetes-node tarball.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )


class Containerd(ConfigModel):
    version: Version = Field(default="2.4.2", description="Version of containerd: 1.7 or 2.x.")
    url: str = Field(
        default="https://github.com/containerd/containerd/releases/download/v%s/containerd-%s-linux-%s.tar.gz",
        validation_alias=AliasChoices("url", "urlTemplate"),
        description="Where it is: version, version, architecture.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )
    pause_image: str = Field(
        default="mcr.microsoft.com/oss/kubernetes/pause:3.9", description="Image of pod sandboxes."
    )
    metrics_address: str = Field(
        default="127.0.0.1:10257", description="Where containerd serves its metrics; empty for nowhere."
    )


class Runc(ConfigModel):
    version: Version = Field(default="1.5.2", description="Version of runc.")
    url: str = Field(
        default="https://github.com/opencontainers/runc/releases/download/v%s/runc.%s",
        validation_alias=AliasChoices("url", "urlTemplate"),
        description="Where it is: version, architecture.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )


class Cni(ConfigModel):
    version: Version = Field(default="1.9.1", description="Version of the CNI plugins.")
    url: str = Field(
        default="https://github.com/containernetworking/plugins/releases/download/v%s/cni-plugins-linux-%s-v%s.tgz",
        validation_alias=AliasChoices("url", "urlTemplate"),
        description="Where they are: version, architecture, version.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )
    bridge: bool = Field(
        default=True, description="Make a bridge network until the cluster's own network plugin brings its own."
    )


class Npd(ConfigModel):
    enabled: bool = Field(default=True, description="Run node-problem-detector.")
    version: Version = Field(default="1.34.0", description="Version of node-problem-detector.")
    url: str = Field(
        default="https://github.com/kubernetes/node-problem-detector/releases/download/v%s/node-problem-detector-v%s-linux_%s.tar.gz",
        validation_alias=AliasChoices("url", "urlTemplate"),
        description="Where it is: version, version, architecture.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )


class Kubelet(ConfigModel):
    server_url: str | None = Field(default=None, description="The API server, `https://…:443`.")
    ca_cert_data: str | None = Field(default=None, description="The cluster's CA certificate: PEM in base64.")
    ca_cert_file: Path | None = Field(default=None, description="A file with the cluster's CA certificate (PEM).")
    dns_service_ip: str | None = Field(default=None, description="Address of the cluster's DNS service.")
    cluster_domain: str = Field(default="cluster.local", description="The cluster's DNS domain.")
    kube_reserved: dict[str, str] = Field(default={}, description="Kept back for Kubernetes, e.g. `cpu: 100m`.")
    system_reserved: dict[str, str] = Field(default={}, description="Kept back for the system.")
    eviction_hard: dict[str, str] = Field(
        default={
            "memory.available": "100Mi",
            "nodefs.available": "10%",
            "imagefs.available": "15%",
            "nodefs.inodesFree": "5%",
        },
        description="When pods are evicted.",
    )
    verbosity: Annotated[int, Field(ge=0, le=10)] = Field(default=2, description="How much the kubelet logs.")
    image_gc_high_threshold: Annotated[int, Field(ge=0, le=100)] = Field(
        default=85, description="Disk use in percent above which images are removed."
    )
    image_gc_low_threshold: Annotated[int, Field(ge=0, le=100)] = Field(
        default=80, description="Disk use in percent down to which they are removed."
    )
    node_status_update_frequency: str = Field(default="10s", description="How often the kubelet reports.")
    pod_pids_limit: Annotated[int, Field(ge=-1)] = Field(default=4096, description="Processes that one pod may have.")
    cgroup_driver: Literal["auto", "systemd", "cgroupfs"] = Field(
        default="auto", description="`auto` looks at the machine."
    )
    auth: Literal["bootstrapToken", "exec", "certificate"] | None = Field(
        default=None,
        description="How the kubelet shows who it is. `exec`: by a token of the node's Azure identity at every call. "
        "`certificate`: by that token only until it has a certificate of its own, which is safer. `bootstrapToken`: "
        "by a bootstrap token until then. When left out: `bootstrapToken` where there is one or a provider is "
        "followed, else `exec` where there is an Azure identity.",
    )
    server_tls_bootstrap: bool = Field(
        default=False,
        description="Ask the cluster for a serving certificate; somebody there must approve it.",
    )
    extra_config: dict[str, object] = Field(
        default={}, description="Further keys of the KubeletConfiguration, as they are."
    )


class Taint(ConfigModel):
    key: str = Field(description="Its key.")
    value: str = Field(default="", description="Its value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(description="What it does.")

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        parts = re.fullmatch(r"(?P<key>[^=:]+)(=(?P<value>[^=:]*))?:(?P<effect>[^=:]+)", given)
        if parts is None:
            raise PydanticCustomError("taint", "is not a taint; write `key=value:Effect` or `key:Effect`")
        return {name: text for name, text in parts.groupdict().items() if text is not None}


class Node(ConfigModel):
    name: str | None = Field(
        default=None, description="Name of the node; the host name, in lower case, when left out."
    )
    ip: str | None = Field(
        default=None, description="Its address; the one that reaches the API server when left out."
    )
    labels: dict[str, str] = Field(default={}, description="Labels of the node.")
    taints: tuple[Taint, ...] = Field(
        default=(), description="Taints it registers with; `key=value:Effect` works too."
    )
    max_pods: Annotated[int, Field(ge=1, le=1024)] = Field(default=110, description="How many pods it may run.")
    kubelet: Kubelet = Field(default_factory=Kubelet, description="The kubelet.")


class KubernetesPaths(ConfigModel):
    config_dir: Path = Field(default="/etc/kubernetes", description="Kubernetes' configuration.")
    certs_dir: Path = Field(default="/etc/kubernetes/certs", description="The cluster's CA certificate.")
    manifests_dir: Path = Field(default="/etc/kubernetes/manifests", description="Static pods.")
    volume_plugin_dir: Path = Field(default="/etc/kubernetes/volumeplugins", description="Volume plugins.")
    kubelet_dir: Path = Field(default="/var/lib/kubelet", description="The kubelet's state.")


class CniPaths(ConfigModel):
    bin_dir: Path = Field(default="/opt/cni/bin", description="CNI plugins.")
    conf_dir: Path = Field(default="/etc/cni/net.d", description="CNI networks.")
    lib_dir: Path = Field(default="/var/lib/cni", description="What CNI plugins remember.")


class Paths(ConfigModel):
    config_dir: Path = Field(default="/etc/aks-flex-node", description="The agent's configuration.")
    data_dir: Path = Field(
        default="/var/lib/aks-flex-node", description="The agent's state, and artifacts it has fetched."
    )
    log_dir: Path = Field(default="/var/log/aks-flex-node", description="The agent's log.")
    install_dir: Path = Field(
        default="/opt/aks-flex-node", description="Programs, each version in a directory of its own."
    )
    bin_dir: Path = Field(default="/usr/local/bin", description="Links to programs.")
    sbin_dir: Path = Field(default="/usr/local/sbin", description="Link to runc.")
    containerd_dir: Path = Field(default="/var/lib/containerd", description="Images and containers.")
    kubernetes: KubernetesPaths = Field(default_factory=KubernetesPaths, description="Kubernetes.")
    cni: CniPaths = Field(default_factory=CniPaths, description="CNI.")


class Agent(ConfigModel):
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="What goes to the log."
    )
    log_file: Path | None = Field(default=None, description="The log file; agent.log in paths.logDir when left out.")
    log_dir: Path | None = Field(default=None, description="Another way to say paths.logDir.")
    join_seconds: Annotated[float, Field(gt=0)] = Field(
        default=180.0, description="How long the cluster may take to know the node and to find it Ready."
    )
    version: Version | None = Field(
        default=None, description="Version of the agent itself; the one that the machine came with when left out."
    )
    url: str = Field(
        default="https://github.com/Azure/AKSFlexNode/releases/download/v%s/aks-flex-node-%s-linux-%s.tar.gz",
        validation_alias=AliasChoices("url", "urlTemplate"),
        description="Where it is: version, version, architecture.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )
    unbootstrap_on_delete: bool = Field(
        default=True, description="Take the node apart when its resource is deleted; else it stays as it is."
    )
    drift_seconds: Annotated[float, Field(ge=1)] = Field(
        default=300.0,
        description="How often the agent that stays compares all of the machine with its configuration.",
    )
    metrics_file: Path | None = Field(
        default=None, description="A file for Prometheus' node exporter (textfile collector); none when left out."
    )


class Artifacts(ConfigModel):
    base_url: str | None = Field(
        default=None, description="A mirror: asked for `<baseURL>/<host>/<path>` instead of the publisher."
    )
    bundle: Path | None = Field(
        default=None, description="An offline bundle (directory or tar); nothing is fetched then."
    )
    ca_file: Path | None = Field(default=None, description="Trust this CA for downloads, besides the system's.")
    parallel: Annotated[int, Field(ge=1, le=32)] = Field(
        default=4, description="Downloads at a time; what a node needs first is fetched first."
    )
    attempts: Annotated[int, Field(ge=1, le=20)] = Field(default=5, description="How often a download is tried.")
    stall_seconds: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="Silence after which it is tried again."
    )


class Proxy(ConfigModel):
    http: ProxyURL | None = Field(
        default=None, repr=False, description="Proxy for http: `http://[user:password@]host:port`."
    )
    https: ProxyURL | None = Field(default=None, repr=False, description="Proxy for https.")
    no_proxy: tuple[str, ...] = Field(default=(), description="Hosts, domains and networks reached without a proxy.")


class MaintenanceWindow(ConfigModel):
    days: tuple[Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"], ...] = Field(
        default=(), description="Days on which it opens; every day when left out."
    )
    start: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] | None = Field(
        default=None, description="When it opens, `HH:MM`; it is always open when left out."
    )
    duration_minutes: Annotated[int, Field(ge=15, le=1440)] = Field(default=60, description="For how long.")
    time_zone: str = Field(default="UTC", description="Whose clock, such as `Europe/Berlin`.")


class Provider(ConfigModel):
    url: HttpsURL | None = Field(
        default=None, description="The resource provider to follow; Azure's resource manager when left out."
    )
    audience: str | None = Field(
        default=None, description="Whom tokens for it are made out to; Azure's resource manager when left out."
    )
    ca_cert_data: str | None = Field(
        default=None, description="CA certificates that vouch for it: PEM in base64; the system's when left out."
    )
    poll_seconds: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=30.0, description="How often it is asked, give or take a third."
    )
    wait_seconds: Annotated[int, Field(ge=0, le=55)] = Field(
        default=50, description="How long it may hold an answer until there is news; 0 for not at all."
    )


class UpdatePolicy(ConfigModel):
    paused: bool = Field(default=False, description="Change nothing for now: what is new waits.")
    allow_downgrade: bool = Field(default=False, description="Go back to older versions where they are wanted.")
    drain: bool = Field(default=True, description="Move pods away before kubelet or runtime are replaced.")
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        default=300, description="How long that may take."
    )
    health_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = Field(
        default=300, description="How long the node may take to be Ready again before a change is undone."
    )
    maintenance_window: MaintenanceWindow = Field(
        default_factory=MaintenanceWindow, description="When changes that disturb pods may begin."
    )


class NodeConfig(ConfigModel):
    """Everything that makes this machine a node."""

    azure: Azure = Field(default_factory=Azure, description="Azure and the cluster.")
    node: Node = Field(default_factory=Node, description="The node.")
    kubernetes: Kubernetes = Field(default_factory=Kubernetes, description="Kubernetes.")
    containerd: Containerd = Field(default_factory=Containerd, description="containerd.")
    runc: Runc = Field(default_factory=Runc, description="runc.")
    cni: Cni = Field(default_factory=Cni, description="CNI plugins and the node's own network.")
    npd: Npd = Field(default_factory=Npd, description="node-problem-detector.")
    paths: Paths = Field(default_factory=Paths, description="Where everything is.")
    agent: Agent = Field(default_factory=Agent, description="The agent.")
    artifacts: Artifacts = Field(default_factory=Artifacts, description="Where programs come from.")
    proxy: Proxy = Field(default_factory=Proxy, description="Proxies, for downloads, containerd and kubelet.")
    registry_mirrors: dict[str, tuple[str, ...]] = Field(
        default={}, description="Mirrors of image registries: `mcr.microsoft.com: [https://mirror.example]`."
    )
    drift_policy: Literal["log", "repair"] = Field(
        default="repair", description="What the agent that stays does about changes made by hand."
    )
    update_policy: UpdatePolicy = Field(
        default_factory=UpdatePolicy, description="How the agent that stays carries out changes."
    )
    provider: Provider = Field(default_factory=Provider, description="The resource provider that the agent follows.")
    continuous_monitoring: bool = Field(default=False, description="Stay and follow the configuration in Azure.")
