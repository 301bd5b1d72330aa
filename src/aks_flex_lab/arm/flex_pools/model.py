"""Flex node pools, Machines and operations as the lab stores them, in one JSON file of the state directory."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from aks_flex_lab.files import file_lock, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ProvisioningState = Literal["Creating", "Updating", "Upgrading", "Deleting", "Succeeded", "Failed"]
OperationKind = Literal["putPool", "upgradePool", "deletePool", "putMachine", "deleteMachines"]
OperationStatus = Literal["InProgress", "Succeeded", "Failed"]
KEPT_OPERATIONS = 100
SettingValue = str | int | bool | list[str]


class ArmErrorDetail(Struct, frozen=True):
    code: str
    message: str


class KubernetesSettings(Struct, frozen=True, rename="camel"):
    """The settings of a Machine, and the defaults of a pool for Machines that join later."""

    orchestrator_version: str
    max_pods: int
    node_labels: dict[str, str] = field(default_factory=dict)
    node_taints: tuple[str, ...] = ()
    kubelet_config: dict[str, SettingValue] = field(default_factory=dict)


class FlexPool(Struct, frozen=True, kw_only=True):
    id: str
    settings: KubernetesSettings
    current_version: str
    etag: str
    state: ProvisioningState
    upgrade_settings: dict[str, SettingValue] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    error: ArmErrorDetail | None = None

    @property
    def name(self) -> str:
        return self.id.rpartition("/")[2]

    @property
    def cluster_id(self) -> str:
        return self.id.rpartition("/agentPools/")[0]


class PoolMachine(Struct, frozen=True, kw_only=True):
    id: str
    settings: KubernetesSettings
    current_version: str  # of the Node when it was last read
    etag: str
    state: ProvisioningState
    created: float
    tags: dict[str, str] = field(default_factory=dict)
    error: ArmErrorDetail | None = None
    applied_labels: tuple[str, ...] = ()  # keys that AKS set on the Node, and removes when they are gone
    applied_taints: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.id.rpartition("/")[2]

    @property
    def pool_id(self) -> str:
        return self.id.rpartition("/machines/")[0]

    @property
    def node_name(self) -> str:
        return self.name.lower()


class MachineProgress(Struct, frozen=True):
    """How far an operation is with one Machine: the next phase, and the UID of the Node that it deletes."""

    phase: Literal["Pending", "Draining", "Deleted", "Done", "Failed"] = "Pending"
    uid: str = ""


class PoolOperation(Struct, frozen=True, kw_only=True):
    id: str
    kind: OperationKind
    target: str  # ID of the pool or Machine
    machines: tuple[str, ...] = ()
    status: OperationStatus = "InProgress"
    started: float = 0.0
    ended: float = 0.0
    error: ArmErrorDetail | None = None
    progress: dict[str, MachineProgress] = field(default_factory=dict)


class RemovedNode(Struct, frozen=True):
    """A Node whose Machine was deleted. AKS deletes it when it is NotReady, if the agent has not."""

    cluster_id: str
    name: str
    uid: str


class PoolState(Struct, frozen=True):
    pools: dict[str, FlexPool] = field(default_factory=dict)  # by ID in lower case, as below
    machines: dict[str, PoolMachine] = field(default_factory=dict)
    operations: dict[str, PoolOperation] = field(default_factory=dict)
    removed_nodes: tuple[RemovedNode, ...] = ()

    def pools_of(self, cluster_id: str) -> list[FlexPool]:
        return [each for each in self.pools.values() if each.cluster_id.lower() == cluster_id.lower()]

    def machines_of(self, pool_id: str) -> list[PoolMachine]:
        return [each for each in self.machines.values() if each.pool_id.lower() == pool_id.lower()]

    def active_operation(self, pool_id: str) -> PoolOperation | None:
        """Returns the operation on the whole pool that has not ended."""
        for each in self.operations.values():
            if each.status == "InProgress" and each.target.lower() == pool_id.lower():
                return each
        return None

    def with_pool(self, pool: FlexPool) -> PoolState:
        return replace(self, pools={**self.pools, pool.id.lower(): pool})

    def without_pool(self, pool_id: str) -> PoolState:
        return replace(self, pools={key: each for key, each in self.pools.items() if key != pool_id.lower()})

    def with_machine(self, machine: PoolMachine) -> PoolState:
        return replace(self, machines={**self.machines, machine.id.lower(): machine})

    def without_machine(self, machine_id: str) -> PoolState:
        gone = machine_id.lower()
        return replace(self, machines={key: each for key, each in self.machines.items() if key != gone})

    def with_operation(self, operation: PoolOperation) -> PoolState:
        """Adds or replaces an operation. The oldest ended ones are dropped."""
        known = {**self.operations, operation.id: operation}
        ended = [key for key, each in known.items() if each.status != "InProgress"]
        dropped = set(ended[: max(0, len(ended) - KEPT_OPERATIONS)])
        return replace(self, operations={key: each for key, each in known.items() if key not in dropped})


class PoolTimings(Struct, frozen=True):
    """The times of the lab's AKS, in seconds. Tests shorten them."""

    operation_seconds: float = 0.5  # duration of a PUT
    retry_after: int = 1  # Retry-After of an operation in progress
    token_seconds: int = 3600  # lifetime of a bootstrap token
    ready_seconds: float = 600.0  # until a deleted Node must be back and Ready on the new version
    drain_seconds: float = 0.0  # time limit for a drain; 0: drainTimeoutInMinutes of the pool
    poll_seconds: float = 1.0  # between two looks at a Node
    cleanup_seconds: float = 5.0  # between two looks at the Nodes of deleted Machines
    reconcile_nodes: bool = True  # whether a Machine's labels and taints are also written to its Node


class FlexPoolStore:
    def __init__(self, state: Path) -> None:
        self._file = state / "flexPools.json"
        self._timings = state / "flexPoolTimings.json"

    def read(self) -> PoolState:
        return msgspec.json.decode(self._file.read_bytes(), type=PoolState) if self._file.exists() else PoolState()

    def update(self, change: Callable[[PoolState], PoolState]) -> PoolState:
        """Stores the changed state and returns it. If `change` raises an exception, nothing is stored."""
        with file_lock(self._file.with_suffix(".lock"), "the lab's node pools", wait=True):
            changed = change(self.read())
            write_atomically(self._file, msgspec.json.encode(changed), 0o600)
        return changed

    @property
    def timings(self) -> PoolTimings:
        if not self._timings.exists():
            return PoolTimings()
        return msgspec.json.decode(self._timings.read_bytes(), type=PoolTimings)

    def set_timings(self, timings: PoolTimings) -> None:
        write_atomically(self._timings, msgspec.json.encode(timings))


def new_operation(kind: OperationKind, target: str, machines: tuple[str, ...] = ()) -> PoolOperation:
    return PoolOperation(id=str(uuid.uuid4()), kind=kind, target=target, machines=machines, started=time.time())


def new_etag() -> str:
    return str(uuid.uuid4())
