"""The Azure side of an Arc registration: clients as the operator and as the machine, the machine resource, and the
role assignments of its identity on the cluster.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.agent.config.base_model import replace
from aks_flex_node.agent.reconcile.program_stager import artifact_sources
from aks_flex_node.azure import role_assignments
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.role_assignments import NODE_ROLES, RolesClient
from aks_flex_node.errors import ConfigError, FlexError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from aks_flex_node.agent.arc.registration_state import ArcRecordStore
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.azure.role_assignments import AzureRole
    from aks_flex_node.retry import RetryDeadline


ARC_API_VERSION = "2024-07-10"


class ArcMachinesClient(RolesClient, Protocol):
    def patch(self, path: str, api_version: str, body: Any) -> dict[str, Any]: ...


class ArcCloud(Protocol):
    def operator(self) -> AbstractContextManager[ArcMachinesClient]:
        """Azure's resource manager as whoever registers machines."""
        ...

    def machine(self) -> AbstractContextManager[RolesClient]:
        """The same as this machine's own identity."""
        ...

    def token(self) -> str:
        """The operator's, for Azure's resource manager."""
        ...

    def text(self, url: str) -> str:
        """A small file that anybody may have."""
        ...


class AzureArcCloud:
    """Azure itself. Its libraries are imported when they are needed."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config

    def operator(self) -> AbstractContextManager[ArcMachinesClient]:
        from aks_flex_node.agent.identity import azure_sign_in

        return azure_sign_in.open_arm(self._config, operator=True)

    def machine(self) -> AbstractContextManager[RolesClient]:
        from aks_flex_node.agent.identity import azure_sign_in

        return azure_sign_in.open_arm(with_arc_identity(self._config))

    def token(self) -> str:
        from aks_flex_node.agent.identity import azure_sign_in
        from aks_flex_node.agent.identity.cloud_endpoints import resource_manager

        scope = f"{resource_manager(self._config)}/.default"
        return azure_sign_in.sign_in(self._config, scope, operator=True).value

    def text(self, url: str) -> str:
        from aks_flex_node.agent.artifacts.download import fetch_text
        from aks_flex_node.agent.http.client import HttpClient
        from aks_flex_node.retry import Retrier, RetryBackoff

        options = artifact_sources(self._config)
        with contextlib.closing(HttpClient(options)) as network:
            return fetch_text(
                network, options.resolve(url), Retrier(options.attempts, RetryBackoff(), threading.Event())
            )


def with_arc_identity(config: NodeConfig) -> NodeConfig:
    """The configuration of a node that is what Arc knows: `arc register` may be typed where another identity is the
    node's own."""
    azure = config.azure
    return replace(config, azure=replace(azure, arc=replace(azure.arc, enabled=True)))


def find_machine(arm: ArcMachinesClient, machine: str) -> dict[str, Any] | None:
    """The machine as Azure has it; None when it has none by that name."""
    try:
        return arm.get(machine, ARC_API_VERSION)
    except AzureCallError as error:
        if error.status != 404:
            raise
        return None


def principal_of(machine: dict[str, Any]) -> str:
    """The object id of a machine's identity. A machine that is made anew by the same name has another."""
    return str((machine.get("identity") or {}).get("principalId") or "")


class MachineRoles:
    def __init__(self, records: ArcRecordStore, note: Callable[[str], None], deadline: RetryDeadline) -> None:
        self._records, self._note, self._patience = records, note, deadline

    def assign(self, arm: RolesClient, cluster: str, principal: str) -> None:
        for role in NODE_ROLES:
            made, ours = role_assignments.assignment_id(cluster, role, principal), self._records.read().assignments
            if made not in ours:
                self._records.update(assignments=(*ours, made))
            self._note(f"giving the machine the role {role.name}")
            if not role_assignments.assign(arm, cluster, role, principal, self._patience, self._note):
                self._records.update(assignments=tuple(each for each in ours if each != made))

    def wait(self, arm: RolesClient, cluster: str) -> None:
        """Until the machine itself may do what the roles allow: Azure takes minutes for that, at times."""
        while True:
            lacking, error = self._lacking(arm, cluster)
            if not lacking:
                return
            names = ", ".join(role.name for role in lacking)
            if not self._patience.pause():
                raise roles_late_error(cluster, names, self._patience.seconds, error) from error
            cause = f"; it cannot be asked as the machine yet: {error.message}" if error else ""
            self._note(f"waiting until Azure puts into effect: {names} ({self._patience.waited:.0f} s){cause}")

    def check(self, arm: RolesClient, cluster: str, principal: str) -> bool:
        """Whether it has all of them; what is missing is for somebody else to give."""
        lacking, error = self._lacking(arm, cluster)
        if error:
            self._note(f"whether the machine has its roles on {cluster} cannot be seen yet: {error.message}")
        elif lacking:
            self._note(f"the machine's identity lacks roles on {cluster}; somebody who may give them runs:")
            for role in lacking:
                self._note(f"  {role_assignments.assignment_command(cluster, role, principal)}")
        return not lacking

    def _lacking(self, arm: RolesClient, cluster: str) -> tuple[list[AzureRole], FlexError | None]:
        """An identity that was just made is a stranger to Entra for a while, so no error is the last word."""
        try:
            return role_assignments.missing_roles(arm, cluster, NODE_ROLES), None
        except ConfigError:
            raise
        except FlexError as error:
            return list(NODE_ROLES), error


def roles_late_error(cluster: str, names: str, seconds: float, error: FlexError | None) -> FlexError:
    cause = f" The last answer was: {error.message}" if error else ""
    return FlexError(
        "role-assignments-not-effective",
        f"After {seconds:.0f} s the machine's identity still may not do on {cluster} what these roles allow: "
        f"{names}.{cause}",
        "Run the same command again: it goes on waiting. `az role assignment list --scope` with that id shows "
        "whether the roles are there; azure.arc.waitSeconds says how long to wait.",
        retryable=True,
    )
