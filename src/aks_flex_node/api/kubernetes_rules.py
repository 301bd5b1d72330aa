"""Validation rules of Kubernetes for names and values, to report invalid values before the kubelet fails."""

from __future__ import annotations

import re

from aks_flex_node.api.value_rules import matching

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

# Labels that a kubelet can set on itself (lists of k8s.io/kubelet/pkg/apis). With others it refuses to start.
OWN_PREFIXES = ("kubelet.kubernetes.io", "node.kubernetes.io")
OWN_LABELS = frozenset(
    (
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    )
)
# Those that the kubelet sets itself from what the machine is: a setting would make them wrong, and its removal would
# remove the label until the kubelet restarts. The cluster derives the two beta labels from them.
KUBELET_LABELS = frozenset(
    (
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
    )
)
# Fields of the KubeletConfiguration that `extraConfig` of a provider cannot set, and why. The kubelet is root, so
# some of them make their writer root on the node.
RESERVED_KUBELET_OPTIONS = {
    "starts pods or programs as root": "staticPodPath staticPodURL staticPodURLHeader volumePluginDir",
    "chooses who runs containers and images": "containerRuntimeEndpoint imageServiceEndpoint cgroupDriver",
    "lets the kubelet read or write files of the host": "resolvConf podLogsDir tlsCertFile tlsPrivateKeyFile",
    "shows files, logs or memory of the host": "enableSystemLogHandler enableSystemLogQuery enableDebuggingHandlers "
    "enableProfilingHandler enableDebugFlagsHandler logging tracing",
    "decides who may use the kubelet": "authentication authorization readOnlyPort address port enableServer "
    "tlsCipherSuites tlsMinVersion tlsCurvePreferences healthzBindAddress healthzPort",
    "decides how the kubelet authenticates": "rotateCertificates serverTLSBootstrap",
    "weakens the isolation of pods": "seccompDefault allowedUnsafeSysctls protectKernelDefaults "
    "imagePullCredentialsVerificationPolicy preloadedImagesVerificationAllowlist makeIPTablesUtilChains "
    "userNamespaces",
    "is part of the hardening of a node": "eventRecordQPS streamingConnectionIdleTimeout",
    "is what the node needs to work": "apiVersion kind clusterDNS registerNode podCIDR "
    "providerID cgroupRoot kubeletCgroups systemCgroups runOnce",
    "has a setting of its own": "registerWithTaints",
}
RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
EVICTION_SIGNALS = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "allocatableMemory.available",
    "pid.available",
)


def node_name(text: str) -> str | None:
    if text != text.lower() and node_name(text.lower()) is None:
        return f"has upper-case letters, which are not allowed in a node name. Use {text.lower()}."
    if not re.fullmatch(_SUBDOMAIN, text):
        return "is not a node name. Use lower-case letters, digits, `-` and `.`, with a letter or digit at both ends."
    if len(text) > 63:  # a name can have 253, but the kubelet also uses it as a label value
        return f"has {len(text)} characters, but a node name can have at most 63, because it is also a label value."
    return None


domain = matching(
    f"(?=.{{1,253}}\\Z){_SUBDOMAIN}",
    "is not a DNS domain. Use lower-case letters, digits and `-`, with `.` between the labels.",
)


def label_key(text: str) -> str | None:
    """Checks a qualified name: `name`, or `prefix/name` with a DNS domain as prefix."""
    prefix, slash, name = text.rpartition("/")
    if slash and domain(prefix):
        return "has an invalid prefix. The part before `/` must be a DNS domain in lower case."
    if not name or label_value(name):
        return (
            "is not a valid key. Use 1 to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both "
            "ends, and optionally a DNS domain and `/` before them."
        )
    return None


label_value = matching(
    f"((?=.{{1,63}}\\Z){_NAME})?",
    "is not a label value. Use at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both "
    "ends, or an empty string.",
)


def own_label(key: str) -> str | None:
    """Checks that a node can set a label on itself. Most labels under kubernetes.io and k8s.io are reserved."""
    prefix, slash, _ = key.rpartition("/")
    if not slash or not _below(prefix, ("kubernetes.io", "k8s.io")):
        return None
    if key in KUBELET_LABELS:
        return "is set by the kubelet itself, from the name and the platform of the machine. Remove it."
    if key in OWN_LABELS or _below(prefix, OWN_PREFIXES):
        return None
    return (
        "is reserved for the cluster, so a node cannot set it on itself. Allowed are node.kubernetes.io/…, "
        "kubelet.kubernetes.io/…, topology.kubernetes.io/zone and region, and any prefix outside of kubernetes.io "
        "and k8s.io. Set others with `kubectl label node`."
    )


def _below(prefix: str, domains: tuple[str, ...]) -> bool:
    return any(prefix == each or prefix.endswith(f".{each}") for each in domains)


quantity = matching(
    r"\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?",
    "is not a Kubernetes quantity, for example 100m, 0.5, 512Mi or 2Gi.",
)
reservable = matching("|".join(RESERVABLE), f"cannot be reserved. Use one of: {', '.join(RESERVABLE)}.")
eviction_signal = matching(
    "|".join(map(re.escape, EVICTION_SIGNALS)),
    f"is not an eviction signal. Use one of: {', '.join(EVICTION_SIGNALS)}.",
)


def eviction_threshold(text: str) -> str | None:
    percent = re.fullmatch(r"([0-9]+(\.[0-9]+)?)%", text)
    if percent:
        return None if float(percent[1]) <= 100 else "is more than 100%."
    return (
        None
        if quantity(text) is None
        else ("is not a threshold. Use a quantity like 100Mi, or a percentage like 10%.")
    )


duration = matching(
    r"(?=.*[1-9])\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+",
    "is not a duration greater than zero, for example 10s, 1m30s or 2h.",
)


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def image_age(text: str) -> str | None:
    """Checks an age that the kubelet accepts beside its minimum age of unused images, which is two minutes."""
    if reason := duration(text):
        return reason
    parts = re.findall(r"([\d.]+)([a-zµμ]+)", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return None if 180 <= seconds <= 31_536_000 else "is not from 3m to 8760h."


def version(text: str) -> str | None:
    if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", text):
        return None
    if re.fullmatch(r"[0-9]+\.[0-9]+", text):
        return f"has no patch version. Use for example {text}.0."
    return "is not a version, for example 1.36.3."


image = matching(
    r"([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(@sha256:[0-9a-f]{64})?",
    "is not an image, for example mcr.microsoft.com/oss/kubernetes/pause:3.9.",
)
bootstrap_token = matching(  # the message never contains the token
    r"[a-z0-9]{6}\.[a-z0-9]{16}",
    "is not a bootstrap token. It must have 6 characters, a dot and 16 characters, all of a-z and 0-9. The "
    "value is not shown. Create a token with `kubeadm token create`.",
)
