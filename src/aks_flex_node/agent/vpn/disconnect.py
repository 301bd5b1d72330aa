"""Removes what belongs to this machine in Azure: its root certificate always, the gateway only on request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.vpn import gateway_spec
from aks_flex_node.agent.vpn.gateway import VpnGateway
from aks_flex_node.errors import ConfigError, FlexError

if TYPE_CHECKING:
    from aks_flex_node.agent.vpn.dependencies import VpnEnvironment
    from aks_flex_node.agent.vpn.local_state import VpnRecordStore
    from aks_flex_node.azure.arm import ArmClient
    from aks_flex_node.azure.operations import NoteProgress
    from aks_flex_node.settings.models import NodeConfig

DISCONNECT_SECONDS = 600.0  # removing a machine does not wait for an hour


def remove_from_gateways(
    records: VpnRecordStore, config: NodeConfig, environment: VpnEnvironment, note: NoteProgress
) -> list[str]:
    """Removes this machine's root certificates from the gateways. Returns the commands for those that failed."""
    record, left = records.current, list[str]()
    known = [*record.former, *((record.gateway, each) for each in record.roots)]
    gateways = {gateway: tuple(each for one, each in known if one == gateway) for gateway, _ in known if gateway}
    for gateway, names in gateways.items():
        note("removing this machine's certificate from the VPN gateway")
        try:
            with environment.operator_client(config) as arm:
                open_gateway(gateway, records, arm, environment, note).remove_roots(names)
        except FlexError as error:
            note(f"could not remove this machine's certificate from the VPN gateway: {error.message}")
            left += [manual_command(gateway, each) for each in names]
    if record.made:
        note(
            "these resources of the VPN are not deleted, and Azure continues to charge for them: "
            f"{', '.join(record.made)}"
        )
    records.remove()
    return left


def remove_from_former_gateways(
    records: VpnRecordStore, arm: ArmClient, environment: VpnEnvironment, note: NoteProgress
) -> None:
    """Removes this machine from gateways that it used before. Failures are reported, and retried when the machine is
    removed.
    """
    for gateway, name in records.current.former:
        try:
            open_gateway(gateway, records, arm, environment, note).remove_roots((name,))
        except FlexError as error:
            note(
                f"could not remove this machine's certificate from {gateway}: {error.message} Run: "
                f"{manual_command(gateway, name)}"
            )
            continue
        records.update(former=tuple(each for each in records.current.former if each != (gateway, name)))


def manual_command(gateway: str, root: str) -> str:
    group, name = gateway.split("/")[4], gateway.rpartition("/")[2]
    return f"az network vnet-gateway root-cert delete --resource-group {group} --gateway-name {name} --name {root}"


def open_gateway(
    gateway: str, records: VpnRecordStore, arm: ArmClient, environment: VpnEnvironment, note: NoteProgress
) -> VpnGateway:
    return VpnGateway(gateway, arm, records, replace(environment.operation_timeout, seconds=DISCONNECT_SECONDS), note)


def remove_gateway(
    records: VpnRecordStore, config: NodeConfig, environment: VpnEnvironment, note: NoteProgress
) -> None:
    """Deletes the VPN resources that this machine created, if no other machine uses them."""
    record = records.current
    if not record.made:
        raise ConfigError(
            "vpn-gateway-not-owned",
            f"The VPN gateway {record.gateway or 'of this machine'} was not created by this machine, so it is not "
            "deleted.",
            "Delete it on the machine that created it, or with `az network vnet-gateway delete`.",
        )
    with environment.operator_client(config) as arm:
        gateway = VpnGateway(record.gateway, arm, records, environment.operation_timeout, note)
        for made in record.made:
            _refuse_used(replace(gateway, id=made), (*record.roots, *(name for _, name in record.former)))
        for resource in reversed(record.made):
            gateway.remove(resource, resource.rpartition("/")[2])
    gone = set(record.made)
    records.update(
        roots=() if record.gateway in gone else record.roots,
        former=tuple(each for each in record.former if each[0] not in gone),
    )


def _refuse_used(gateway: VpnGateway, ours: tuple[str, ...]) -> None:
    """Raises ConfigError if other machines have root certificates on the gateway."""
    others = [
        each["name"] for each in gateway_spec.root_certificates(gateway.read() or {}) if each["name"] not in ours
    ]
    if others:
        raise ConfigError(
            "vpn-gateway-in-use",
            f"The VPN gateway {gateway.id} is used by other machines: {', '.join(others)}. It was not deleted.",
            "Remove the VPN of these machines first, then run the same command again.",
        )
