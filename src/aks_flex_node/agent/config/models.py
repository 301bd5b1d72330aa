"""Every setting of a node as typed models, with meaning and default.

docs/reference/configuration.md is generated from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from aks_flex_node.agent.config.azure_models import Azure
from aks_flex_node.agent.config.base_model import ConfigModel, HttpsURL, Path, ProxyURL, TimeOfDay, Version
from aks_flex_node.agent.redaction import redact


class Kubernetes(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[
        Version | None, Meta(description="Version of kubelet, kubectl and kubeadm, with its patch level.")
    ] = None
    url_template: Annotated[
        str,
        Meta(description="Version, architecture, program; or version and architecture of a kubernetes-node tarball."),
    ] = "https://dl.k8s.io/v%s/bin/linux/%s/%s"
    sha256: Annotated[
        dict[str, str], Meta(description="Expected hashes by file name; the publisher's when left out.")
    ] = field(default_factory=dict)


class Containerd(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[Version, Meta(description="Version of containerd: 1.7 or 2.x.")] = "2.4.2"
    url: Annotated[str, Meta(description="Where it is: version, version, architecture.")] = (
        "https://github.com/containerd/containerd/releases/download/v%s/containerd-%s-linux-%s.tar.gz"
    )
    sha256: Annotated[
        dict[str, str], Meta(description="Expected hashes by file name; the publisher's when left out.")
    ] = field(default_factory=dict)
    pause_image: Annotated[str, Meta(description="Image of pod sandboxes.")] = (
        "mcr.microsoft.com/oss/kubernetes/pause:3.9"
    )
    metrics_address: Annotated[str, Meta(description="Where containerd serves its metrics; empty for nowhere.")] = (
        "127.0.0.1:10257"
    )


class Runc(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[Version, Meta(description="Version of runc.")] = "1.5.2"
    url: Annotated[str, Meta(description="Where it is: version, architecture.")] = (
        "https://github.com/opencontainers/runc/releases/download/v%s/runc.%s"
    )
    sha256: Annotated[
        dict[str, str], Meta(description="Expected hashes by file name; the publisher's when left out.")
    ] = field(default_factory=dict)


class Cni(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[Version, Meta(description="Version of the CNI plugins.")] = "1.9.1"
    url: Annotated[str, Meta(description="Where they are: version, architecture, version.")] = (
        "https://github.com/containernetworking/plugins/releases/download/v%s/cni-plugins-linux-%s-v%s.tgz"
    )
    sha256: Annotated[
        dict[str, str], Meta(description="Expected hashes by file name; the publisher's when left out.")
    ] = field(default_factory=dict)
    bridge: Annotated[
        bool, Meta(description="Make a bridge network until the cluster's own network plugin brings its own.")
    ] = True


class Npd(ConfigModel, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Run node-problem-detector.")] = True
    version: Annotated[Version, Meta(description="Version of node-problem-detector.")] = "1.34.0"
    url: Annotated[str, Meta(description="Where it is: version, version, architecture.")] = (
        "https://github.com/kubernetes/node-problem-detector/releases/download/v%s/node-problem-detector-v%s-linux_%s.tar.gz"
    )
    sha256: Annotated[
        dict[str, str], Meta(description="Expected hashes by file name; the publisher's when left out.")
    ] = field(default_factory=dict)


class Kubelet(ConfigModel, frozen=True, kw_only=True):
    server_url: Annotated[str | None, Meta(description="The API server, `https://…:443`.")] = None
    ca_cert_data: Annotated[str | None, Meta(description="The cluster's CA certificate: PEM in base64.")] = None
    ca_cert_file: Annotated[Path | None, Meta(description="A file with the cluster's CA certificate (PEM).")] = None
    dns_service_ip: Annotated[str | None, Meta(description="Address of the cluster's DNS service.")] = None
    cluster_domain: Annotated[str, Meta(description="The cluster's DNS domain.")] = "cluster.local"
    kube_reserved: Annotated[dict[str, str], Meta(description="Kept back for Kubernetes, e.g. `cpu: 100m`.")] = field(
        default_factory=dict
    )
    system_reserved: Annotated[dict[str, str], Meta(description="Kept back for the system.")] = field(
        default_factory=dict
    )
    eviction_hard: Annotated[dict[str, str], Meta(description="When pods are evicted.")] = field(
        default_factory=lambda: {
            "memory.available": "100Mi",
            "nodefs.available": "10%",
            "imagefs.available": "15%",
            "nodefs.inodesFree": "5%",
        }
    )
    verbosity: Annotated[int, Meta(ge=0, le=10, description="How much the kubelet logs.")] = 2
    image_gc_high_threshold: Annotated[
        int, Meta(ge=0, le=100, description="Disk use in percent above which images are removed.")
    ] = 85
    image_gc_low_threshold: Annotated[
        int, Meta(ge=0, le=100, description="Disk use in percent down to which they are removed.")
    ] = 80
    node_status_update_frequency: Annotated[str, Meta(description="How often the kubelet reports.")] = "10s"
    pod_pids_limit: Annotated[int, Meta(ge=-1, description="Processes that one pod may have.")] = 4096
    cgroup_driver: Annotated[
        Literal["auto", "systemd", "cgroupfs"], Meta(description="`auto` looks at the machine.")
    ] = "auto"
    auth: Annotated[
        Literal["bootstrapToken", "exec", "certificate"] | None,
        Meta(
            description="How the kubelet shows who it is. `exec`: by a token of the node's Azure identity at every "
            "call. `certificate`: by that token only until it has a certificate of its own, which is safer. "
            "`bootstrapToken`: by a bootstrap token until then. When left out: `bootstrapToken` where there is one "
            "or a provider is followed, else `exec` where there is an Azure identity."
        ),
    ] = None
    server_tls_bootstrap: Annotated[
        bool, Meta(description="Ask the cluster for a serving certificate; somebody there must approve it.")
    ] = False
    extra_config: Annotated[
        dict[str, object], Meta(description="Further keys of the KubeletConfiguration, as they are.")
    ] = field(default_factory=dict)


class Taint(ConfigModel, frozen=True, kw_only=True):
    key: Annotated[str, Meta(description="Its key.")]
    value: Annotated[str, Meta(description="Its value.")] = ""
    effect: Annotated[Literal["NoSchedule", "PreferNoSchedule", "NoExecute"], Meta(description="What it does.")]


class Node(ConfigModel, frozen=True, kw_only=True):
    name: Annotated[
        str | None, Meta(description="Name of the node; the host name, in lower case, when left out.")
    ] = None
    ip: Annotated[str | None, Meta(description="Its address; the one that reaches the API server when left out.")] = (
        None
    )
    labels: Annotated[dict[str, str], Meta(description="Labels of the node.")] = field(default_factory=dict)
    taints: Annotated[
        tuple[Taint, ...], Meta(description="Taints it registers with; `key=value:Effect` works too.")
    ] = ()
    max_pods: Annotated[int, Meta(ge=1, le=1024, description="How many pods it may run.")] = 110
    kubelet: Annotated[Kubelet, Meta(description="The kubelet.")] = field(default_factory=Kubelet)


class KubernetesPaths(ConfigModel, frozen=True, kw_only=True):
    config_dir: Annotated[Path, Meta(description="Kubernetes' configuration.")] = "/etc/kubernetes"
    certs_dir: Annotated[Path, Meta(description="The cluster's CA certificate.")] = "/etc/kubernetes/certs"
    manifests_dir: Annotated[Path, Meta(description="Static pods.")] = "/etc/kubernetes/manifests"
    volume_plugin_dir: Annotated[Path, Meta(description="Volume plugins.")] = "/etc/kubernetes/volumeplugins"
    kubelet_dir: Annotated[Path, Meta(description="The kubelet's state.")] = "/var/lib/kubelet"


class CniPaths(ConfigModel, frozen=True, kw_only=True):
    bin_dir: Annotated[Path, Meta(description="CNI plugins.")] = "/opt/cni/bin"
    conf_dir: Annotated[Path, Meta(description="CNI networks.")] = "/etc/cni/net.d"
    lib_dir: Annotated[Path, Meta(description="What CNI plugins remember.")] = "/var/lib/cni"


class Paths(ConfigModel, frozen=True, kw_only=True):
    config_dir: Annotated[Path, Meta(description="The agent's configuration.")] = "/etc/aks-flex-node"
    data_dir: Annotated[Path, Meta(description="The agent's state, and artifacts it has fetched.")] = (
        "/var/lib/aks-flex-node"
    )
    log_dir: Annotated[Path, Meta(description="The agent's log.")] = "/var/log/aks-flex-node"
    install_dir: Annotated[Path, Meta(description="Programs, each version in a directory of its own.")] = (
        "/opt/aks-flex-node"
    )
    bin_dir: Annotated[Path, Meta(description="Links to programs.")] = "/usr/local/bin"
    sbin_dir: Annotated[Path, Meta(description="Link to runc.")] = "/usr/local/sbin"
    containerd_dir: Annotated[Path, Meta(description="Images and containers.")] = "/var/lib/containerd"
    kubernetes: Annotated[KubernetesPaths, Meta(description="Kubernetes.")] = field(default_factory=KubernetesPaths)
    cni: Annotated[CniPaths, Meta(description="CNI.")] = field(default_factory=CniPaths)


class Agent(ConfigModel, frozen=True, kw_only=True):
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="What goes to the log.")] = (
        "info"
    )
    log_file: Annotated[Path | None, Meta(description="The log file; agent.log in paths.logDir when left out.")] = (
        None
    )
    log_dir: Annotated[Path | None, Meta(description="Another way to say paths.logDir.")] = None
    join_seconds: Annotated[
        float,
        Meta(gt=0, le=86400, description="How long the cluster may take to know the node and to find it Ready."),
    ] = 180.0
    version: Annotated[
        Version | None,
        Meta(description="Version of the agent itself; the one that the machine came with when left out."),
    ] = None
    url: Annotated[str, Meta(description="Where it is: version, version, architecture.")] = (
        "https://github.com/Azure/AKSFlexNode/releases/download/v%s/aks-flex-node-%s-linux-%s.tar.gz"
    )
    sha256: Annotated[
        dict[str, str], Meta(description="Expected hashes by file name; the publisher's when left out.")
    ] = field(default_factory=dict)
    unbootstrap_on_delete: Annotated[
        bool, Meta(description="Take the node apart when its resource is deleted; else it stays as it is.")
    ] = True
    drift_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=86400,
            description="How often the agent that stays compares all of the machine with its configuration.",
        ),
    ] = 300.0
    metrics_file: Annotated[
        Path | None,
        Meta(description="A file for Prometheus' node exporter (textfile collector); none when left out."),
    ] = None


class Artifacts(ConfigModel, frozen=True, kw_only=True):
    base_url: Annotated[
        str | None, Meta(description="A mirror: asked for `<baseURL>/<host>/<path>` instead of the publisher.")
    ] = None
    bundle: Annotated[
        Path | None, Meta(description="An offline bundle (directory or tar); nothing is fetched then.")
    ] = None
    ca_file: Annotated[Path | None, Meta(description="Trust this CA for downloads, besides the system's.")] = None
    parallel: Annotated[
        int, Meta(ge=1, le=32, description="Downloads at a time; what a node needs first is fetched first.")
    ] = 4
    attempts: Annotated[int, Meta(ge=1, le=20, description="How often a download is tried.")] = 5
    stall_seconds: Annotated[float, Meta(gt=0, le=3600, description="Silence after which it is tried again.")] = 30.0


class Proxy(ConfigModel, frozen=True, kw_only=True):
    http: Annotated[ProxyURL | None, Meta(description="Proxy for http: `http://[user:password@]host:port`.")] = None
    https: Annotated[ProxyURL | None, Meta(description="Proxy for https.")] = None
    no_proxy: Annotated[
        tuple[str, ...], Meta(description="Hosts, domains and networks reached without a proxy.")
    ] = ()

    def __repr__(self) -> str:
        return f"Proxy(http={redact(self.http)!r}, https={redact(self.https)!r}, no_proxy={self.no_proxy!r})"


class MaintenanceWindow(ConfigModel, frozen=True, kw_only=True):
    days: Annotated[
        tuple[Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"], ...],
        Meta(description="Days on which it opens; every day when left out."),
    ] = ()
    start: Annotated[
        TimeOfDay | None,
        Meta(description="When it opens, `HH:MM`; it is always open when left out."),
    ] = None
    duration_minutes: Annotated[int, Meta(ge=15, le=1440, description="For how long.")] = 60
    time_zone: Annotated[str, Meta(description="Whose clock, such as `Europe/Berlin`.")] = "UTC"


class Provider(ConfigModel, frozen=True, kw_only=True):
    url: Annotated[
        HttpsURL | None, Meta(description="The resource provider to follow; Azure's resource manager when left out.")
    ] = None
    audience: Annotated[
        str | None, Meta(description="Whom tokens for it are made out to; Azure's resource manager when left out.")
    ] = None
    ca_cert_data: Annotated[
        str | None, Meta(description="CA certificates that vouch for it: PEM in base64; the system's when left out.")
    ] = None
    poll_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="How often it is asked, give or take a third.")
    ] = 30.0
    wait_seconds: Annotated[
        int, Meta(ge=0, le=55, description="How long it may hold an answer until there is news; 0 for not at all.")
    ] = 50


class UpdatePolicy(ConfigModel, frozen=True, kw_only=True):
    paused: Annotated[bool, Meta(description="Change nothing for now: what is new waits.")] = False
    allow_downgrade: Annotated[bool, Meta(description="Go back to older versions where they are wanted.")] = False
    drain: Annotated[bool, Meta(description="Move pods away before kubelet or runtime are replaced.")] = True
    drain_timeout_seconds: Annotated[int, Meta(ge=0, le=86400, description="How long that may take.")] = 300
    health_timeout_seconds: Annotated[
        int,
        Meta(ge=1, le=86400, description="How long the node may take to be Ready again before a change is undone."),
    ] = 300
    maintenance_window: Annotated[
        MaintenanceWindow, Meta(description="When changes that disturb pods may begin.")
    ] = field(default_factory=MaintenanceWindow)


class NodeConfig(ConfigModel, frozen=True, kw_only=True):
    """Everything that makes this machine a node."""

    azure: Annotated[Azure, Meta(description="Azure and the cluster.")] = field(default_factory=Azure)
    node: Annotated[Node, Meta(description="The node.")] = field(default_factory=Node)
    kubernetes: Annotated[Kubernetes, Meta(description="Kubernetes.")] = field(default_factory=Kubernetes)
    containerd: Annotated[Containerd, Meta(description="containerd.")] = field(default_factory=Containerd)
    runc: Annotated[Runc, Meta(description="runc.")] = field(default_factory=Runc)
    cni: Annotated[Cni, Meta(description="CNI plugins and the node's own network.")] = field(default_factory=Cni)
    npd: Annotated[Npd, Meta(description="node-problem-detector.")] = field(default_factory=Npd)
    paths: Annotated[Paths, Meta(description="Where everything is.")] = field(default_factory=Paths)
    agent: Annotated[Agent, Meta(description="The agent.")] = field(default_factory=Agent)
    artifacts: Annotated[Artifacts, Meta(description="Where programs come from.")] = field(default_factory=Artifacts)
    proxy: Annotated[Proxy, Meta(description="Proxies, for downloads, containerd and kubelet.")] = field(
        default_factory=Proxy
    )
    registry_mirrors: Annotated[
        dict[str, tuple[str, ...]],
        Meta(description="Mirrors of image registries: `mcr.microsoft.com: [https://mirror.example]`."),
    ] = field(default_factory=dict)
    drift_policy: Annotated[
        Literal["log", "repair"], Meta(description="What the agent that stays does about changes made by hand.")
    ] = "repair"
    update_policy: Annotated[UpdatePolicy, Meta(description="How the agent that stays carries out changes.")] = field(
        default_factory=UpdatePolicy
    )
    provider: Annotated[Provider, Meta(description="The resource provider that the agent follows.")] = field(
        default_factory=Provider
    )
    continuous_monitoring: Annotated[bool, Meta(description="Stay and follow the configuration in Azure.")] = False
