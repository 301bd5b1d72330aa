"""Everything that checks may know and ask, in one frozen object that is made at the door."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.derived import joined_file
from aks_flex_node.agent.preflight.seams import Room
from aks_flex_node.agent.reconcile.resources import MANAGED_MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.preflight.seams import Network
    from aks_flex_node.agent.reconcile.ledger import Ledger
    from aks_flex_node.agent.reconcile.resources import Spec
    from aks_flex_node.host.host import Host

KUBELET = "kubelet.service"
UNITS = "/etc/systemd/system"
MOST_MARKED = 1 << 20  # no file of ours that bears a mark is larger


@dataclass(frozen=True)
class Situation:
    host: Host  # asked, never told
    config: NodeConfig
    machine: Machine
    network: Network
    room: Callable[[str], Room | None]  # of the file system at a path; None when nothing is there
    now: Callable[[], float]  # this machine's clock
    specs: tuple[Spec, ...] = ()  # all that the components want which are meant
    uid: int = 0
    owned_paths: frozenset[str] = frozenset()
    owned_trees: frozenset[str] = frozenset()  # directories that are ours with all that is in them
    owned_services: frozenset[str] = frozenset()

    @property
    def joined(self) -> bool:
        """Whether this machine is our node already: then a kubelet is no stranger here."""
        return KUBELET in self.owned_services

    @property
    def certified(self) -> bool:
        """Whether our node has what it shows the cluster: then it can be repaired while the cluster is away."""
        return self.joined and self.exists(joined_file(self.config))

    def owns(self, path: str) -> bool:
        return path in self.owned_paths or any(
            path == tree or path.startswith(f"{tree}/") for tree in self.owned_trees
        )

    def marked(self, path: str) -> bool:
        """Whether a file says of itself that it is ours, or a link leads to our programs."""
        try:
            entry = self.host.look(path)
        except OSError:
            return False
        if entry is None or entry.target:
            return entry is not None and entry.target.startswith(f"{self.config.paths.install_dir}/")
        return entry.size < MOST_MARKED and MANAGED_MARK in self.text(path)

    def text(self, path: str) -> str:
        """A file's text; empty when it is not there, or is not for us to read."""
        try:
            return (self.host.read(path) or b"").decode(errors="replace")
        except OSError:
            return ""

    def names(self, path: str) -> tuple[str, ...]:
        try:
            return self.host.names(path)
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        try:
            return self.host.look(path) is not None
        except OSError:
            return False


def situation(
    host: Host, config: NodeConfig, machine: Machine, ledger: Ledger, components: AbstractSet[str] | None = None
) -> Situation:
    """The situation of the machine we run on, for the components that are meant; for all of them by default."""
    from aks_flex_node.agent.components.catalog import SEQUENCE
    from aks_flex_node.agent.preflight.network import LiveNetwork
    from aks_flex_node.agent.reconcile.program_stager import artifact_sources

    records = [item for owned in ledger.components.values() for item in owned.paths.items()]
    wanted = {component.name: component.desired(config, machine) for component in SEQUENCE}
    known = Situation(
        host,
        config,
        machine,
        LiveNetwork(artifact_sources(config)),
        room_at,
        time.time,
        tuple(spec for name, spec in wanted.items() if components is None or name in components),
        os.geteuid(),
        frozenset(path for path, _ in records),
        frozenset(path for path, record in records if record.get("ours") or record.get("kind") == "program"),
        frozenset(name for owned in ledger.components.values() for name in owned.services),
    )
    return with_marked(known, wanted.values())


def with_marked(known: Situation, specs: Iterable[Spec]) -> Situation:
    """The same, with what is ours though no ledger says so: units that bear our mark, and what they work on."""
    ours = [spec for spec in specs if any(known.marked(f"{UNITS}/{name}") for name in spec.fingerprints)]
    services = frozenset(name for spec in ours for name in spec.fingerprints)
    trees = {path for spec in ours for path in spec.owned_dirs}
    if KUBELET in services:
        trees.add(known.config.paths.kubernetes.kubelet_dir)
    return replace(known, owned_trees=known.owned_trees | trees, owned_services=known.owned_services | services)


def room_at(path: str) -> Room | None:
    try:
        found, device = os.statvfs(path), os.stat(path).st_dev  # noqa: PTH116 - next to statvfs, which has no Path
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Room(
        device,
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        found.f_ffree,
        found.f_files,
        bool(found.f_flag & os.ST_RDONLY),
        bool(found.f_flag & os.ST_NOEXEC),
    )
