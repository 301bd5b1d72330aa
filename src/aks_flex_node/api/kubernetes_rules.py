"""Kubernetes' validation rules for names and values, so that a mistake is reported here and not by a failing
kubelet.
"""

from __future__ import annotations

import re

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_QUANTITY = re.compile(r"\+?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_DURATION = re.compile(r"\+?((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+")
_IMAGE = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(@sha256:[0-9a-f]{64})?"
)

# What a kubelet may say of itself: the lists of k8s.io/kubelet/pkg/apis, which the kubelet refuses to start without.
OWN_PREFIXES = ("kubelet.kubernetes.io", "node.kubernetes.io")
OWN_LABELS = frozenset(
    (
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    )
)
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
        return f"has upper-case letters, which no node name has; write {text.lower()}."
    if not _SUBDOMAIN.fullmatch(text):
        return "is not a node name: lower-case letters, digits, `-` and `.`, with a letter or digit at both ends."
    if len(text) > 63:  # 253 for the name itself, but the kubelet makes a label of it
        return f"has {len(text)} characters; a node name has 63 at most, since it becomes a label."
    return None


def domain(text: str) -> str | None:
    if _SUBDOMAIN.fullmatch(text) and len(text) <= 253:
        return None
    return "is not a DNS domain: lower-case letters, digits and `-`, in parts with `.` between them."


def label_key(text: str) -> str | None:
    """A qualified name: `name`, or `prefix/name` where the prefix is a DNS domain."""
    prefix, slash, name = text.rpartition("/")
    if slash and (not _SUBDOMAIN.fullmatch(prefix) or len(prefix) > 253):
        return "has a wrong prefix: before the `/` stands a DNS domain in lower case."
    if not name or len(name) > 63 or not _NAME.fullmatch(name):
        return (
            "is not a name of 1 to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends, "
            "and perhaps a DNS domain and `/` before it."
        )
    return None


def label_value(text: str) -> str | None:
    if not text or (len(text) <= 63 and _NAME.fullmatch(text)):
        return None
    return (
        "is not a label value: empty, or at most 63 letters, digits, `-`, `_` and `.`, "
        "with a letter or digit at both ends."
    )


def own_label(key: str) -> str | None:
    """Labels under kubernetes.io and k8s.io belong to the cluster; a node may only set a few of them on itself."""
    prefix, slash, _ = key.rpartition("/")
    if not slash or not _below(prefix, ("kubernetes.io", "k8s.io")):
        return None
    if key in OWN_LABELS or _below(prefix, OWN_PREFIXES):
        return None
    return (
        "belongs to the cluster: a node may not set it on itself. Allowed are node.kubernetes.io/…, "
        "kubelet.kubernetes.io/…, topology.kubernetes.io/zone and region, and any prefix of your own. "
        "For others use `kubectl label node`."
    )


def _below(prefix: str, domains: tuple[str, ...]) -> bool:
    return any(prefix == each or prefix.endswith(f".{each}") for each in domains)


def quantity(text: str) -> str | None:
    if _QUANTITY.fullmatch(text):
        return None
    return "is not a quantity that Kubernetes knows, like 100m, 0.5, 512Mi or 2Gi."


def reservable(name: str) -> str | None:
    return None if name in RESERVABLE else f"cannot be reserved; these can: {', '.join(RESERVABLE)}."


def eviction_signal(name: str) -> str | None:
    return (
        None if name in EVICTION_SIGNALS else f"is not an eviction signal; these are: {', '.join(EVICTION_SIGNALS)}."
    )


def eviction_threshold(text: str) -> str | None:
    percent = re.fullmatch(r"(\d+(\.\d+)?)%", text)
    if percent:
        return None if float(percent[1]) <= 100 else "is more than 100%."
    return None if quantity(text) is None else "is not a threshold: a quantity like 100Mi, or a percentage like 10%."


def duration(text: str) -> str | None:
    if _DURATION.fullmatch(text) and re.search(r"[1-9]", text):
        return None
    return "is not a duration above zero, like 10s, 1m30s or 2h."


def version(text: str) -> str | None:
    if re.fullmatch(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", text):
        return None
    if re.fullmatch(r"\d+\.\d+", text):
        return f"has no patch level, and only whole releases can be fetched; give for example {text}.4."
    return "is not a version like 1.34.4."


def image(text: str) -> str | None:
    return None if _IMAGE.fullmatch(text) else "is not an image, like mcr.microsoft.com/oss/kubernetes/pause:3.9."


def bootstrap_token(text: str) -> str | None:
    """Never quote what this was asked about."""
    if re.fullmatch(r"[a-z0-9]{6}\.[a-z0-9]{16}", text):
        return None
    return (
        "is not a bootstrap token: 6 characters, a dot and 16 characters, all of a-z and 0-9. "
        "It is not shown here. `kubeadm token create` makes one."
    )
