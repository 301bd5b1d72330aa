"""The VPN gateway in Azure: finds or creates it, and adds this machine's root certificate.

Settings of other users of the gateway are not changed.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.vpn import gateway_spec
from aks_flex_node.agent.vpn.client_certificate import ClientCertificate, same_certificate
from aks_flex_node.agent.vpn.virtual_network import GATEWAY_SUBNET, NETWORK_API, VirtualNetwork
from aks_flex_node.azure.arm import ArmClient, AzureCallError
from aks_flex_node.azure.operations import (
    AzureOperation,
    NoteProgress,
    OperationTimeout,
    provisioning_state,
    started_operation,
    wait_for_operation,
)
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.vpn.local_state import VpnRecordStore
    from aks_flex_node.settings.models import NodeConfig

Document = dict[str, Any]
MAX_ROOT_CERTIFICATES = 20  # limit of Azure
ATTEMPTS = 10  # when another client changes the gateway at the same time
CONFLICT_PAUSE_SECONDS = 2.0


@frozen
class VpnGateway:
    id: str
    arm: ArmClient
    records: VpnRecordStore
    timeout: OperationTimeout
    note: NoteProgress

    def read(self) -> Document | None:
        """Returns the gateway after any Azure operation on it has finished, or None if it does not exist."""
        return self.wait_until_settled(self.id, "the VPN gateway")

    def add_root_certificate(self, pair: ClientCertificate) -> None:
        """Adds this machine's root certificate to the gateway."""

        def add(document: Document) -> bool:
            roots = gateway_spec.root_certificates(document)
            if any(
                each["name"] == pair.name and same_certificate(gateway_spec.certificate_data(each), pair.root)
                for each in roots
            ):
                return False
            others = [each for each in roots if each["name"] != pair.name]
            if len(others) >= MAX_ROOT_CERTIFICATES:
                raise ConfigError(
                    "vpn-gateway-full",
                    f"The VPN gateway {self.id} has {MAX_ROOT_CERTIFICATES} root certificates, which is the limit "
                    "of Azure.",
                    "Remove the certificates of unused machines with `az network vnet-gateway root-cert list` and "
                    "`az network vnet-gateway root-cert delete`.",
                )
            gateway_spec.set_root_certificates(document, [*others, gateway_spec.root_certificate(pair)])
            return True

        self.record_root(pair)
        self.change(add, "this machine's root certificate")

    def record_root(self, pair: ClientCertificate) -> None:
        """Records that this machine's root certificate is, or may be, on the gateway."""
        self.records.update(roots=tuple(dict.fromkeys((*self.records.current.roots, pair.name))))

    def remove_roots(self, names: tuple[str, ...]) -> None:
        def drop(document: Document) -> bool:
            roots = gateway_spec.root_certificates(document)
            remaining = [each for each in roots if each["name"] not in names]
            gateway_spec.set_root_certificates(document, remaining)
            return len(remaining) < len(roots)

        if names:
            self.change(drop, "root certificates that are no longer used")

    def change(self, edit: Callable[[Document], bool], what: str) -> None:
        """Edits the gateway. Uses its ETag and retries if another client changed it in the meantime."""
        for _ in range(ATTEMPTS):
            found = self.read()
            if found is None:
                return
            document = copy.deepcopy(found)
            if not edit(document):
                return
            try:
                self.put(self.id, document, what, str(found.get("etag", "")))
            except AzureCallError as error:
                if not is_busy(error):
                    raise
                self.timeout.sleep(CONFLICT_PAUSE_SECONDS)
                continue
            return
        raise FlexError(
            "vpn-gateway-busy",
            f"Could not change {what} on the VPN gateway {self.id}, because other clients keep changing it.",
            "Run the same command again in a few minutes.",
            retryable=True,
        )

    def put(self, resource: str, document: Document, what: str, etag: str = "") -> Document:
        """Creates or changes a resource and waits for the operation, which is recorded until it has finished."""
        body = {key: value for key, value in document.items() if key != "etag"}
        reply = self.arm.send("PUT", resource, NETWORK_API, body, {"If-Match": etag} if etag else {})
        return self._finished(started_operation(reply, what, resource, NETWORK_API, self.timeout.now()))

    def remove(self, resource: str, what: str) -> None:
        """Deletes a resource and waits until it is deleted."""
        try:
            reply = self.arm.send("DELETE", resource, NETWORK_API)
            self._finished(
                started_operation(reply, f"the removal of {what}", resource, NETWORK_API, self.timeout.now())
            )
        except AzureCallError as error:
            if error.status != 404:
                raise
            self.records.update(operation=None)
        self.records.update(made=tuple(each for each in self.records.current.made if each != resource))

    def _finished(self, operation: AzureOperation) -> Document:
        self.records.update(operation=operation)
        try:
            done = wait_for_operation(self.arm, operation, self.timeout, self.note)
        except AzureCallError as error:
            if not error.retryable:
                self.records.update(operation=None)  # the operation has ended
            raise
        self.records.update(operation=None)
        return done if isinstance(done, dict) else {}

    def wait_until_settled(self, resource: str, what: str) -> Document | None:
        """Returns a resource after any Azure operation on it has finished, or None if it does not exist."""
        found, recorded = self.arm.find(resource, NETWORK_API), self.records.current.operation
        ours = recorded if recorded and recorded.resource == resource else None
        if found is None or provisioning_state(found).lower() in {"succeeded", "failed", "canceled"}:
            if ours:
                self.records.update(operation=None)  # ended while the agent was not running
            return found
        return self._finished(ours or AzureOperation(what, resource, NETWORK_API, began=self.timeout.now()))


@frozen
class GatewayProvisioner:
    """Creates a gateway, or checks that an existing one is suitable."""

    gateway: VpnGateway
    config: NodeConfig
    network: VirtualNetwork

    def ensure(self, pair: ClientCertificate, *, make: bool, adopt: bool) -> None:
        found = self.gateway.read()
        if found is None:
            self._make(pair, allowed=make)
        elif provisioning_state(found).lower() != "succeeded":
            if self.gateway.id not in self.gateway.records.current.made:
                raise ConfigError(
                    "vpn-gateway-failed",
                    f"The VPN gateway {self.gateway.id} is in state {provisioning_state(found)}.",
                    "Repair it first: `az network vnet-gateway update` repeats its last change.",
                )
            etag = str(found.get("etag", ""))
            self.gateway.put(self.gateway.id, self._document(pair), "the VPN gateway again", etag)
        elif differences := gateway_spec.differences(found, self.config):
            if not adopt:
                raise ConfigError(
                    "vpn-gateway-settings-mismatch",
                    f"The settings of the VPN gateway {self.gateway.id} differ from this configuration: "
                    f"{'; '.join(differences)}. Nothing was changed.",
                    "Change the configuration, or run `aks-flex-node bootstrap-vpn --adopt` to change the gateway. "
                    "This may disconnect other users.",
                )
            self.gateway.note(f"changing the VPN gateway: {'; '.join(differences)}")
            self.gateway.change(
                lambda document: gateway_spec.adopt(document, self.config), "the settings of the VPN gateway"
            )
        self.gateway.add_root_certificate(pair)

    def _make(self, pair: ClientCertificate, *, allowed: bool) -> None:
        if other := self.network.gateway_in_use:
            name = other.rpartition("/")[2]
            raise ConfigError(
                "vpn-gateway-name-mismatch",
                f"{self.network.id} already has a VPN gateway with the name {name}.",
                f"A network can have only one. To use it, set `azure.vpn.gatewayName` to {name}.",
            )
        if not allowed:
            raise ConfigError(
                "vpn-gateway-not-found",
                f"The VPN gateway {self.gateway.id} was not found.",
                "Set `azure.vpn.gatewayName` to an existing gateway, or run `aks-flex-node bootstrap-vpn "
                "--auto-provision` to create it. This takes 30 to 45 min, and Azure charges for the gateway by the "
                "hour.",
            )
        body = self._document(pair)
        self.gateway.record_root(pair)
        self._create_if_missing(self.gateway.id, body, "the VPN gateway, which takes 30 to 45 min in Azure")

    def _document(self, pair: ClientCertificate) -> Document:
        """Returns the document of the gateway. Creates its subnet and its public address if they are missing."""
        location, subnet, address = self.network.location, self._subnet(), self._address()
        return gateway_spec.gateway_document(self.config, location, subnet, address, pair)

    def _subnet(self) -> str:
        path = f"{self.network.id}/subnets/{GATEWAY_SUBNET}"
        if GATEWAY_SUBNET not in self.network.subnets:
            body = {"properties": {"addressPrefix": gateway_spec.subnet_range(self.config, self.network)}}
            self._create_if_missing(path, body, "the gateway's subnet")
        return path

    def _address(self) -> str:
        name = f"{self.config.azure.vpn.gateway_name}-address"
        path = f"{self.network.group}/providers/Microsoft.Network/publicIPAddresses/{name}"
        self._create_if_missing(
            path,
            gateway_spec.public_address_document(self.config, self.network.location),
            "the gateway's public address",
        )
        return path

    def _create_if_missing(self, resource: str, body: Document, what: str) -> None:
        """Creates a resource if it does not exist. Before that, records that the agent may have created it.

        An existing resource of another owner is used as it is, even if its provisioning failed.
        """
        for left in reversed(range(ATTEMPTS)):
            found, ours = (
                self.gateway.wait_until_settled(resource, what),
                resource in self.gateway.records.current.made,
            )
            if found is not None and not (ours and provisioning_state(found).lower() == "failed"):
                return
            self.gateway.records.update(made=tuple(dict.fromkeys((*self.gateway.records.current.made, resource))))
            try:
                self.gateway.put(resource, body, what)
            except AzureCallError as error:
                if not (left and is_busy(error)):
                    raise
                self.gateway.timeout.sleep(
                    CONFLICT_PAUSE_SECONDS
                )  # another client is creating the same or a related resource
                continue
            return


def is_busy(error: AzureCallError) -> bool:
    """Returns whether another operation is in progress or changed the resource, so that a retry can succeed."""
    return error.status in {409, 412} or error.code in {"AnotherOperationInProgress", "RetryableError"}
