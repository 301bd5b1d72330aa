"""Unregisters the machine from Azure Arc: removes role assignments, the machine resource and the package, in this
order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.arc import machine_agent
from aks_flex_node.agent.arc.azure_client import ARC_API_VERSION, ArcCloud, principal_of
from aks_flex_node.agent.arc.machine_agent import Azcmagent
from aks_flex_node.agent.arc.registration_state import ArcRecord, ArcRecordStore, same_id
from aks_flex_node.azure import role_assignments
from aks_flex_node.errors import FlexError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.arc.packages import AzcmagentPackage
    from aks_flex_node.host.host import Host


@frozen
class ArcUnregistration:
    host: Host
    cloud: ArcCloud
    records: ArcRecordStore
    packages: AzcmagentPackage
    note: Callable[[str], None]

    def run(self) -> list[str]:
        """Removes what the agent created. Returns the commands that remove what is left in Azure. Everything on the
        machine is removed even if Azure cannot be reached.
        """
        record = self.records.current
        left = [*self._take_roles(record), *self._disconnect(record)]
        if record.installed:
            self.note("removing azcmagent")
            self.packages.purge(record.found)
        self.records.remove()
        return left

    def _take_roles(self, record: ArcRecord) -> list[str]:
        if not record.assignments:
            return []
        self.note("removing the role assignments of the machine")
        try:
            with self.cloud.operator() as arm:
                for assignment in record.assignments:
                    arm.delete(assignment, role_assignments.ROLE_API_VERSION)
        except FlexError as error:
            self.note(f"could not remove the role assignments: {error.message}")
            return [f"az role assignment delete --ids {each}" for each in record.assignments]
        return []

    def _disconnect(self, record: ArcRecord) -> list[str]:
        """Disconnects with azcmagent. If that fails, disconnects locally and deletes the machine resource."""
        if not record.connected:
            return []
        self.note("disconnecting from Azure Arc")
        found = machine_agent.find_azcmagent(self.host)
        azcmagent = Azcmagent(self.host, found) if found else None
        try:
            if azcmagent and same_id(azcmagent.status().id, record.machine):
                if self._is_replaced(record):
                    azcmagent.disconnect_locally()
                else:
                    azcmagent.disconnect(self.cloud.token())
                return []
        except FlexError as error:
            self.note(f"azcmagent could not disconnect: {error.message}")
            self._forget(azcmagent)
        return self._delete(record)

    def _is_replaced(self, record: ArcRecord) -> bool:
        """Returns whether another machine was registered under the same name. azcmagent deletes by name and would
        delete it.
        """
        with self.cloud.operator() as arm:
            found = arm.find(record.machine, ARC_API_VERSION)
        return found is not None and self._is_anothers(found, record)

    def _is_anothers(self, machine: dict[str, Any], record: ArcRecord) -> bool:
        other = bool(record.principal) and not same_id(principal_of(machine), record.principal)
        if other:
            self.note(
                f"{record.machine} now belongs to another machine (it has a different identity) and is not deleted"
            )
        return other

    def _forget(self, azcmagent: Azcmagent | None) -> None:
        try:
            if azcmagent:
                azcmagent.disconnect_locally()
        except FlexError as error:
            self.note(f"azcmagent could not disconnect locally either: {error.message}")

    def _delete(self, record: ArcRecord) -> list[str]:
        """Deletes the machine resource, unless it belongs to another machine."""
        if not (record.made or record.principal):
            return []
        command = f"az resource delete --ids {record.machine}"
        try:
            with self.cloud.operator() as arm:
                found = arm.find(record.machine, ARC_API_VERSION)
                if found is None or self._is_anothers(found, record):
                    return []
                if not record.principal:  # the machine with this name may be another one
                    return [f"{command}  # only if no other machine is connected under this name"]
                arm.delete(record.machine, ARC_API_VERSION)
        except FlexError:
            return [command]
        return []
