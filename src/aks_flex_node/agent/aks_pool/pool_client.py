"""Requests of short-lived commands about a flex node pool: bootstrap data, and the Machine of this node. Explains the
errors of Azure. The daemon has its own, smaller client.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, TypedDict

from aks_flex_node.agent.aks_pool.bootstrap_data import BootstrapData, data_invalid_error, parse_bootstrap_data
from aks_flex_node.agent.aks_pool.machine_document import (
    MachineSettings,
    PoolMachine,
    machine_body,
    machine_invalid_error,
    parse_machine,
)
from aks_flex_node.agent.aks_pool.pool_ids import API_VERSION, PoolId
from aks_flex_node.agent.config.remote import VERSION_TEXT
from aks_flex_node.azure.arm import ArmClient, ArmReply, AzureCallError
from aks_flex_node.azure.error_messages import parse_forbidden, role_assignment_command
from aks_flex_node.azure.operations import (
    AzureOperation,
    NoteProgress,
    OperationTimeout,
    provisioning_state,
    started_operation,
    wait_for_operation,
)
from aks_flex_node.azure.roles import FLEX_NODE_AGENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aks_flex_node.settings.models import NodeConfig

OPERATION_SECONDS = 900.0
CONTRIBUTOR_ROLE = "Azure Kubernetes Service Contributor Role"
PARENT_MISSING = frozenset({"SubscriptionNotFound", "ResourceGroupNotFound", "ParentResourceNotFound"})
WRONG_TENANT = "InvalidAuthenticationTokenTenant"


class AzureErrorFields(TypedDict):
    """What an explained error keeps of the error of Azure."""

    retryable: bool
    status: int
    code: str


class AksPoolClient:
    def __init__(self, arm: ArmClient, pool: PoolId, timeout: OperationTimeout | None = None) -> None:
        self._arm = arm
        self.pool = pool
        self._timeout = timeout or OperationTimeout(OPERATION_SECONDS)

    def bootstrap_data(self) -> BootstrapData:
        """Requests the pool's settings and a new bootstrap token."""
        with self._explained():
            reply = self._send("POST", f"{self.pool}/listBootstrapData", body={})
        return parse_bootstrap_data(reply, self.pool)

    def find_machine(self, name: str) -> PoolMachine | None:
        """Returns the Machine, or None if AKS responds that it does not exist."""
        try:
            with self._explained():
                machine = parse_machine(self._send("GET", self.pool.machine_id(name)))
        except AzureCallError as error:
            if error.name == "aks-pool-not-found" and error.code not in PARENT_MISSING:
                return None
            raise
        if machine.name.lower() != name.lower() or not VERSION_TEXT.fullmatch(machine.etag):
            raise machine_invalid_error("it has another name, or no valid eTag")
        return machine

    def put_machine(
        self, name: str, settings: MachineSettings, known: PoolMachine | None, owner: str
    ) -> tuple[PoolMachine, AzureOperation | None]:
        """Creates or updates the Machine, unless it has changed since it was read. Returns also the operation that
        AKS has started, if any.
        """
        headers = {"If-Match": quote_etag(known.etag)} if known else {"If-None-Match": "*"}
        path = self.pool.machine_id(name)
        with self._explained():
            reply = self._arm.send("PUT", path, API_VERSION, machine_body(settings, known, owner), headers)
            machine = parse_machine(_document(reply, self.pool))
        if not machine.is_unfinished:
            return machine, None
        return machine, started_operation(reply, f"Machine {name}", path, API_VERSION, time.time())

    def wait(self, name: str, operation: AzureOperation, note: NoteProgress) -> PoolMachine:
        """Waits until AKS has finished an operation, and returns the Machine."""
        try:
            with self._explained():
                wait_for_operation(self._arm, operation, self._timeout, note)
                document = self._send("GET", self.pool.machine_id(name))
        except AzureCallError as error:
            if error.name == "azure-operation-failed":
                raise registration_failed_error(self.pool, name, error.message.rstrip(".")) from None
            raise
        if provisioning_state(document).lower() == "failed":
            raise registration_failed_error(self.pool, name, parse_machine(document).error)
        return parse_machine(document)

    def delete_machine(self, name: str, note: NoteProgress) -> bool:
        """Deletes the Machine; returns False if it did not exist."""
        if self.find_machine(name) is None:
            return False
        path = f"{self.pool}/deleteMachines"
        with self._explained():
            reply = self._arm.send("POST", path, API_VERSION, {"machineNames": [name]})
            if reply.status == 202:
                operation = started_operation(reply, f"Machine {name}", path, API_VERSION, time.time())
                wait_for_operation(self._arm, operation, self._timeout, note)
        return True

    def _send(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return _document(self._arm.send(method, path, API_VERSION, body), self.pool)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except AzureCallError as error:
            raise explain_pool_error(error, self.pool) from error


@contextlib.contextmanager
def open_pool(config: NodeConfig, pool: PoolId, *, operator: bool = False) -> Iterator[AksPoolClient]:
    """Opens a client as this node or as its operator."""
    from aks_flex_node.agent.identity.azure_sign_in import open_arm

    with open_arm(config, operator=operator) as arm:
        yield AksPoolClient(arm, pool)


def quote_etag(etag: str) -> str:
    """Returns an eTag as the value of a header. One that Azure has quoted or marked as weak is sent as it is."""
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'


def _document(reply: ArmReply, pool: PoolId) -> dict[str, Any]:
    if not isinstance(reply.body, dict):
        raise data_invalid_error(pool, "it is not a JSON object")
    return reply.body


def explain_pool_error(error: AzureCallError, pool: PoolId) -> AzureCallError:
    """Returns an error that says what is wrong with the pool or with the caller's access to it."""
    explained: Mapping[int, Callable[[AzureCallError, PoolId], AzureCallError]] = {
        400: _request_invalid_error,
        401: _rejected_token_error,
        403: _role_missing_error,
        404: _not_found_error,
    }
    return explained[error.status](error, pool) if error.status in explained else error


def _request_invalid_error(error: AzureCallError, pool: PoolId) -> AzureCallError:
    return AzureCallError(
        "aks-pool-request-invalid",
        f"AKS refuses a request about {pool}: {error.message}",
        "If the message names a setting of the Machine, correct it: a name with `node.name`. Otherwise check "
        f"that it is a flex node pool: `az resource show --ids {pool} --query properties.type` must print FlexNodes. "
        "Create one with `az aks nodepool add --vm-set-type FlexNodes`.",
        **_origin(error),
    )


def _rejected_token_error(error: AzureCallError, pool: PoolId) -> AzureCallError:
    if error.code != WRONG_TENANT:
        return error
    return AzureCallError(
        "aks-pool-wrong-tenant",
        f"The identity belongs to another tenant than subscription {pool.subscription}: {error.message}",
        "Set `azure.tenantId` to the tenant of the subscription: `az account show --subscription "
        f"{pool.subscription} --query tenantId`. As a user, sign in with `az login --tenant TENANT`.",
        **_origin(error),
    )


def _role_missing_error(error: AzureCallError, pool: PoolId) -> AzureCallError:
    missing = parse_forbidden(error.message)
    who, action = (missing.who, missing.action) if missing else ("", "")
    deletes = action.lower().endswith("/deletemachines/action")
    role = CONTRIBUTOR_ROLE if deletes else FLEX_NODE_AGENT.name
    command = role_assignment_command(who, role, str(pool), missing.principal_type if missing else "")
    return AzureCallError(
        "aks-pool-role-missing",
        f"The identity {who or 'in use'} is not allowed to use {pool}: {error.message}",
        f"Check the ID with `az aks nodepool show {pool.az_options}`: Azure answers the same for a missing pool. "
        f"Then assign the role {role} at the pool: `{command}`. It takes effect after a few minutes.",
        **_origin(error),
    )


def _not_found_error(error: AzureCallError, pool: PoolId) -> AzureCallError:
    if error.code == "HTTP 404":  # not of ARM, whose errors have a code
        invalid = data_invalid_error(pool, "the status is 404, without an error of Azure Resource Manager")
        return AzureCallError(invalid.name, invalid.message, invalid.hint, retryable=True)
    return AzureCallError(
        "aks-pool-not-found",
        f"Azure does not find {pool}: {error.message}",
        f"Check the ID with `az aks nodepool list --subscription {pool.subscription} --resource-group {pool.group} "
        f"--cluster-name {pool.cluster} --query '[].id'`.",
        **_origin(error),
    )


def _origin(error: AzureCallError) -> AzureErrorFields:
    return {"retryable": error.retryable, "status": error.status, "code": error.code}


def registration_failed_error(pool: PoolId, name: str, cause: str) -> AzureCallError:
    return AzureCallError(
        "machine-registration-failed",
        f"AKS could not register Machine {name} in {pool}: {cause or 'no reason given'}.",
        f"Run `{pool.delete_machine_command(name)}`, then run the same command again.",
        retryable=False,
    )
