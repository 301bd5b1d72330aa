"""Registers this node as a Machine of its pool, and removes the Machine.

The join registers the Machine immediately before the kubelet starts: AKS then knows the Machine when its Node
appears, and everything else that can fail on this machine has already succeeded. The Machine is recorded before it is
created, so `unbootstrap` deletes it. A tag names the host that it belongs to, so a run after a crash adopts it, and
another host with the same name does not. AKS provisions it while the kubelet joins;
the join waits for that at its end.
"""

from __future__ import annotations

import time
from dataclasses import field, replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.aks_pool.machine_document import MachineSettings, PoolMachine, differs
from aks_flex_node.agent.machine import identify_machine
from aks_flex_node.agent.paths import MACHINE_RECORD
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.errors import FlexError, MachineError
from aks_flex_node.host.records import RecordFile
from aks_flex_node.lean_dataclass import dataclass, frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.aks_pool.pool_client import AksPoolClient
    from aks_flex_node.agent.aks_pool.pool_ids import PoolId
    from aks_flex_node.azure.operations import AzureOperation, NoteProgress
    from aks_flex_node.host.host import Host

BUSY_SECONDS = 300.0  # to wait for another operation of AKS on the pool, or for a new role assignment
BUSY_STATUSES = frozenset({409, 412})


@frozen
class MachineRecord:
    """The Machine of this node, as stored on this machine."""

    pool: str  # resource ID
    name: str
    etag: str = ""  # after the registration

    def is_for(self, pool: PoolId, name: str) -> bool:
        return (self.pool.lower(), self.name.lower()) == (str(pool).lower(), name.lower())


MACHINE_FILE = RecordFile(MACHINE_RECORD, MachineRecord)


def this_host(host: Host) -> str:
    """Returns the mark of this host on its Machine: a hash of its machine ID; empty if it has none."""
    machine = identify_machine(host, None)
    return machine.id if machine else ""


def belongs_to_another_host(host: Host, pool: PoolId, name: str, machine: PoolMachine) -> bool:
    """Returns whether a Machine belongs to another host.

    A Machine that was registered without a mark belongs to the host that runs it, or that has registered it. A record
    without an eTag does not prove that: the registration may have been refused.
    """
    if machine.owner:
        return machine.owner != this_host(host)
    record = MACHINE_FILE.read(host)
    is_registered = record is not None and record.is_for(pool, name) and record.etag != ""
    return machine.vm_state.lower() == "running" and not is_registered


def refuse_foreign_machine(host: Host, pool: PoolId, name: str, machine: PoolMachine | None) -> None:
    """Raises MachineError if the Machine belongs to another host."""
    if machine is None or not belongs_to_another_host(host, pool, name, machine):
        return
    raise MachineError(
        "machine-on-another-host",
        f"Machine {name} of {pool} belongs to another host. This machine has not registered it. Nothing was changed.",
        "Give this machine another name: set `node.name`. If the other host is gone, or if it is this one and was "
        f"installed again, run `{pool.delete_machine_command(name)}` first.",
    )


def refuse_other_record(host: Host, pool: PoolId, name: str) -> None:
    """Raises MachineError if this machine has registered another Machine, which would be left in its pool."""
    record = MACHINE_FILE.read(host)
    if record and not record.is_for(pool, name):
        raise MachineError(
            "machine-changed",
            f"This machine is registered as Machine {record.name} of {record.pool}, but the configuration is for "
            f"Machine {name} of {pool}. Nothing was changed.",
            "Use the pool and the name with which it was registered, or run `aks-flex-node unbootstrap` first.",
        )


@dataclass
class MachineRegistration:
    """Registers the node with the settings of its configuration."""

    connect: Callable[[], AksPoolClient]
    host: Host
    pool: PoolId
    name: str
    settings: MachineSettings
    note: NoteProgress
    known_etag: str = ""  # of the stored configuration
    node: str = ""  # the name of the Node
    wait_for_roles: bool = False  # a role of the identity was assigned moments ago
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _operation: AzureOperation | None = field(default=None, init=False)
    _requests: AksPoolClient | None = field(default=None, init=False)
    _put_etag: str = field(default="", init=False)

    @property
    def requests(self) -> AksPoolClient:
        if self._requests is None:
            self._requests = self.connect()
        return self._requests

    def start(self) -> None:
        """Creates, updates or adopts the Machine. Waits while AKS is busy with the pool."""
        end, pause = self.clock() + BUSY_SECONDS, 2.0
        while True:
            try:
                return self._register()
            except AzureCallError as error:
                busy = error.status in BUSY_STATUSES or (self.wait_for_roles and error.status == 403)
                pause = max(pause, error.retry_after)
                if not (busy or error.retryable) or self.clock() + pause > end:
                    raise
                self.note(f"the Machine is not registered yet, trying again: {error.message}")
            self.sleep(pause)
            pause = min(pause * 2, 30.0)

    def _register(self) -> None:
        machine = self.requests.find_machine(self.name)
        refuse_foreign_machine(self.host, self.pool, self.name, machine)
        record = MACHINE_FILE.read(self.host)
        is_known = record is not None and record.is_for(self.pool, self.name)
        own = record if record and is_known else MachineRecord(str(self.pool), self.name)
        etag = (self.known_etag or own.etag) if is_known else ""
        MACHINE_FILE.write(self.host, own)
        if machine and etag and machine.etag != etag:
            # Also if its settings are those of this run: others, for example of the kubelet, may have changed.
            self.note(f"Machine {self.name} has newer settings, which the daemon applies")
            MACHINE_FILE.write(self.host, replace(own, etag=etag))
            return
        if machine and machine.is_unfinished:
            raise AzureCallError(
                "machine-busy",
                f"AKS is still changing Machine {self.name} of {self.pool}.",
                "Run the same command again in a few minutes.",
                retryable=True,
            )
        owner = this_host(self.host)
        if machine and not machine.is_failed and machine.owner == owner and not differs(self.settings, machine):
            self.note(f"Machine {self.name} is registered")
            MACHINE_FILE.write(self.host, replace(own, etag=machine.etag))
            return
        self.note(f"{'updating' if machine else 'registering'} Machine {self.name}")
        machine, self._operation = self.requests.put_machine(self.name, self.settings, machine, owner)
        self._put_etag = machine.etag
        MACHINE_FILE.write(self.host, replace(own, etag=machine.etag))

    def finish(self) -> str:
        """Waits until AKS has provisioned the Machine; returns its eTag, the version of the node's settings."""
        if self._operation:
            machine = self.requests.wait(self.name, self._operation, self.note)
            if self.node and machine.node_name and machine.node_name.lower() != self.node.lower():
                self.note(
                    f"AKS expects Node {machine.node_name} for Machine {self.name}, but this node is {self.node}, so "
                    "AKS does not find it for an upgrade. Use one name, or set aks.upgradeTrigger to immediate"
                )
            # A change by others since the PUT is left to the daemon.
            is_own = not differs(self.settings, machine)
            etag = machine.etag if is_own else self._put_etag
            MACHINE_FILE.write(self.host, MachineRecord(str(self.pool), self.name, etag))
            self._operation = None
        record = MACHINE_FILE.read(self.host)
        return record.etag if record else ""


def delete_registered(
    pool: PoolId, name: str, attempts: list[tuple[str, Callable[[], bool]]], note: NoteProgress
) -> list[str]:
    """Deletes the Machine as the first identity that is allowed to; returns the command for an administrator if none
    is.
    """
    for who, delete in attempts:
        try:
            note(f"Machine {name} deleted from {pool}" if delete() else f"Machine {name} does not exist in {pool}")
        except FlexError as error:
            is_expected = error.name == "aks-pool-role-missing"
            cause = "it has no role for that" if is_expected else error.message
            note(f"Machine {name} was not deleted as {who}: {cause}")
            if error.name == "arm-unreachable":
                break  # also for others
            continue
        return []
    note(f"Machine {name} is left to an administrator")
    return [pool.delete_machine_command(name)]
