"""A simulated machine that joins and is unbootstrapped, and one complete run of the agent on it."""

from __future__ import annotations

import json
import shutil
import stat
from typing import TYPE_CHECKING, Any, TypeAlias

from aks_flex_node.agent.artifacts.digest import hash_file
from aks_flex_node.agent.artifacts.model import StagedFile, TreeManifest
from aks_flex_node.agent.bootstrap.join import NodeJoin
from aks_flex_node.agent.bootstrap.unbootstrap import Unbootstrap
from aks_flex_node.agent.cluster.nodes import ClusterNode
from aks_flex_node.agent.cluster.readiness import NodeReadiness
from aks_flex_node.agent.context import ledger_paths
from aks_flex_node.agent.event_log import EventLog
from aks_flex_node.agent.machine import Machine
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.engine import Engine
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.program_stager import ProgramStager
from aks_flex_node.host.actions import PlaceTree
from tests.crash.action_trace import RULES
from tests.crash.simulated_host import STATE
from tests.unit.agent.builders import pending_actions
from tests.unit.agent.config.builders import CA, TOKEN, Settings, load_plain, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.settings.models import NodeConfig
    from tests.crash.crash_points import SimulatedHost

Item: TypeAlias = tuple[str, int, object]
Tree: TypeAlias = dict[str, Item]
Change: TypeAlias = "tuple[Item | None, Item | None]"
SETTINGS: Settings = {
    "azure.bootstrapToken.token": TOKEN,
    "node.kubelet.serverURL": "https://cluster.example:443",
    "node.kubelet.caCertData": CA,
    "kubernetes.version": "1.34.2",
}
CONFIG = load_plain(settings(SETTINGS), "test.json").config
MACHINE = Machine(hostname="edge-1")
SYSCTLS = {
    "net/ipv4/ip_forward": "0",
    "net/ipv4/conf/all/rp_filter": "1",
    "net/ipv4/conf/default/rp_filter": "1",
    "vm/overcommit_memory": "0",
    "vm/panic_on_oom": "0",
    "kernel/panic": "0",
    "kernel/panic_on_oops": "0",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
    "fs/inotify/max_user_instances": "128",
}
FOREIGN = {
    "/etc/containerd/config.toml": "# somebody else's\n",
    "/etc/cni/net.d/10-foreign.conflist": "{}\n",
    "/etc/default/locale": "LANG=C\n",
    "/etc/fstab": "/dev/vda / ext4 defaults 0 1\n/dev/vdb none swap sw,pri=5 0 0\n",
    "/etc/systemd/system/foreign.service": "[Service]\n",
    "/opt/foreign/file": "stays\n",
    "/proc/filesystems": "nodev\tproc\n",
    "/proc/modules": "loop 1 0 - Live 0x0\n",
    "/proc/self/mountinfo": "1 0 0:1 / / rw - ext4 /dev/vda rw\n",
    "/proc/swaps": "Filename Type Size Used Priority\n/dev/vdb partition 1024 0 5\n",
    "/sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "/var/lib/foreign": "stays\n",
    STATE: json.dumps({"iptables": RULES, "links": ["foreign0"], "units": {}}, indent=1, sort_keys=True),
    **{f"/proc/sys/{key}": f"{value}\n" for key, value in SYSCTLS.items()},
}
FOLDERS = "etc/modules-load.d etc/sysctl.d opt run sys/fs/cgroup/system.slice usr/local/bin usr/local/sbin var/log"


def seed(root: Path) -> Path:
    """Creates a machine that was never a node and contains files of other software."""
    for path, text in FOREIGN.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (root / "etc/containerd/config.toml").chmod(0o640)
    for folder in (*FOLDERS.split(), "etc/systemd/system/multi-user.target.wants"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "usr/local/bin/ctr").symlink_to("/opt/foreign/ctr")
    return root


class StagingWorkshop(ProgramStager):
    """Stages small programs with the same paths and manifests as the real ones."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def prepare(self, programs: Sequence[ProgramTree]) -> None:
        for program in programs:
            self.finish(program, 1)

    def finish(self, program: ProgramTree, seconds: float) -> None:  # noqa: ARG002
        if self._host.stat(program.staging_path) is None:
            partial = f"{program.staging_path}.partial"
            self._fill(self._host.disk.at(partial), program)
            self._host.apply(PlaceTree(partial, program.staging_path))

    def close(self) -> None: ...

    def _fill(self, place: Path, program: ProgramTree) -> None:
        shutil.rmtree(place, ignore_errors=True)
        files = {}
        for wanted in (wanted for artifact in program.artifacts for wanted in artifact.files):
            name = f"{wanted.path}monitor.json" if wanted.is_prefix else wanted.path
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(f"{name} of {program.component} {program.version}\n")
            (place / name).chmod(wanted.mode)
            files[name] = StagedFile(hash_file(place / name).sha256, (place / name).stat().st_size, wanted.mode)
        TreeManifest(program.component, program.version, (), files).write(place)


class GivingProof(NodeReadiness):
    """A cluster that registers the node immediately, and assigns its pod CIDR a moment later."""

    def __init__(self) -> None: ...

    def needs_kubelet_restart(self) -> bool:
        return False

    def sync_labels(self, node: ClusterNode, wanted: Mapping[str, str], earlier: frozenset[str]) -> None:
        pass

    def wait_registered(self, lost_seconds: float = 0.0) -> ClusterNode:  # noqa: ARG002
        return _node("")

    def wait_ready(self, seen: Callable[[ClusterNode], None]) -> ClusterNode:
        seen(_node(""))
        seen(_node("10.244.7.0/24"))
        return _node("10.244.7.0/24")


def _node(cidr: str) -> ClusterNode:
    ready = {"type": "Ready", "status": "True" if cidr else "False"}
    return ClusterNode.read(
        {"metadata": {"name": "edge-1"}, "spec": {"podCIDR": cidr}, "status": {"conditions": [ready]}}
    )


def engine(host: SimulatedHost, config: NodeConfig = CONFIG) -> Engine:
    """Returns the engine of a new process, which knows only what is on the disk."""
    known = node_state.read(host, f"{config.paths.data_dir}/state.json")
    machine = Machine(hostname=MACHINE.hostname, pod_cidr=known.pod_cidr)
    return Engine(
        host,
        config,
        machine,
        Ledger(host, ledger_paths(config)),
        EventLog(),
        StagingWorkshop(host),
        sync=lambda: None,
    )


def join(host: SimulatedHost) -> list[str]:
    """Joins the machine; returns the pending actions afterwards."""
    NodeJoin(engine(host), GivingProof()).run()
    return [f"{component}: {action}" for component, action in pending_actions(engine(host))]


def join_and_reset(host: SimulatedHost) -> list[str]:
    return join(host) + reset(host)


def reset(host: SimulatedHost) -> list[str]:
    """Unbootstraps the machine; returns what is left."""
    return Unbootstrap(engine(host), None, ProgressReporter()).run()


def tree(root: Path) -> Tree:
    """Returns everything below a root: kind, mode, and content or target, without timestamps."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        name, mode = f"/{path.relative_to(root)}", stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[name] = ("link", 0, str(path.readlink()))
        elif path.is_dir():
            found[name] = ("directory", mode, None)
        else:
            found[name] = ("file", mode, _timeless(path))
    return found


def _timeless(path: Path) -> object:
    if path.name not in {"state.json", "ledger.json", "failed-config.json"}:
        return sorted(path.read_bytes().splitlines()) if path.name == "mountinfo" else path.read_bytes()
    document = json.loads(path.read_text(), object_hook=_without_moments)
    # As text, because the order of the entries is the order of their removal.
    return {name: json.dumps(owned) for name, owned in document.get("components", document).items()}


def _without_moments(document: dict[str, Any]) -> dict[str, Any]:
    if isinstance(document.get("seen"), dict):
        document["seen"] = sorted(document["seen"])
    return {key: value for key, value in document.items() if key not in {"since", "at", "applied"}}


def changes(before: Tree, after: Tree) -> dict[str, Change]:
    """Returns the differences between two trees: path, old entry, new entry."""
    paths = sorted({*before, *after})
    return {path: (before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)}
