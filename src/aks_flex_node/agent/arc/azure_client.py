"""The Azure side of an Arc registration: clients as the operator and as the machine, the machine resource, and the
role assignments of its identity on the cluster.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.identity import azure_sign_in
from aks_flex_node.agent.identity.cloud_endpoints import resource_manager
from aks_flex_node.agent.reconcile.program_stager import artifact_sources
from aks_flex_node.azure import role_assignments
from aks_flex_node.azure.roles import NETWORK_CONTRIBUTOR, READER, AzureRole
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_node.settings.base import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from aks_flex_node.agent.arc.registration_state import ArcRecordStore
    from aks_flex_node.azure.arm import ArmClient
    from aks_flex_node.retry import RetryDeadline
    from aks_flex_node.settings.models import NodeConfig

Document = dict[str, Any]


ARC_API_VERSION = "2024-07-10"
NETWORK_API_VERSION = "2024-05-01"


class ArcCloud:
    """Azure, for the operator and for this machine."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config

    def operator(self) -> AbstractContextManager[ArmClient]:
        """Returns an Azure Resource Manager client with the operator's credentials."""
        return azure_sign_in.open_arm(self._config, operator=True)

    def machine(self) -> AbstractContextManager[ArmClient]:
        """Returns an Azure Resource Manager client with the machine's managed identity."""
        return azure_sign_in.open_arm(with_arc_identity(self._config))

    def token(self) -> str:
        """Returns the operator's token for Azure Resource Manager."""
        scope = f"{resource_manager(self._config)}/.default"
        return azure_sign_in.sign_in(self._config, scope, operator=True).value

    def text(self, url: str) -> str:
        """Downloads a small public text file."""
        from aks_flex_node.agent.artifacts.download import fetch_text
        from aks_flex_node.agent.http.client import HttpClient
        from aks_flex_node.retry import Retrier

        options = artifact_sources(self._config)
        with contextlib.closing(HttpClient(options)) as network:
            return fetch_text(network, options.resolve(url), Retrier(options.attempts))


def with_arc_identity(config: NodeConfig) -> NodeConfig:
    """Returns the configuration with Arc enabled. `arc register` can run on a node that uses another identity."""
    azure = config.azure
    return replace(config, azure=replace(azure, arc=replace(azure.arc, enabled=True)))


def principal_of(machine: Document) -> str:
    """Returns the object ID of the machine's identity. A machine recreated with the same name has a different one."""
    return str((machine.get("identity") or {}).get("principalId") or "")


class MachineRoles:
    """The roles of the machine's identity on the cluster, and on its VPN gateway."""

    def __init__(
        self,
        records: ArcRecordStore,
        note: Callable[[str], None],
        deadline: RetryDeadline,
        roles: Sequence[AzureRole] = (),
    ) -> None:
        self._records, self._note, self._deadline, self._roles = records, note, deadline, tuple(roles)

    def assign(self, arm: ArmClient, cluster: str, principal: str) -> None:
        """Assigns the roles on the cluster. Removes others that an earlier run assigned there."""
        for role in self._roles:
            self.assign_one(arm, cluster, role, principal)
        # Resource IDs ignore case.
        desired = {role_assignments.assignment_id(cluster, role, principal).lower() for role in self._roles}
        prefix = f"{cluster}/{role_assignments.ASSIGNMENT_TYPE}/".lower()
        for each in self._records.current.assignments:
            if each.lower().startswith(prefix) and each.lower() not in desired:
                arm.delete(each, role_assignments.ROLE_API_VERSION)
                left = tuple(one for one in self._records.current.assignments if one != each)
                self._records.update(assignments=left)

    def assign_one(self, arm: ArmClient, scope: str, role: AzureRole, principal: str) -> None:
        made, ours = role_assignments.assignment_id(scope, role, principal), self._records.current.assignments
        ours = tuple(each for each in ours if each == made or each.lower() != made.lower())  # in another spelling
        if made not in ours:
            self._records.update(assignments=(*ours, made))
        self._note(f"assigning the role {role.name} to the machine")
        if not role_assignments.assign(arm, scope, role, principal, self._deadline, self._note):
            self._records.update(assignments=tuple(each for each in ours if each != made))

    def wait(self, arm: ArmClient, cluster: str) -> None:
        """Waits until the role assignments are effective for the machine. In Azure this can take minutes."""
        while True:
            lacking, error = self._lacking(arm, cluster)
            if not lacking:
                return
            names = ", ".join(role.name for role in lacking)
            if not self._deadline.pause():
                last = f" The last error was: {error.message}" if error else ""
                raise FlexError(
                    "role-assignments-not-effective",
                    f"The role assignments of the machine's identity on {cluster} are not effective after "
                    f"{self._deadline.seconds:.0f} s: {names}.{last}",
                    "Run the same command again to continue waiting. Run `az role assignment list --scope "
                    f"{cluster}` to check whether the role assignments exist. Set `azure.arc.waitSeconds` to wait "
                    "longer.",
                    retryable=True,
                ) from error
            cause = f"; checking as the machine failed: {error.message}" if error else ""
            self._note(
                f"waiting for the role assignments to take effect: {names} ({self._deadline.waited:.0f} s){cause}"
            )

    def check(self, arm: ArmClient, cluster: str, principal: str) -> bool:
        """Returns whether the machine has all roles. Reports the commands that assign the missing ones."""
        lacking, error = self._lacking(arm, cluster)
        if error:
            self._note(f"cannot check the roles of the machine on {cluster} yet: {error.message}")
        elif lacking:
            self._note(f"the machine's identity lacks roles on {cluster}; a user who can assign roles must run:")
            for role in lacking:
                self._note(f"  {role_assignments.assignment_command(cluster, role, principal)}")
        return not lacking

    def _lacking(self, arm: ArmClient, cluster: str) -> tuple[list[AzureRole], FlexError | None]:
        """Returns the missing roles. Entra does not know a new identity for a while, so errors are not final."""
        try:
            return role_assignments.missing_roles(arm, cluster, self._roles), None
        except ConfigError:
            raise
        except FlexError as error:
            return list(self._roles), error


def gateway_grants(document: Document, gateway: str, network: str) -> list[tuple[str, AzureRole]]:
    """Returns the roles that adding a root certificate to a gateway requires. Azure checks a change of the gateway
    also on its subnet and its public address.
    """
    parts = [gateway]
    for each in (document.get("properties") or {}).get("ipConfigurations") or ():
        properties = each.get("properties") or {}
        parts += [str((properties.get(key) or {}).get("id") or "") for key in ("subnet", "publicIPAddress")]
    grants = [(scope, NETWORK_CONTRIBUTOR) for scope in dict.fromkeys(parts) if scope]
    return [*grants, *([(network, READER)] if network else [])]
