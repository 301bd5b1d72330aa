"""All settings of a node as typed models, with descriptions and defaults.

The reference page and the JSON schema are generated from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from aks_flex_node.agent.config.azure_models import Azure
from aks_flex_node.agent.config.base_model import ConfigModel, HttpsURL, Path, ProxyURL, TimeOfDay, Version
from aks_flex_node.agent.redaction import redact

HashesByName = Annotated[
    dict[str, str],
    Meta(description="SHA-256 hashes by file name. Default: the publisher's checksum files. Only on the machine."),
]


class Kubernetes(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[
        Version | None, Meta(description="Version of kubelet, kubectl and kubeadm, with its patch version.")
    ] = None
    url_template: Annotated[
        str,
        Meta(
            description="Download URL. Placeholders: `{version}`, `{arch}` and `{name}`, or `%s` for version, "
            "architecture, program; or version and architecture for a kubernetes-node tarball. Without a program, "
            "the program's name is appended."
        ),
    ] = "https://dl.k8s.io/v%s/bin/linux/%s/%s"
    sha256: HashesByName = field(default_factory=dict)


class Containerd(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[Version, Meta(description="Version of containerd: 1.7 or 2.x.")] = "2.4.2"
    url: Annotated[
        str,
        Meta(description="Download URL with `{version}` and `{arch}`, or `%s` for version, version, architecture."),
    ] = "https://github.com/containerd/containerd/releases/download/v%s/containerd-%s-linux-%s.tar.gz"
    sha256: HashesByName = field(default_factory=dict)
    pause_image: Annotated[str, Meta(description="Image of the pause container of pod sandboxes.")] = (
        "mcr.microsoft.com/oss/kubernetes/pause:3.9"
    )
    metrics_address: Annotated[
        str, Meta(description="Address at which containerd serves its metrics. Empty: disabled.")
    ] = "127.0.0.1:10257"


class Runc(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[Version, Meta(description="Version of runc.")] = "1.5.2"
    url: Annotated[
        str,
        Meta(description="Download URL with `{version}` and `{arch}`, or `%s` for version, architecture."),
    ] = "https://github.com/opencontainers/runc/releases/download/v%s/runc.%s"
    sha256: HashesByName = field(default_factory=dict)


class Cni(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[Version, Meta(description="Version of the CNI plugins.")] = "1.9.1"
    url: Annotated[
        str,
        Meta(description="Download URL with `{version}` and `{arch}`, or `%s` for version, architecture, version."),
    ] = "https://github.com/containernetworking/plugins/releases/download/v%s/cni-plugins-linux-%s-v%s.tgz"
    sha256: HashesByName = field(default_factory=dict)
    bridge: Annotated[
        bool,
        Meta(description="Create a bridge network until the cluster's network plugin installs its configuration."),
    ] = True


class Npd(ConfigModel, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Run node-problem-detector.")] = True
    version: Annotated[Version, Meta(description="Version of node-problem-detector.")] = "1.34.0"
    url: Annotated[
        str,
        Meta(description="Download URL with `{version}` and `{arch}`, or `%s` for version, version, architecture."),
    ] = "https://github.com/kubernetes/node-problem-detector/releases/download/v%s/node-problem-detector-v%s-linux_%s.tar.gz"
    sha256: HashesByName = field(default_factory=dict)


class Kubelet(ConfigModel, frozen=True, kw_only=True):
    server_url: Annotated[str | None, Meta(description="URL of the API server, `https://…:443`.")] = None
    ca_cert_data: Annotated[str | None, Meta(description="CA certificate of the cluster: PEM in base64.")] = None
    ca_cert_file: Annotated[Path | None, Meta(description="File with the CA certificate of the cluster (PEM).")] = (
        None
    )
    dns_service_ip: Annotated[str | None, Meta(description="IP address of the cluster's DNS service.")] = None
    cluster_domain: Annotated[str, Meta(description="DNS domain of the cluster.")] = "cluster.local"
    kube_reserved: Annotated[
        dict[str, str], Meta(description="Resources reserved for Kubernetes, for example `cpu: 100m`.")
    ] = field(default_factory=dict)
    system_reserved: Annotated[dict[str, str], Meta(description="Resources reserved for the operating system.")] = (
        field(default_factory=dict)
    )
    eviction_hard: Annotated[dict[str, str], Meta(description="Hard eviction thresholds.")] = field(
        default_factory=lambda: {
            "memory.available": "100Mi",
            "nodefs.available": "10%",
            "imagefs.available": "15%",
            "nodefs.inodesFree": "5%",
        }
    )
    verbosity: Annotated[int, Meta(ge=0, le=10, description="Log verbosity of the kubelet.")] = 2
    image_gc_high_threshold: Annotated[
        int, Meta(ge=0, le=100, description="Disk usage in percent above which the kubelet removes images.")
    ] = 85
    image_gc_low_threshold: Annotated[
        int, Meta(ge=0, le=100, description="Disk usage in percent down to which the kubelet removes images.")
    ] = 80
    node_status_update_frequency: Annotated[str, Meta(description="Interval of node status updates.")] = "10s"
    pod_pids_limit: Annotated[int, Meta(ge=-1, description="Maximum number of processes in one pod.")] = 4096
    cgroup_driver: Annotated[
        Literal["auto", "systemd", "cgroupfs"],
        Meta(description="cgroup driver of kubelet and containerd. `auto` detects it."),
    ] = "auto"
    auth: Annotated[
        Literal["bootstrapToken", "exec", "certificate"] | None,
        Meta(
            description="How the kubelet authenticates to the API server. `exec`: with a token of the node's Azure "
            "identity on every request. `certificate`: with that token only until it has a client "
            "certificate, which is safer. `bootstrapToken`: with a bootstrap token until it has a "
            "client certificate. Default: `bootstrapToken` if a token is set or the configuration comes from "
            "a provider, else `certificate` if an Azure identity is set. A joined node keeps its method."
        ),
    ] = None
    server_tls_bootstrap: Annotated[
        bool, Meta(description="Request a serving certificate from the cluster. It must be approved there.")
    ] = False
    extra_config: Annotated[
        dict[str, object],
        Meta(description="Additional fields of the KubeletConfiguration. A provider cannot set generated ones."),
    ] = field(default_factory=dict)


class Taint(ConfigModel, frozen=True, kw_only=True):
    key: Annotated[str, Meta(description="Key of the taint.")]
    value: Annotated[str, Meta(description="Value of the taint.")] = ""
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"], Meta(description="Effect of the taint.")
    ]


class Node(ConfigModel, frozen=True, kw_only=True):
    name: Annotated[str | None, Meta(description="Name of the node. Default: the host name in lower case.")] = None
    ip: Annotated[
        str | None,
        Meta(description="IP address of the node. Default: the address from which the API server is reached."),
    ] = None
    labels: Annotated[dict[str, str], Meta(description="Labels of the node.")] = field(default_factory=dict)
    taints: Annotated[
        tuple[Taint, ...],
        Meta(description="Taints that the node registers with. The form `key=value:Effect` is also allowed."),
    ] = ()
    max_pods: Annotated[int, Meta(ge=1, le=1024, description="Maximum number of pods.")] = 110
    kubelet: Annotated[Kubelet, Meta(description="Settings of the kubelet.")] = field(default_factory=Kubelet)


class KubernetesPaths(ConfigModel, frozen=True, kw_only=True):
    config_dir: Annotated[Path, Meta(description="Configuration of Kubernetes.")] = "/etc/kubernetes"
    certs_dir: Annotated[Path, Meta(description="CA certificate of the cluster.")] = "/etc/kubernetes/certs"
    manifests_dir: Annotated[Path, Meta(description="Static pod manifests.")] = "/etc/kubernetes/manifests"
    volume_plugin_dir: Annotated[Path, Meta(description="Volume plugins.")] = "/etc/kubernetes/volumeplugins"
    kubelet_dir: Annotated[Path, Meta(description="State of the kubelet.")] = "/var/lib/kubelet"


class CniPaths(ConfigModel, frozen=True, kw_only=True):
    bin_dir: Annotated[Path, Meta(description="CNI plugins.")] = "/opt/cni/bin"
    conf_dir: Annotated[Path, Meta(description="CNI network configurations.")] = "/etc/cni/net.d"
    lib_dir: Annotated[Path, Meta(description="State of CNI plugins.")] = "/var/lib/cni"


class Paths(ConfigModel, frozen=True, kw_only=True):
    config_dir: Annotated[Path, Meta(description="Configuration of the agent.")] = "/etc/aks-flex-node"
    data_dir: Annotated[Path, Meta(description="State of the agent and downloaded artifacts.")] = (
        "/var/lib/aks-flex-node"
    )
    log_dir: Annotated[Path, Meta(description="Log of the agent.")] = "/var/log/aks-flex-node"
    install_dir: Annotated[Path, Meta(description="Programs, with one directory for each version.")] = (
        "/opt/aks-flex-node"
    )
    bin_dir: Annotated[Path, Meta(description="Links to the programs.")] = "/usr/local/bin"
    sbin_dir: Annotated[Path, Meta(description="Link to runc.")] = "/usr/local/sbin"
    containerd_dir: Annotated[Path, Meta(description="Images and containers.")] = "/var/lib/containerd"
    kubernetes: Annotated[KubernetesPaths, Meta(description="Paths of Kubernetes.")] = field(
        default_factory=KubernetesPaths
    )
    cni: Annotated[CniPaths, Meta(description="Paths of CNI.")] = field(default_factory=CniPaths)


class Agent(ConfigModel, frozen=True, kw_only=True):
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Minimum level of log messages.")
    ] = "info"
    log_file: Annotated[Path | None, Meta(description="Log file. Default: agent.log in paths.logDir.")] = None
    log_dir: Annotated[Path | None, Meta(description="Deprecated. Use paths.logDir.")] = None
    join_seconds: Annotated[
        float,
        Meta(gt=0, le=86400, description="Timeout for the node to register and become Ready."),
    ] = 180.0
    approval_seconds: Annotated[
        float,
        Meta(ge=0, le=2_592_000, description="How long a machine that enrols waits for its approval in one run."),
    ] = 86400.0
    version: Annotated[
        Version | None,
        Meta(description="Version of the agent of a managed node. Default: the installed version."),
    ] = None
    url: Annotated[
        str,
        Meta(description="Download URL with `{version}` and `{arch}`, or `%s` for version, version, architecture."),
    ] = "https://github.com/Azure/AKSFlexNode/releases/download/v%s/aks-flex-node-%s-linux-%s.tar.gz"
    sha256: HashesByName = field(default_factory=dict)
    unbootstrap_on_delete: Annotated[
        bool,
        Meta(description="Unbootstrap the node when its resource is deleted. If false, the node is left unchanged."),
    ] = True
    drift_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=86400,
            description="Interval at which the daemon compares the whole machine with its configuration.",
        ),
    ] = 300.0
    metrics_file: Annotated[
        Path | None,
        Meta(description="File for the textfile collector of the Prometheus node exporter. Default: none."),
    ] = None


class Artifacts(ConfigModel, frozen=True, kw_only=True):
    base_url: Annotated[
        str | None,
        Meta(
            description="https URL of a mirror. Files are requested from `<baseURL>/<host>/<path>` instead "
            "of the publisher. Its checksums are not used."
        ),
    ] = None
    bundle: Annotated[
        Path | None,
        Meta(description="Offline bundle (directory or tar). If set, nothing is downloaded. Only on the machine."),
    ] = None
    ca_file: Annotated[
        Path | None,
        Meta(
            description="File with a CA certificate to trust for downloads from a mirror, in addition to the "
            "system's CAs. The publishers' checksum files need the system's CAs. Only on the machine."
        ),
    ] = None
    checksums_file: Annotated[
        Path,
        Meta(
            description="File with the hashes of artifacts by URL, as `aks-flex-node artifacts pins` prints them. "
            "Used if it exists. Only on the machine."
        ),
    ] = "/etc/aks-flex-node/checksums.txt"
    parallel: Annotated[
        int,
        Meta(
            ge=1,
            le=32,
            description="Number of parallel downloads. Components that are needed first are downloaded first.",
        ),
    ] = 4
    attempts: Annotated[int, Meta(ge=1, le=20, description="Maximum number of attempts for a download.")] = 5
    stall_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="Seconds without data after which a download is retried.")
    ] = 30.0


class Proxy(ConfigModel, frozen=True, kw_only=True):
    http: Annotated[ProxyURL | None, Meta(description="Proxy for http: `http://[user:password@]host:port`.")] = None
    https: Annotated[ProxyURL | None, Meta(description="Proxy for https.")] = None
    no_proxy: Annotated[
        tuple[str, ...], Meta(description="Hosts, domains and networks that are reached without a proxy.")
    ] = ()

    def __repr__(self) -> str:
        return f"Proxy(http={redact(self.http)!r}, https={redact(self.https)!r}, no_proxy={self.no_proxy!r})"


class MaintenanceWindow(ConfigModel, frozen=True, kw_only=True):
    days: Annotated[
        tuple[Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"], ...],
        Meta(description="Days on which the window opens. Default: every day."),
    ] = ()
    start: Annotated[
        TimeOfDay | None,
        Meta(description="Time at which the window opens, `HH:MM`. Default: the window is always open."),
    ] = None
    duration_minutes: Annotated[int, Meta(ge=15, le=1440, description="Duration of the window in minutes.")] = 60
    time_zone: Annotated[str, Meta(description="Time zone, for example `Europe/Berlin`.")] = "UTC"


class Provider(ConfigModel, frozen=True, kw_only=True):
    url: Annotated[
        HttpsURL | None, Meta(description="URL of the resource provider. Default: Azure Resource Manager.")
    ] = None
    audience: Annotated[
        str | None,
        Meta(
            description="Audience of tokens for the provider. Default: Azure Resource Manager, whose tokens are sent "
            "only to Azure."
        ),
    ] = None
    ca_cert_data: Annotated[
        str | None, Meta(description="CA certificates of the provider: PEM in base64. Default: the system's CAs.")
    ] = None
    poll_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="Poll interval in seconds, with a jitter of one third.")
    ] = 30.0
    wait_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=55,
            description="How long the provider can hold a poll until a change occurs (long "
            "poll). 0 disables long polls.",
        ),
    ] = 50


class UpdatePolicy(ConfigModel, frozen=True, kw_only=True):
    paused: Annotated[bool, Meta(description="Postpone all changes until this is false again.")] = False
    allow_downgrade: Annotated[bool, Meta(description="Allow changes to older versions.")] = False
    drain: Annotated[bool, Meta(description="Drain the node before kubelet or containerd are replaced.")] = True
    drain_timeout_seconds: Annotated[int, Meta(ge=0, le=86400, description="Timeout of the drain.")] = 300
    health_timeout_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=86400,
            description="Timeout for the node to become Ready after a change, before the change is rolled back.",
        ),
    ] = 300
    maintenance_window: Annotated[MaintenanceWindow, Meta(description="When disruptive changes can start.")] = field(
        default_factory=MaintenanceWindow
    )


class Aks(ConfigModel, frozen=True, kw_only=True):
    machine_name: Annotated[
        str | None,
        Meta(
            description="Name of the node's Machine in the pool. Default: the name of the node. With another name, "
            "AKS does not find the Node for an upgrade."
        ),
    ] = None
    upgrade_trigger: Annotated[
        Literal["nodeDeleted", "immediate"],
        Meta(
            description="When a change of the Machine that disturbs pods is applied: after AKS has drained and "
            "deleted the Node, or immediately, with a drain by the agent."
        ),
    ] = "nodeDeleted"
    machine_operations: Annotated[
        bool,
        Meta(description="Carry out MachineOperation resources of the cluster: reboot, agent update and reset."),
    ] = True


class NodeConfig(ConfigModel, frozen=True, kw_only=True):
    """The configuration of a node."""

    azure: Annotated[Azure, Meta(description="Azure and the target cluster.")] = field(default_factory=Azure)
    node: Annotated[Node, Meta(description="The node.")] = field(default_factory=Node)
    kubernetes: Annotated[Kubernetes, Meta(description="Kubernetes.")] = field(default_factory=Kubernetes)
    containerd: Annotated[Containerd, Meta(description="containerd.")] = field(default_factory=Containerd)
    runc: Annotated[Runc, Meta(description="runc.")] = field(default_factory=Runc)
    cni: Annotated[Cni, Meta(description="CNI plugins and the node's bridge network.")] = field(default_factory=Cni)
    npd: Annotated[Npd, Meta(description="node-problem-detector.")] = field(default_factory=Npd)
    paths: Annotated[Paths, Meta(description="Paths on the machine.")] = field(default_factory=Paths)
    agent: Annotated[Agent, Meta(description="Settings of the agent.")] = field(default_factory=Agent)
    artifacts: Annotated[Artifacts, Meta(description="Source of downloads.")] = field(default_factory=Artifacts)
    proxy: Annotated[Proxy, Meta(description="Proxies for downloads, containerd and kubelet.")] = field(
        default_factory=Proxy
    )
    registry_mirrors: Annotated[
        dict[str, tuple[str, ...]],
        Meta(description="Mirrors of image registries: `mcr.microsoft.com: [https://mirror.example]`."),
    ] = field(default_factory=dict)
    drift_policy: Annotated[
        Literal["log", "repair"], Meta(description="What the daemon does about drift: repair it, or only log it.")
    ] = "repair"
    update_policy: Annotated[UpdatePolicy, Meta(description="How the daemon applies changes.")] = field(
        default_factory=UpdatePolicy
    )
    provider: Annotated[Provider, Meta(description="The resource provider that manages the node.")] = field(
        default_factory=Provider
    )
    aks: Annotated[Aks, Meta(description="The node's Machine in a flex node pool of AKS.")] = field(
        default_factory=Aks
    )
    continuous_monitoring: Annotated[
        bool, Meta(description="The daemon also applies the configuration of the node's resource in Azure.")
    ] = False
