"""Flex node pools and Machines as the lab stores them, in one JSON file of the state directory, and operations."""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct, field

from aks_flex_lab.files import file_lock, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ProvisioningState = Literal["Creating", "Updating", "Upgrading", "Deleting", "Succeeded", "Failed"]
OperationKind = Literal["putPool", "upgradePool", "deletePool", "putMachine", "deleteMachines"]
OperationStatus = Literal["InProgress", "Succeeded", "Failed"]
SettingValue = str | int | bool | list[str]


def new_id() -> str:
    return str(uuid.uuid4())


class ArmErrorDetail(Struct, frozen=True):
    code: str
    message: str


class KubernetesSettings(Struct, frozen=True):
    """The settings of a Machine, and the defaults of a pool for Machines that join later."""

    orchestrator_version: str
    max_pods: int
    node_labels: dict[str, str] = field(default_factory=dict)
    node_taints: tuple[str, ...] = ()
    kubelet_config: dict[str, SettingValue] = field(default_factory=dict)


class PoolResource(Struct, kw_only=True):
    """What pools and Machines have in common."""

    id: str
    settings: KubernetesSettings
    current_version: str  # of a Machine: that of its Node when it was last read
    etag: str = field(default_factory=new_id)
    state: ProvisioningState = "Creating"
    tags: dict[str, str] = field(default_factory=dict)
    error: ArmErrorDetail | None = None

    @property
    def name(self) -> str:
        return self.id.rpartition("/")[2]

    @property
    def parent_id(self) -> str:
        """The ID of the cluster of a pool, or of the pool of a Machine."""
        return self.id.rsplit("/", 2)[0]


class FlexPool(PoolResource, kw_only=True):
    max_unavailable: str = "1"


class PoolMachine(PoolResource, kw_only=True):
    created: float
    applied_labels: tuple[str, ...] = ()  # keys that AKS set on the Node, and removes when they are gone
    applied_taints: tuple[str, ...] = ()

    @property
    def node_name(self) -> str:
        return self.name.lower()


class PoolOperation(Struct, kw_only=True):
    kind: OperationKind
    target: str  # ID of the pool or Machine
    machines: tuple[str, ...] = ()
    id: str = field(default_factory=new_id)
    status: OperationStatus = "InProgress"
    started: float = field(default_factory=time.time)
    ended: float = 0.0
    error: ArmErrorDetail | None = None


class PoolState(Struct):
    pools: dict[str, FlexPool] = field(default_factory=dict)  # by ID in lower case, as below
    machines: dict[str, PoolMachine] = field(default_factory=dict)

    def pools_of(self, cluster_id: str) -> list[FlexPool]:
        return [each for each in self.pools.values() if each.parent_id.lower() == cluster_id.lower()]

    def machines_of(self, pool_id: str) -> list[PoolMachine]:
        return [each for each in self.machines.values() if each.parent_id.lower() == pool_id.lower()]


class PoolTimings(Struct, frozen=True):
    """The times of the lab's AKS, in seconds. Tests shorten them."""

    operation_seconds: float = 0.5  # duration of a PUT
    retry_after: int = 1  # Retry-After of an operation in progress
    token_seconds: int = 3600  # lifetime of a bootstrap token
    ready_seconds: float = 600.0  # until a deleted Node must be back and Ready on the new version
    drain_seconds: float = 1800.0
    poll_seconds: float = 1.0  # between two looks at a Node
    cleanup_seconds: float = 5.0  # between two looks at the Node of a deleted Machine
    reconcile_nodes: bool = True  # whether a Machine's labels and taints are also written to its Node


class FlexPoolStore:
    def __init__(self, state: Path) -> None:
        self._file = state / "flexPools.json"
        self._timings = state / "flexPoolTimings.json"

    def read(self) -> PoolState:
        return msgspec.json.decode(self._file.read_bytes(), type=PoolState) if self._file.exists() else PoolState()

    @contextmanager
    def changing(self) -> Iterator[PoolState]:
        """Yields the state for a block that changes it. If the block raises an exception, nothing is stored."""
        with file_lock(self._file.with_suffix(".lock"), "the lab's node pools", wait=True):
            state = self.read()
            yield state
            write_atomically(self._file, msgspec.json.encode(state), 0o600)

    @property
    def timings(self) -> PoolTimings:
        if not self._timings.exists():
            return PoolTimings()
        return msgspec.json.decode(self._timings.read_bytes(), type=PoolTimings)

    def set_timings(self, timings: PoolTimings) -> None:
        write_atomically(self._timings, msgspec.json.encode(timings))
