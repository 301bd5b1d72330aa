"""One entry of the table of settings: besides type, bounds and default, who may set it and what it reaches.

An entry without `who` and `reaches` does not load. What the table does not allow to a provider, a node refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    Rule = Callable[[str], str | None]  # returns what is wrong with a text, or None

# Who may set it. A machine accepts from others what is not for its own administrator alone.
Who = Literal["contributor", "owner", "provider", "machine"]
CONTRIBUTOR: Who = "contributor"  # of the cluster, in the API of the resource provider
OWNER: Who = "owner"  # of the cluster, in the API
PROVIDER: Who = "provider"  # the provider or an AKS pool, from what it knows of the cluster; no role
MACHINE: Who = "machine"  # only the administrator of the machine: in a file there, an option or a variable

SETTERS: dict[Who, str] = {
    CONTRIBUTOR: "contributors of the cluster, through the provider",
    OWNER: "owners of the cluster, through the provider",
    PROVIDER: "the provider or the AKS pool itself",
    MACHINE: "only the administrator of the machine, also on a managed node",
}

# What it reaches, and so what a wrong value could cost.
Reach = Literal[
    "nothing", "names", "network", "isolation", "versions", "images", "programs", "files", "credentials", "cluster"
]
NOTHING: Reach = "nothing"  # only how this node works
NAMES: Reach = "names"
NETWORK: Reach = "network"
ISOLATION: Reach = "isolation"
VERSIONS: Reach = "versions"
IMAGES: Reach = "images"
PROGRAMS: Reach = "programs"
FILES: Reach = "files"
CREDENTIALS: Reach = "credentials"
CLUSTER: Reach = "cluster"

REACHES: dict[Reach, str] = {
    NOTHING: "it changes how this node works, and nothing else",
    NAMES: "it decides under which name the node is found",
    NETWORK: "it decides how the node is connected",
    ISOLATION: "the kubelet is root, and it decides what it lets pods do",
    VERSIONS: "it decides which published version of a program runs on the node",
    IMAGES: "it decides from where the node's container images come",
    PROGRAMS: "it decides which programs run as root on the node",
    FILES: "it names a file that the agent reads or writes as root on the node",
    CREDENTIALS: "it decides with which identity the node acts, or where it sends its credentials",
    CLUSTER: "the node does what the API server at this address says",
}

# What a change of a running node disturbs.
Disturbance = Literal["nothing", "kubelet", "containerd", "pods", "drain", "join"]
KUBELET: Disturbance = "kubelet"  # its restart; pods go on
CONTAINERD: Disturbance = "containerd"
PODS: Disturbance = "pods"
DRAIN: Disturbance = "drain"
JOIN: Disturbance = "join"  # fixed by the join; for another value, unbootstrap and join again

DISTURBS: dict[Disturbance, str] = {
    "nothing": "no running program",
    KUBELET: "the kubelet, which restarts; pods go on",
    CONTAINERD: "containerd, which restarts, also with the kubelet; pods go on",
    PODS: "pods that start meanwhile: it waits for the maintenance window",
    DRAIN: "pods: the node is drained first, in the maintenance window",
    JOIN: "everything: unbootstrap the node and join again for another value",
}


class Setting(Struct, frozen=True):
    """What the table says of a setting, beside its type, bounds and default."""

    help: str
    who: Who
    reaches: Reach
    disturbs: Disturbance = "nothing"
    rule: Rule | None = None  # of a text, of each item of a list and of each value of a map
    name_rules: tuple[Rule, ...] = ()  # of the names of a map
    api_rule: Rule | None = None  # one more for values that come through the API
    api: str = ""  # its path below `properties` of a node, and of the template of a pool
    per_node: bool = False  # of one machine; the template of a pool cannot have it
    flag: str = ""  # its options on all command lines, the first with its name: `--vpn`, or `--pause / --resume`
    kubelet: str = ""  # the field of the KubeletConfiguration that it is written to
    form: str = ""  # the label of its field in the forms of the dashboard; empty: it is edited as JSON
    aks: str = ""  # its name in the bootstrap data of an AKS pool
    owner_value: str = ""  # the only value that needs the role owner
    content: str = ""  # of a file: the setting whose value it contains
    provider_value: str = ""  # the only value that a provider can send
    peer: bool = False  # where the machine sends the credentials of its own identity

    @property
    def set_by(self) -> str:
        return f"{self.who}, owner for {self.owner_value}" if self.owner_value else self.who
