"""Check for what an earlier node has left on the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.findings import Finding, error, warning
from aks_flex_node.agent.reconcile.resources import File, Symlink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.preflight.situations import Situation

CREDENTIALS = ("kubelet.conf", "bootstrap-kubelet.conf", "admin.conf", "super-admin.conf")
LINKS = (
    "cni0",
    "flannel.1",
    "cilium_host",
    "cilium_net",
    "vxlan.calico",
    "kube-ipvs0",
    "kube-bridge",
    "weave",
    "flex0",
)
GROUPS = ("kubepods", "kubepods.slice")
HIERARCHIES = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/systemd")
RESET = (
    "If it was a node of another cluster, run `sudo kubeadm reset -f`; if it was one of ours, `sudo aks-flex-node"
    " reset`."
)


def leftovers(situation: Situation) -> Iterator[Finding]:
    yield from _credentials(situation)
    yield from _kubelet_state(situation)
    yield from _static_pods(situation)
    yield from _kept_data(situation)
    yield from _replaced(situation)
    if not situation.joined:
        yield from _networks(situation)
        yield from _kernel(situation)


def _credentials(situation: Situation) -> Iterator[Finding]:
    folder = situation.config.paths.kubernetes.config_dir
    found = [f"{folder}/{name}" for name in CREDENTIALS if _foreign(situation, f"{folder}/{name}")]
    if found:
        yield error(
            f"This machine has credentials of another cluster: {', '.join(found)}.", f"{RESET} Or remove the files."
        )


def _kubelet_state(situation: Situation) -> Iterator[Finding]:
    folder = situation.config.paths.kubernetes.kubelet_dir
    names = [name for name in situation.names(folder) if not situation.owns(f"{folder}/{name}")]
    if names:
        yield error(
            f"{folder} holds the state of an earlier kubelet ({_some(names)}).",
            f"{RESET} Or, when nothing is mounted there any more (`findmnt | grep {folder}`), move it away:"
            f" `sudo mv {folder} {folder}.old`.",
        )


def _static_pods(situation: Situation) -> Iterator[Finding]:
    folder = situation.config.paths.kubernetes.manifests_dir
    names = [name for name in situation.names(folder) if not name.startswith(".")]
    if names and not situation.joined:
        yield error(
            f"{folder} holds static pods ({_some(names)}), which the kubelet would start.",
            f"{RESET} Or move them away: `sudo mv {folder} {folder}.old`.",
        )


def _kept_data(situation: Situation) -> Iterator[Finding]:
    paths = situation.config.paths
    kept = {
        paths.containerd_dir: "images and containers of an earlier containerd; reset removes them with ours",
        paths.cni.lib_dir: "addresses that an earlier network gave to pods",
        "/var/lib/etcd": "the data of a control plane",
    }
    for folder, what in kept.items():
        names = situation.names(folder)
        if names and not situation.owns(folder):
            yield warning(
                f"{folder} holds {what}.", f"If nobody needs it, move it away: `sudo mv {folder} {folder}.old`."
            )


def _replaced(situation: Situation) -> Iterator[Finding]:
    """Files that stand where ours will: they are put aside, and come back by reset."""
    paths = [one.path for spec in situation.specs for one in spec.resources if isinstance(one, File | Symlink)]
    found = [path for path in paths if _foreign(situation, path)]
    if found:
        yield warning(
            f"The node will put files of its own in place of {_some(found)}; `reset` gives them back.",
            "Nothing has to be done, unless something else needs them meanwhile.",
        )


def _networks(situation: Situation) -> Iterator[Finding]:
    folder = situation.config.paths.cni.conf_dir
    files = [name for name in situation.names(folder) if not situation.owns(f"{folder}/{name}")]
    if files:
        yield warning(
            f"{folder} has networks of somebody else ({_some(files)}), and the first of them is used for pods.",
            f"Move them away: `sudo mkdir {folder}.old && sudo mv {folder}/* {folder}.old/`.",
        )


def _kernel(situation: Situation) -> Iterator[Finding]:
    links = [name for name in link_names(situation.text("/proc/net/dev")) if name in LINKS]
    if links:
        typed = " && ".join(f"sudo ip link delete {name}" for name in links)
        yield warning(f"Pod networks of an earlier node are up: {', '.join(links)}.", f"`{typed}`, or reboot.")
    places = [f"{folder}/{name}" for folder in HIERARCHIES for name in GROUPS]
    groups = [place for place in places if situation.exists(place)]
    if groups:
        yield warning(f"There are control groups of an earlier node's pods: {groups[0]}.", "Reboot the machine.")


def link_names(table: str) -> list[str]:
    """The network links of /proc/net/dev, below its two lines of headings."""
    return [line.partition(":")[0].strip() for line in table.splitlines()[2:] if ":" in line]


def _foreign(situation: Situation, path: str) -> bool:
    return situation.exists(path) and not situation.owns(path) and not situation.marked(path)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
