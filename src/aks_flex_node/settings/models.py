"""All settings of a node as typed models, with descriptions and defaults.

The reference page and the JSON schema are generated from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from aks_flex_node.api import kubernetes_rules as kubernetes
from aks_flex_node.api import value_rules as values
from aks_flex_node.redaction import redact
from aks_flex_node.settings.azure_models import Azure
from aks_flex_node.settings.base import ConfigModel, HttpsURL, Path, ProxyURL, TimeOfDay, Version
from aks_flex_node.settings.setting import (
    CLUSTER,
    CONTAINERD,
    CONTRIBUTOR,
    CREDENTIALS,
    DRAIN,
    FILES,
    IMAGES,
    ISOLATION,
    JOIN,
    KUBELET,
    MACHINE,
    NAMES,
    NETWORK,
    NOTHING,
    OWNER,
    PODS,
    PROGRAMS,
    PROVIDER,
    VERSIONS,
    Setting,
)

HASHES = Setting(
    "SHA-256 hashes by file name. Default: the publisher's checksum files.",
    MACHINE,
    PROGRAMS,
    rule=values.sha256,
    name_rules=(values.plain,),
)
HashesByName = Annotated[dict[str, str], HASHES]
PodHashes = Annotated[dict[str, str], replace(HASHES, disturbs=PODS)]
DrainedHashes = Annotated[dict[str, str], replace(HASHES, disturbs=DRAIN)]


class Kubernetes(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[
        Version | None,
        Setting(
            "Version of kubelet, kubectl and kubeadm, with its patch version.",
            CONTRIBUTOR,
            VERSIONS,
            disturbs=DRAIN,
            rule=kubernetes.version,
            api="versions.kubernetes",
            form="Kubernetes",
            flag="--kubernetes-version",
            aks="components.kubernetes",
        ),
    ] = None
    url_template: Annotated[
        str,
        Setting(
            "Download URL. Placeholders: `{version}`, `{arch}` and `{name}`, or `%s` for version, "
            "architecture, program; or version and architecture for a kubernetes-node tarball. Without a program, "
            "the program's name is appended.",
            MACHINE,
            PROGRAMS,
            rule=values.kubernetes_template,
        ),
    ] = "https://dl.k8s.io/v%s/bin/linux/%s/%s"
    sha256: DrainedHashes = field(default_factory=dict)


class Containerd(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[
        Version,
        Setting(
            "Version of containerd: 1.7 or 2.x.",
            CONTRIBUTOR,
            VERSIONS,
            disturbs=DRAIN,
            rule=kubernetes.version,
            api="versions.containerd",
            form="containerd",
            flag="--containerd-version",
            aks="components.containerd",
        ),
    ] = "2.4.2"
    url: Annotated[
        str,
        Setting(
            "Download URL with `{version}` and `{arch}`, or `%s` for version, version, architecture.",
            MACHINE,
            PROGRAMS,
            rule=values.template,
        ),
    ] = "https://github.com/containerd/containerd/releases/download/v%s/containerd-%s-linux-%s.tar.gz"
    sha256: DrainedHashes = field(default_factory=dict)
    pause_image: Annotated[
        str,
        Setting(
            "Image of the pause container of pod sandboxes.",
            MACHINE,
            IMAGES,
            disturbs=CONTAINERD,
            rule=kubernetes.image,
        ),
    ] = "mcr.microsoft.com/oss/kubernetes/pause:3.9"
    metrics_address: Annotated[
        str,
        Setting(
            "Address at which containerd serves its metrics. Empty: disabled.",
            MACHINE,
            NETWORK,
            disturbs=CONTAINERD,
            rule=values.listen_address,
        ),
    ] = "127.0.0.1:10257"


class Runc(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[
        Version,
        Setting(
            "Version of runc.",
            CONTRIBUTOR,
            VERSIONS,
            disturbs=DRAIN,
            rule=kubernetes.version,
            api="versions.runc",
            form="runc",
            flag="--runc-version",
            aks="components.runc",
        ),
    ] = "1.5.2"
    url: Annotated[
        str,
        Setting(
            "Download URL with `{version}` and `{arch}`, or `%s` for version, architecture.",
            MACHINE,
            PROGRAMS,
            rule=values.template,
        ),
    ] = "https://github.com/opencontainers/runc/releases/download/v%s/runc.%s"
    sha256: DrainedHashes = field(default_factory=dict)


class Cni(ConfigModel, frozen=True, kw_only=True):
    version: Annotated[
        Version,
        Setting(
            "Version of the CNI plugins.",
            CONTRIBUTOR,
            VERSIONS,
            disturbs=PODS,
            rule=kubernetes.version,
            api="versions.cni",
            form="CNI plugins",
            flag="--cni-version",
            aks="networking.cniVersion",
        ),
    ] = "1.9.1"
    url: Annotated[
        str,
        Setting(
            "Download URL with `{version}` and `{arch}`, or `%s` for version, architecture, version.",
            MACHINE,
            PROGRAMS,
            rule=values.template,
        ),
    ] = "https://github.com/containernetworking/plugins/releases/download/v%s/cni-plugins-linux-%s-v%s.tgz"
    sha256: PodHashes = field(default_factory=dict)
    bridge: Annotated[
        bool,
        Setting(
            "Create a bridge network until the cluster's network plugin installs its configuration.", MACHINE, NETWORK
        ),
    ] = True


class Npd(ConfigModel, frozen=True, kw_only=True):
    enabled: Annotated[bool, Setting("Run node-problem-detector.", MACHINE, NOTHING)] = True
    version: Annotated[
        Version,
        Setting(
            "Version of node-problem-detector.",
            CONTRIBUTOR,
            VERSIONS,
            rule=kubernetes.version,
            api="versions.npd",
            form="node-problem-detector",
            flag="--npd-version",
        ),
    ] = "1.34.0"
    url: Annotated[
        str,
        Setting(
            "Download URL with `{version}` and `{arch}`, or `%s` for version, version, architecture.",
            MACHINE,
            PROGRAMS,
            rule=values.template,
        ),
    ] = "https://github.com/kubernetes/node-problem-detector/releases/download/v%s/node-problem-detector-v%s-linux_%s.tar.gz"
    sha256: HashesByName = field(default_factory=dict)


class Kubelet(ConfigModel, frozen=True, kw_only=True):
    server_url: Annotated[
        str | None,
        Setting(
            "URL of the API server, `https://…:443`. Default: that of the cluster.",
            OWNER,
            CLUSTER,
            disturbs=KUBELET,
            rule=values.https_url,
            api_rule=values.server_url,
            api="nodeConfig.kubelet.serverURL",
            flag="--server-url",
            aks="node.kubelet.clusterFQDN",
        ),
    ] = None
    ca_cert_data: Annotated[
        str | None,
        Setting(
            "CA certificate of the cluster: PEM in base64.",
            PROVIDER,
            CLUSTER,
            disturbs=KUBELET,
            rule=values.certificate,
        ),
    ] = None
    ca_cert_file: Annotated[
        Path | None,
        Setting(
            "File with the CA certificate of the cluster (PEM).",
            MACHINE,
            FILES,
            disturbs=KUBELET,
            content="node.kubelet.caCertData",
        ),
    ] = None
    dns_service_ip: Annotated[
        str | None,
        Setting(
            "IP address of the cluster's DNS service.",
            PROVIDER,
            NETWORK,
            disturbs=KUBELET,
            rule=values.ip,
            aks="networking.dnsServiceIP",
        ),
    ] = None
    cluster_domain: Annotated[
        str,
        Setting(
            "DNS domain of the cluster.",
            CONTRIBUTOR,
            NETWORK,
            disturbs=KUBELET,
            rule=kubernetes.domain,
            api="nodeConfig.kubelet.clusterDomain",
            kubelet="clusterDomain",
        ),
    ] = "cluster.local"
    kube_reserved: Annotated[
        dict[str, str],
        Setting(
            "Resources reserved for Kubernetes, for example `cpu: 100m`.",
            CONTRIBUTOR,
            NOTHING,
            disturbs=KUBELET,
            rule=kubernetes.quantity,
            name_rules=(kubernetes.reservable,),
            api="nodeConfig.kubelet.kubeReserved",
            kubelet="kubeReserved",
        ),
    ] = field(default_factory=dict)
    system_reserved: Annotated[
        dict[str, str],
        Setting(
            "Resources reserved for the operating system.",
            CONTRIBUTOR,
            NOTHING,
            disturbs=KUBELET,
            rule=kubernetes.quantity,
            name_rules=(kubernetes.reservable,),
            api="nodeConfig.kubelet.systemReserved",
            kubelet="systemReserved",
        ),
    ] = field(default_factory=dict)
    eviction_hard: Annotated[
        dict[str, str],
        Setting(
            "Hard eviction thresholds. A signal that is not given keeps its default; `0%` disables it.",
            CONTRIBUTOR,
            NOTHING,
            disturbs=KUBELET,
            rule=kubernetes.eviction_threshold,
            name_rules=(kubernetes.eviction_signal,),
            api="nodeConfig.kubelet.evictionHard",
            kubelet="evictionHard",
        ),
    ] = field(
        default_factory=lambda: {
            "memory.available": "100Mi",
            "nodefs.available": "10%",
            "imagefs.available": "15%",
            "nodefs.inodesFree": "5%",
        }
    )
    verbosity: Annotated[
        int,
        Meta(ge=0, le=10),
        Setting(
            "Log verbosity of the kubelet.",
            CONTRIBUTOR,
            NOTHING,
            disturbs=KUBELET,
            api="nodeConfig.kubelet.verbosity",
        ),
    ] = 2
    image_gc_high_threshold: Annotated[
        int,
        Meta(ge=0, le=100),
        Setting(
            "Disk usage in percent above which the kubelet removes images.",
            CONTRIBUTOR,
            NOTHING,
            disturbs=KUBELET,
            api="nodeConfig.kubelet.imageGCHighThreshold",
            kubelet="imageGCHighThresholdPercent",
        ),
    ] = 85
    image_gc_low_threshold: Annotated[
        int,
        Meta(ge=0, le=100),
        Setting(
            "Disk usage in percent down to which the kubelet removes images.",
            CONTRIBUTOR,
            NOTHING,
            disturbs=KUBELET,
            api="nodeConfig.kubelet.imageGCLowThreshold",
            kubelet="imageGCLowThresholdPercent",
        ),
    ] = 80
    image_maximum_gc_age: Annotated[
        str | None,
        Setting(
            "Age at which the kubelet (1.30 or later) removes unused images, for example `168h`. Default: no limit.",
            CONTRIBUTOR,
            NOTHING,
            disturbs=KUBELET,
            rule=kubernetes.image_age,
            api="nodeConfig.kubelet.imageMaximumGCAge",
            kubelet="imageMaximumGCAge",
        ),
    ] = None
    node_status_update_frequency: Annotated[
        str,
        Setting(
            "Interval of node status updates.",
            MACHINE,
            NOTHING,
            disturbs=KUBELET,
            rule=kubernetes.duration,
            kubelet="nodeStatusUpdateFrequency",
        ),
    ] = "10s"
    pod_pids_limit: Annotated[
        int,
        Meta(ge=-1, le=2**31 - 1),
        Setting(
            "Maximum number of processes in one pod.",
            CONTRIBUTOR,
            ISOLATION,
            disturbs=KUBELET,
            api="nodeConfig.kubelet.podPidsLimit",
            kubelet="podPidsLimit",
        ),
    ] = 4096
    cgroup_driver: Annotated[
        Literal["auto", "systemd", "cgroupfs"],
        Setting("cgroup driver of kubelet and containerd. `auto` detects it.", MACHINE, NOTHING, disturbs=CONTAINERD),
    ] = "auto"
    auth: Annotated[
        Literal["bootstrapToken", "exec", "certificate"] | None,
        Setting(
            "How the kubelet authenticates to the API server. `exec`: with a token of the node's Azure "
            "identity on every request. `certificate`: with that token only until it has a client "
            "certificate, which is safer. `bootstrapToken`: with a bootstrap token until it has a "
            "client certificate. Default: `bootstrapToken` if a token is set or the configuration comes from "
            "a provider, else `certificate` if an Azure identity is set. A joined node keeps its method.",
            CONTRIBUTOR,
            CREDENTIALS,
            disturbs=KUBELET,
            api="kubernetesAuth.method",
            form="Authentication of the kubelet",
            flag="--kubernetes-auth",
            owner_value="exec",
        ),
    ] = None
    server_tls_bootstrap: Annotated[
        bool,
        Setting(
            "Request a serving certificate from the cluster. It must be approved there.",
            PROVIDER,
            CREDENTIALS,
            disturbs=KUBELET,
            kubelet="serverTLSBootstrap",
        ),
    ] = False
    extra_config: Annotated[
        dict[str, object],
        Setting(
            "Additional fields of the KubeletConfiguration. A provider cannot set generated ones.",
            OWNER,
            ISOLATION,
            disturbs=KUBELET,
            api="nodeConfig.kubelet.extraConfig",
        ),
    ] = field(default_factory=dict)


class Taint(ConfigModel, frozen=True, kw_only=True):
    key: Annotated[str, Setting("Key of the taint.", CONTRIBUTOR, NOTHING, rule=kubernetes.label_key)]
    value: Annotated[str, Setting("Value of the taint.", CONTRIBUTOR, NOTHING, rule=kubernetes.label_value)] = ""
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"], Setting("Effect of the taint.", CONTRIBUTOR, NOTHING)
    ]


class Node(ConfigModel, frozen=True, kw_only=True):
    name: Annotated[
        str | None,
        Setting(
            "Name of the node. Default: the host name in lower case.",
            PROVIDER,
            NAMES,
            disturbs=JOIN,
            rule=kubernetes.node_name,
            aks="agent.nodeName",
        ),
    ] = None
    ip: Annotated[
        str | None,
        Setting(
            "IP address of the node. Default: the address from which the API server is reached.",
            MACHINE,
            NETWORK,
            disturbs=KUBELET,
            rule=values.ip,
        ),
    ] = None
    labels: Annotated[
        dict[str, str],
        Setting(
            "Labels of the node.",
            CONTRIBUTOR,
            NAMES,
            rule=kubernetes.label_value,
            name_rules=(kubernetes.label_key, kubernetes.own_label),
            api="nodeConfig.labels",
            form="Labels",
            flag="--labels --label",
        ),
    ] = field(default_factory=dict)
    taints: Annotated[
        tuple[Taint, ...],
        Setting(
            "Taints that the node registers with.",
            CONTRIBUTOR,
            NOTHING,
            api="nodeConfig.taints",
            form="Taints",
            flag="--taints --taint",
        ),
    ] = ()
    max_pods: Annotated[
        int,
        Meta(ge=1, le=1024),
        Setting(
            "Maximum number of pods.",
            CONTRIBUTOR,
            NOTHING,
            disturbs=KUBELET,
            api="nodeConfig.maxPods",
            form="Maximum pods",
            flag="--max-pods",
            kubelet="maxPods",
        ),
    ] = 110
    kubelet: Annotated[Kubelet, Meta(description="Settings of the kubelet.")] = field(default_factory=Kubelet)


class KubernetesPaths(ConfigModel, frozen=True, kw_only=True):
    config_dir: Annotated[
        Path, Setting("Configuration of Kubernetes.", MACHINE, FILES, disturbs=JOIN, rule=values.directory)
    ] = "/etc/kubernetes"
    certs_dir: Annotated[
        Path, Setting("CA certificate of the cluster.", MACHINE, FILES, disturbs=JOIN, rule=values.directory)
    ] = "/etc/kubernetes/certs"
    manifests_dir: Annotated[
        Path,
        Setting(
            "Static pod manifests.", MACHINE, FILES, disturbs=JOIN, rule=values.directory, kubelet="staticPodPath"
        ),
    ] = "/etc/kubernetes/manifests"
    volume_plugin_dir: Annotated[
        Path,
        Setting("Volume plugins.", MACHINE, FILES, disturbs=JOIN, rule=values.directory, kubelet="volumePluginDir"),
    ] = "/etc/kubernetes/volumeplugins"
    kubelet_dir: Annotated[
        Path, Setting("State of the kubelet.", MACHINE, FILES, disturbs=JOIN, rule=values.directory)
    ] = "/var/lib/kubelet"


class CniPaths(ConfigModel, frozen=True, kw_only=True):
    bin_dir: Annotated[Path, Setting("CNI plugins.", MACHINE, FILES, disturbs=JOIN, rule=values.directory)] = (
        "/opt/cni/bin"
    )
    conf_dir: Annotated[
        Path, Setting("CNI network configurations.", MACHINE, FILES, disturbs=JOIN, rule=values.directory)
    ] = "/etc/cni/net.d"
    lib_dir: Annotated[
        Path, Setting("State of CNI plugins.", MACHINE, FILES, disturbs=JOIN, rule=values.directory)
    ] = "/var/lib/cni"


class Paths(ConfigModel, frozen=True, kw_only=True):
    config_dir: Annotated[
        Path, Setting("Configuration of the agent.", MACHINE, FILES, disturbs=JOIN, rule=values.directory)
    ] = "/etc/aks-flex-node"
    data_dir: Annotated[
        Path,
        Setting("State of the agent and downloaded artifacts.", MACHINE, FILES, disturbs=JOIN, rule=values.directory),
    ] = "/var/lib/aks-flex-node"
    log_dir: Annotated[Path, Setting("Log of the agent.", MACHINE, FILES, disturbs=JOIN, rule=values.directory)] = (
        "/var/log/aks-flex-node"
    )
    install_dir: Annotated[
        Path,
        Setting(
            "Programs, with one directory for each version.", MACHINE, FILES, disturbs=JOIN, rule=values.directory
        ),
    ] = "/opt/aks-flex-node"
    bin_dir: Annotated[Path, Setting("Links to the programs.", MACHINE, FILES, disturbs=JOIN, rule=values.path)] = (
        "/usr/local/bin"
    )
    sbin_dir: Annotated[Path, Setting("Link to runc.", MACHINE, FILES, disturbs=JOIN, rule=values.path)] = (
        "/usr/local/sbin"
    )
    containerd_dir: Annotated[
        Path, Setting("Images and containers.", MACHINE, FILES, disturbs=JOIN, rule=values.directory)
    ] = "/var/lib/containerd"
    kubernetes: Annotated[KubernetesPaths, Meta(description="Paths of Kubernetes.")] = field(
        default_factory=KubernetesPaths
    )
    cni: Annotated[CniPaths, Meta(description="Paths of CNI.")] = field(default_factory=CniPaths)


class Agent(ConfigModel, frozen=True, kw_only=True):
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Setting("Minimum level of log messages.", MACHINE, NOTHING)
    ] = "info"
    log_file: Annotated[Path | None, Setting("Log file. Default: agent.log in paths.logDir.", MACHINE, FILES)] = None
    log_dir: Annotated[Path | None, Setting("Deprecated. Use paths.logDir.", MACHINE, FILES)] = None
    join_seconds: Annotated[
        float,
        Meta(gt=0, le=86400),
        Setting("Timeout for the node to register and become Ready.", MACHINE, NOTHING),
    ] = 180.0
    approval_seconds: Annotated[
        float,
        Meta(ge=0, le=2_592_000),
        Setting("How long a machine that enrols waits for its approval in one run.", MACHINE, NOTHING),
    ] = 86400.0
    version: Annotated[
        Version | None,
        Setting(
            "Version of the agent of a managed node. Default: the installed version.",
            CONTRIBUTOR,
            VERSIONS,
            api_rule=kubernetes.version,
            api="versions.agent",
            form="Agent",
            flag="--agent-version",
        ),
    ] = None
    url: Annotated[
        str,
        Setting(
            "Download URL with `{version}` and `{arch}`, or `%s` for version, version, architecture.",
            MACHINE,
            PROGRAMS,
            rule=values.template,
        ),
    ] = "https://github.com/Azure/AKSFlexNode/releases/download/v%s/aks-flex-node-%s-linux-%s.tar.gz"
    sha256: HashesByName = field(default_factory=dict)
    unbootstrap_on_delete: Annotated[
        bool,
        Setting(
            "Unbootstrap the node when its resource is deleted. If false, the node is left unchanged.",
            CONTRIBUTOR,
            NOTHING,
            api="nodeConfig.unbootstrapOnDelete",
            form="Unbootstrap the machine when the node is deleted",
        ),
    ] = True
    drift_seconds: Annotated[
        float,
        Meta(ge=1, le=86400),
        Setting("Interval at which the daemon compares the whole machine with its configuration.", MACHINE, NOTHING),
    ] = 300.0
    metrics_file: Annotated[
        Path | None,
        Setting(
            "File for the textfile collector of the Prometheus node exporter. Default: none.",
            MACHINE,
            FILES,
            rule=values.metrics_file,
        ),
    ] = None


class Artifacts(ConfigModel, frozen=True, kw_only=True):
    base_url: Annotated[
        str | None,
        Setting(
            "https URL of a mirror. Files are requested from `<baseURL>/<host>/<path>` instead "
            "of the publisher. Its checksums are not used.",
            OWNER,
            PROGRAMS,
            rule=values.base_url,
            api_rule=values.public_https_url,
            api="nodeConfig.artifacts.baseURL",
        ),
    ] = None
    bundle: Annotated[
        Path | None,
        Setting("Offline bundle (directory or tar). If set, nothing is downloaded.", MACHINE, PROGRAMS),
    ] = None
    ca_file: Annotated[
        Path | None,
        Setting(
            "File with a CA certificate to trust for downloads from a mirror, in addition to the "
            "system's CAs. The publishers' checksum files need the system's CAs.",
            MACHINE,
            PROGRAMS,
            rule=values.path,
        ),
    ] = None
    checksums_file: Annotated[
        Path,
        Setting(
            "File with the hashes of artifacts by URL, as `aks-flex-node artifacts pins` prints them. "
            "Used if it exists.",
            MACHINE,
            PROGRAMS,
        ),
    ] = "/etc/aks-flex-node/checksums.txt"
    parallel: Annotated[
        int,
        Meta(ge=1, le=32),
        Setting(
            "Number of parallel downloads. Components that are needed first are downloaded first.", MACHINE, NOTHING
        ),
    ] = 4
    attempts: Annotated[
        int, Meta(ge=1, le=20), Setting("Maximum number of attempts for a download.", MACHINE, NOTHING)
    ] = 5
    stall_seconds: Annotated[
        float,
        Meta(gt=0, le=3600),
        Setting("Seconds without data after which a download is retried.", MACHINE, NOTHING),
    ] = 30.0


class Proxy(ConfigModel, frozen=True, kw_only=True):
    http: Annotated[
        ProxyURL | None,
        Setting(
            "Proxy for http: `http://[user:password@]host:port`.",
            MACHINE,
            NETWORK,
            disturbs=CONTAINERD,
            rule=values.proxy,
        ),
    ] = None
    https: Annotated[
        ProxyURL | None, Setting("Proxy for https.", MACHINE, NETWORK, disturbs=CONTAINERD, rule=values.proxy)
    ] = None
    no_proxy: Annotated[
        tuple[str, ...],
        Setting(
            "Hosts, domains and networks that are reached without a proxy.",
            MACHINE,
            NETWORK,
            disturbs=CONTAINERD,
            rule=values.no_proxy,
        ),
    ] = ()

    def __repr__(self) -> str:
        return f"Proxy(http={redact(self.http)!r}, https={redact(self.https)!r}, no_proxy={self.no_proxy!r})"


class MaintenanceWindow(ConfigModel, frozen=True, kw_only=True):
    days: Annotated[
        tuple[Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"], ...],
        Meta(max_length=7),
        Setting(
            "Days on which the maintenance window opens. Default: every day.",
            CONTRIBUTOR,
            NOTHING,
            api="nodeConfig.updatePolicy.maintenanceWindow.days",
            form="Days",
            flag="--window-days --window-day",
        ),
    ] = ()
    start: Annotated[
        TimeOfDay | None,
        Setting(
            "Time at which the maintenance window opens, `HH:MM`. Default: it is always open.",
            CONTRIBUTOR,
            NOTHING,
            api="nodeConfig.updatePolicy.maintenanceWindow.start",
            form="Start time",
            flag="--window-start",
        ),
    ] = None
    duration_minutes: Annotated[
        int,
        Meta(ge=15, le=1440),
        Setting(
            "Duration of the maintenance window in minutes.",
            CONTRIBUTOR,
            NOTHING,
            api="nodeConfig.updatePolicy.maintenanceWindow.durationMinutes",
            form="Duration in minutes",
            flag="--window-minutes",
        ),
    ] = 60
    time_zone: Annotated[
        str,
        Setting(
            "Time zone of the maintenance window, for example `Europe/Berlin`.",
            CONTRIBUTOR,
            NOTHING,
            api_rule=values.time_zone,
            api="nodeConfig.updatePolicy.maintenanceWindow.timeZone",
            form="Time zone",
            flag="--window-time-zone",
        ),
    ] = "UTC"


class Provider(ConfigModel, frozen=True, kw_only=True):
    url: Annotated[
        HttpsURL | None,
        Setting(
            "URL of the resource provider. Default: Azure Resource Manager.", PROVIDER, CREDENTIALS, rule=values.url
        ),
    ] = None
    audience: Annotated[
        str | None,
        Setting(
            "Audience of tokens for the provider. Default: Azure Resource Manager, whose tokens are sent "
            "only to Azure.",
            PROVIDER,
            CREDENTIALS,
        ),
    ] = None
    ca_cert_data: Annotated[
        str | None,
        Setting(
            "CA certificates of the provider: PEM in base64. Default: the system's CAs.",
            PROVIDER,
            CREDENTIALS,
            rule=values.certificate,
        ),
    ] = None
    poll_seconds: Annotated[
        float,
        Meta(ge=1, le=3600),
        Setting("Poll interval in seconds, with a jitter of one third.", PROVIDER, NOTHING),
    ] = 30.0
    wait_seconds: Annotated[
        int,
        Meta(ge=0, le=55),
        Setting(
            "How long the provider can hold a poll until a change occurs (long poll). 0 disables long polls.",
            MACHINE,
            NOTHING,
        ),
    ] = 50


class UpdatePolicy(ConfigModel, frozen=True, kw_only=True):
    paused: Annotated[
        bool,
        Setting(
            "Postpone all changes of the node.",
            CONTRIBUTOR,
            NOTHING,
            api="nodeConfig.updatePolicy.paused",
            form="Pause changes",
            flag="--pause / --resume",
        ),
    ] = False
    allow_downgrade: Annotated[bool, Setting("Allow changes to older versions.", PROVIDER, VERSIONS)] = False
    drain: Annotated[
        bool,
        Setting(
            "Drain the node before the kubelet, containerd or runc is replaced.",
            CONTRIBUTOR,
            NOTHING,
            api="nodeConfig.updatePolicy.drain",
            flag="--drain",
        ),
    ] = True
    drain_timeout_seconds: Annotated[
        int,
        Meta(ge=0, le=86400),
        Setting(
            "Timeout of a drain in seconds.",
            CONTRIBUTOR,
            NOTHING,
            api="nodeConfig.updatePolicy.drainTimeoutSeconds",
            flag="--drain-timeout",
        ),
    ] = 300
    health_timeout_seconds: Annotated[
        int,
        Meta(ge=1, le=86400),
        Setting(
            "Seconds in which the node must become Ready after a change. Otherwise, the change is rolled back.",
            CONTRIBUTOR,
            NOTHING,
            api="nodeConfig.updatePolicy.healthTimeoutSeconds",
            flag="--health-timeout",
        ),
    ] = 300
    maintenance_window: Annotated[MaintenanceWindow, Meta(description="When disruptive changes can start.")] = field(
        default_factory=MaintenanceWindow
    )


class Aks(ConfigModel, frozen=True, kw_only=True):
    machine_name: Annotated[
        str | None,
        Setting(
            "Name of the node's Machine in the pool. Default: the name of the node. With another name, "
            "AKS does not find the Node for an upgrade.",
            MACHINE,
            NAMES,
            rule=values.azure_name,
        ),
    ] = None
    upgrade_trigger: Annotated[
        Literal["nodeDeleted", "immediate"],
        Setting(
            "When a change of the Machine that disturbs pods is applied: after AKS has drained and "
            "deleted the Node, or immediately, with a drain by the agent.",
            MACHINE,
            NOTHING,
        ),
    ] = "nodeDeleted"
    machine_operations: Annotated[
        bool,
        Setting(
            "Carry out MachineOperation resources of the cluster: reboot, agent update and reset.", MACHINE, NOTHING
        ),
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
        Setting(
            "Mirrors of image registries: `mcr.microsoft.com: [https://mirror.example]`.",
            OWNER,
            IMAGES,
            rule=values.url,
            api_rule=values.public_url,
            name_rules=(values.registry,),
            api="nodeConfig.registryMirrors",
        ),
    ] = field(default_factory=dict)
    drift_policy: Annotated[
        Literal["log", "repair"],
        Setting(
            "What the daemon does about drift: repair it, or only log it.",
            CONTRIBUTOR,
            NOTHING,
            api="nodeConfig.driftPolicy",
            form="Drift policy",
            flag="--drift-policy",
        ),
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
        bool,
        Setting(
            "Managed node: the daemon applies the changes of the node's resource and reports its status.",
            CONTRIBUTOR,
            NOTHING,
            api="continuousMonitoring",
            form="Managed node",
            flag="--continuous-monitoring --monitor / --no-monitor",
        ),
    ] = False
