"""Registers the machine with Azure Arc: installs and connects azcmagent, assigns roles on the cluster and waits
for them. Unregistration removes role assignments, the machine resource and the package, in this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.arc import machine_agent
from aks_flex_node.agent.arc.azure_client import (
    ARC_API_VERSION,
    NETWORK_API_VERSION,
    ArcCloud,
    MachineRoles,
    gateway_grants,
    principal_of,
)
from aks_flex_node.agent.arc.machine_agent import Azcmagent
from aks_flex_node.agent.arc.packages import AzcmagentPackage, azcmagent_missing_error
from aks_flex_node.agent.arc.registration_state import (
    ArcMachineSpec,
    ArcRecord,
    ArcRecordStore,
    cluster_roles,
    desired_machine,
    same_id,
)
from aks_flex_node.agent.identity.cloud_endpoints import proxy_options, resource_manager
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.role_assignments import ROLE_API_VERSION, assignment_id
from aks_flex_node.errors import FlexError, MachineError
from aks_flex_node.host.actions import StartUnit
from aks_flex_node.retry import RetryDeadline

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.azure.arm import ArmClient

READ_BACK_SECONDS = 60.0  # until Azure shows a machine that has just connected


class ArcRegistration:
    """Registers and unregisters this machine. Tests pass `cloud` and `deadline` to replace Azure and the clock."""

    def __init__(
        self,
        engine: Engine,
        note: Callable[[str], None],
        cloud: ArcCloud | None = None,
        deadline: Callable[[float], RetryDeadline] = RetryDeadline,
    ) -> None:
        self.engine, self.host, self.config = engine, engine.host, engine.config
        self._note = note
        self._cloud = cloud or ArcCloud(self.config)
        self._deadline = deadline
        self._records = ArcRecordStore(self.host, self.config)
        self._packages = AzcmagentPackage(self.host, self.config, self._cloud.text)

    def run(self, *, verify_again: bool = False) -> None:
        """Completes the registration. Steps that were verified before are not checked in Azure again, unless
        `verify_again`.
        """
        want = desired_machine(self.config, self.engine.machine)
        self._clean_up()
        self._connect(self._install(), want)
        if self._is_settled(want) and not verify_again:
            return
        with self._cloud.operator() as arm:
            machine = self._read_back(arm, want)
            # Other tags are not changed.
            tags = machine.get("tags") or {}
            if any(tags.get(key) != value for key, value in want.tags.items()):
                arm.patch(want.id, ARC_API_VERSION, {"tags": {**tags, **want.tags}})
            there = str(machine.get("location") or "")
            if there and there.replace(" ", "").lower() != want.location.replace(" ", "").lower():
                self._note(f"the machine resource remains in {there}: Azure cannot move it to {want.location}")
            roles = self._roles()
            if want.assign:
                roles.assign(arm, want.cluster, str(machine["identity"]["principalId"]))
        self._start_metadata_service()
        if self._have_roles(want, roles):
            self._records.update(settled=want.fingerprint)
            self.engine.events.emit("arc-registered", f"{want.name} is registered with Azure Arc", machine=want.id)

    def _is_settled(self, want: ArcMachineSpec) -> bool:
        """Returns whether the registration was verified, with all roles that the configuration requires now."""
        record = self._records.current
        if record.settled != want.fingerprint:
            return False
        if not (want.assign and record.principal):
            return True
        known = {each.lower() for each in record.assignments}
        required = (assignment_id(want.cluster, role, record.principal) for role in cluster_roles(self.config))
        return all(each.lower() in known for each in required)

    def _roles(self) -> MachineRoles:
        deadline = self._deadline(self.config.azure.arc.wait_seconds)
        return MachineRoles(self._records, self._note, deadline, cluster_roles(self.config))

    def grant_gateway(self, gateway: str, network: str) -> None:
        """Assigns the roles with which the machine renews its VPN certificate, on the gateway, its subnet and its
        public address, once. If the operator cannot assign roles there, the commands are reported.
        """
        record = self._records.current
        if not record.principal or same_id(record.gateway, gateway):
            return
        try:
            with self._cloud.operator() as arm:
                roles = self._roles()
                for scope, role in gateway_grants(arm.get(gateway, NETWORK_API_VERSION), gateway, network):
                    roles.assign_one(arm, scope, role, record.principal)
        except FlexError as error:
            if error.name != "role-assignment-forbidden" and not isinstance(error, AzureCallError):
                raise
            self._note(f"the machine cannot renew its VPN certificate itself: {error.message} {error.hint}")
            return
        self._records.update(gateway=gateway)

    def _clean_up(self) -> None:
        machine_agent.remove_settings_file(self.host)
        self._packages.clean_up()

    def _install(self) -> Azcmagent:
        """Returns the installed azcmagent, or installs it."""
        found, record = machine_agent.find_azcmagent(self.host), self._records.current
        if found and not (record.installed and not self._packages.is_installed):
            return Azcmagent(self.host, found)
        if not self.config.azure.arc.package.install:
            raise azcmagent_missing_error("azure.arc.package.install is false")
        if not record.installed:
            self._records.update(installed=True, found=self._packages.preexisting())
        self._note("installing azcmagent")
        try:
            self._packages.install()
        except FlexError:
            if not record.installed and not self._packages.is_in_dpkg:
                # If an administrator installs it now, unbootstrap must not remove it.
                self._records.update(installed=False, found=())
            raise
        found = machine_agent.find_azcmagent(self.host)
        if found is None:
            raise azcmagent_missing_error("its package does not contain it")
        return Azcmagent(self.host, found)

    def _connect(self, azcmagent: Azcmagent, want: ArcMachineSpec) -> None:
        shown, record = azcmagent.status(), self._records.current
        if shown.is_registered and not same_id(shown.id, want.id):
            raise MachineError(
                "arc-connected-elsewhere",
                f"This machine is already connected to Azure Arc as {shown.id}, not as {want.id}. Nothing was "
                "changed.",
                "Set `azure.subscriptionId`, `azure.arc.resourceGroup` and `azure.arc.machineName` to match the "
                "existing connection, or disconnect it first with `azcmagent disconnect`.",
            )
        if shown.is_registered and shown.status == "Expired":
            if not record.connected:
                raise MachineError(
                    "arc-expired",
                    f"The connection of {want.id} to Azure Arc has expired: the machine was offline for too long.",
                    "The agent did not create this connection and does not change it. Run `azcmagent disconnect "
                    "--force-local-only`, delete the machine in Azure, then run the same command again.",
                )
            self._drop_expired_connection(azcmagent, want)
        elif shown.is_registered:
            self._records.update(machine=want.id)
            return
        made = self._is_new(want)
        self._records.update(machine=want.id, connected=True, made=made, principal="", settled="")
        self._configure_proxy(azcmagent)
        self._note(f"connecting to Azure Arc as {want.name}")
        azcmagent.connect(want, self._cloud.token())

    def _configure_proxy(self, azcmagent: Azcmagent) -> None:
        """Sets the proxy of an azcmagent that the agent installed. A proxy URL with a password is skipped: azcmagent
        takes it only as an argument, which other users can read.
        """
        proxy = proxy_options(self.config).proxy_for(resource_manager(self.config))
        if proxy is None or not self._records.current.installed:
            return
        if "@" in proxy:
            self._note(
                "the proxy URL contains a password: set it for azcmagent with `azcmagent config set proxy.url`"
            )
        else:
            azcmagent.use_proxy(proxy)

    def _is_new(self, want: ArcMachineSpec) -> bool:
        """Returns whether the machine does not exist in Azure, or was created by an interrupted run of the agent."""
        record = self._records.current
        if record.made and same_id(record.machine, want.id):
            return True
        with self._cloud.operator() as arm:
            return arm.find(want.id, ARC_API_VERSION) is None

    def _drop_expired_connection(self, azcmagent: Azcmagent, want: ArcMachineSpec) -> None:
        """Removes a connection whose identity has expired. Azure cannot recreate a machine under an existing name, so
        the machine resource is deleted first, unless it now belongs to another machine.
        """
        own = self._records.current.principal
        with self._cloud.operator() as arm:
            found = arm.find(want.id, ARC_API_VERSION)
            if found is not None and own and same_id(principal_of(found), own):
                arm.delete(want.id, ARC_API_VERSION)
        azcmagent.disconnect_locally()

    def _read_back(self, arm: ArmClient, want: ArcMachineSpec) -> dict[str, Any]:
        """Returns the machine resource with its identity. Waits until Azure shows it."""
        deadline = self._deadline(READ_BACK_SECONDS)
        while True:
            try:
                machine = arm.find(want.id, ARC_API_VERSION)
            except AzureCallError as error:
                if not (error.retryable and deadline.pause()):
                    raise
                continue
            if machine and (principal := principal_of(machine)):
                self._records.update(principal=principal)
                return machine
            if not deadline.pause():
                raise machine_gone_error(want.id)

    def _start_metadata_service(self) -> None:
        """Starts HIMDS, which serves the tokens of the machine's identity."""
        unit = machine_agent.metadata_service(self.host)
        if unit is None or self.host.unit(unit).running:
            return
        try:
            self.host.apply(StartUnit(unit))
        except MachineError as error:
            raise MachineError(
                "himds-unavailable",
                f"{unit}, which serves the tokens of the machine's identity, does not run: {error.message}",
                f"Check `journalctl -u {unit} -n 50`, then run the same command again.",
                retryable=True,
            ) from error

    def _have_roles(self, want: ArcMachineSpec, roles: MachineRoles) -> bool:
        if not want.cluster:
            return True
        with self._cloud.machine() as arm:
            if want.assign:
                roles.wait(arm, want.cluster)
                return True
            return roles.check(arm, want.cluster, self._records.current.principal)

    def unregister(self) -> list[str]:
        """Removes what the agent created. Returns the commands that remove what is left in Azure. Everything on the
        machine is removed even if Azure cannot be reached.
        """
        self._clean_up()
        record = self._records.current
        left = [*self._take_roles(record), *self._disconnect(record)]
        if record.installed:
            self._note("removing azcmagent")
            self._packages.purge(record.found)
        self._records.remove()
        return left

    def _take_roles(self, record: ArcRecord) -> list[str]:
        if not record.assignments:
            return []
        self._note("removing the role assignments of the machine")
        try:
            with self._cloud.operator() as arm:
                for assignment in record.assignments:
                    arm.delete(assignment, ROLE_API_VERSION)
        except FlexError as error:
            self._note(f"could not remove the role assignments: {error.message}")
            return [f"az role assignment delete --ids {each}" for each in record.assignments]
        return []

    def _disconnect(self, record: ArcRecord) -> list[str]:
        """Disconnects with azcmagent. If that fails, disconnects locally and deletes the machine resource."""
        if not record.connected:
            return []
        self._note("disconnecting from Azure Arc")
        found = machine_agent.find_azcmagent(self.host)
        azcmagent = Azcmagent(self.host, found) if found else None
        try:
            if azcmagent and same_id(azcmagent.status().id, record.machine):
                if self._is_replaced(record):
                    azcmagent.disconnect_locally()
                else:
                    azcmagent.disconnect(self._cloud.token())
                return []
        except FlexError as error:
            self._note(f"azcmagent could not disconnect: {error.message}")
            self._forget(azcmagent)
        return self._delete(record)

    def _is_replaced(self, record: ArcRecord) -> bool:
        """Returns whether another machine was registered under the same name. azcmagent deletes by name and would
        delete it.
        """
        with self._cloud.operator() as arm:
            found = arm.find(record.machine, ARC_API_VERSION)
        return found is not None and self._is_anothers(found, record)

    def _is_anothers(self, machine: dict[str, Any], record: ArcRecord) -> bool:
        other = bool(record.principal) and not same_id(principal_of(machine), record.principal)
        if other:
            self._note(
                f"{record.machine} now belongs to another machine (it has a different identity) and is not deleted"
            )
        return other

    def _forget(self, azcmagent: Azcmagent | None) -> None:
        try:
            if azcmagent:
                azcmagent.disconnect_locally()
        except FlexError as error:
            self._note(f"azcmagent could not disconnect locally either: {error.message}")

    def _delete(self, record: ArcRecord) -> list[str]:
        """Deletes the machine resource, unless it belongs to another machine."""
        if not (record.made or record.principal):
            return []
        command = f"az resource delete --ids {record.machine}"
        try:
            with self._cloud.operator() as arm:
                found = arm.find(record.machine, ARC_API_VERSION)
                if found is None or self._is_anothers(found, record):
                    return []
                if not record.principal:  # the machine with this name may be another one
                    return [f"{command}  # only if no other machine is connected under this name"]
                arm.delete(record.machine, ARC_API_VERSION)
        except FlexError:
            return [command]
        return []


def machine_gone_error(machine: str) -> FlexError:
    return FlexError(
        "arc-machine-not-found",
        f"azcmagent reports that this machine is connected, but {machine} does not exist in Azure or has no "
        "identity.",
        "If the machine was deleted in Azure, run `azcmagent disconnect --force-local-only`, then run the same "
        "command again.",
        retryable=True,
    )
