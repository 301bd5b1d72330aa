"""Everything that checks may know and ask, in one frozen object that is made at the door."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.seams import Room

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.engine.ledger import Ledger
    from aks_flex_node.agent.engine.resources import Spec
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.preflight.seams import Network
    from aks_flex_node.host.host import Host

KUBELET = "kubelet.service"


@dataclass(frozen=True)
class Situation:
    host: Host  # asked, never told
    config: NodeConfig
    machine: Machine
    network: Network
    room: Callable[[str], Room | None]  # of the file system at a path; None when nothing is there
    now: Callable[[], float]  # this machine's clock
    specs: tuple[Spec, ...] = ()  # all that the node's components want
    uid: int = 0
    owned_paths: frozenset[str] = frozenset()
    owned_trees: frozenset[str] = frozenset()  # directories that are ours with all that is in them
    owned_services: frozenset[str] = frozenset()

    @property
    def joined(self) -> bool:
        """Whether this machine is our node already: then a kubelet is no stranger here."""
        return KUBELET in self.owned_services

    def owns(self, path: str) -> bool:
        return path in self.owned_paths or any(
            path == tree or path.startswith(f"{tree}/") for tree in self.owned_trees
        )

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


def situation(host: Host, config: NodeConfig, machine: Machine, ledger: Ledger) -> Situation:
    """The situation of the machine we run on."""
    from aks_flex_node.agent.components.sequence import SEQUENCE  # noqa: PLC0415 - slow to import
    from aks_flex_node.agent.engine.workshop import sources  # noqa: PLC0415
    from aks_flex_node.agent.preflight.network import LiveNetwork  # noqa: PLC0415

    records = [item for owned in ledger.components.values() for item in owned.paths.items()]
    return Situation(
        host,
        config,
        machine,
        LiveNetwork(sources(config)),
        room_at,
        time.time,
        tuple(component.desired(config, machine) for component in SEQUENCE),
        os.geteuid(),
        frozenset(path for path, _ in records),
        frozenset(path for path, record in records if record.get("ours") or record.get("kind") == "program"),
        frozenset(name for owned in ledger.components.values() for name in owned.services),
    )


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
