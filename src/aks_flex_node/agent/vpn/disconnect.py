"""Removes what belongs to this machine in Azure: its root certificate always, the gateway only on request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.vpn import gateway_spec
from aks_flex_node.agent.vpn.gateway import VpnGateway
from aks_flex_node.errors import ConfigError, FlexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.vpn.dependencies import VpnEnvironment
    from aks_flex_node.agent.vpn.local_state import VpnRecord, VpnRecordStore
    from aks_flex_node.azure.operations import OperationSender

    Note = Callable[[str], None]

DISCONNECT_SECONDS = 600.0  # a machine that is to be given back does not wait for an hour


def remove_from_gateways(
    book: VpnRecordStore, config: NodeConfig, environment: VpnEnvironment, note: Note
) -> list[str]:
    """Take our root certificates off the gateways; the commands that do it, where it could not be done."""
    record, left = book.current, list[str]()
    for gateway, names in _gateways_with_roots(record).items():
        note("taking this machine's certificate off the VPN gateway")
        try:
            with environment.operator_client(config) as sender:
                open_gateway(gateway, book, sender, environment, note).remove_roots(names)
        except FlexError as error:
            note(f"the VPN gateway still knows this machine: {error.message}")
            left += [manual_command(gateway, each) for each in names]
    if record.made:
        note(f"what was made for the VPN stays, and Azure goes on charging for it: {', '.join(record.made)}")
    book.remove()
    return left


def _gateways_with_roots(record: VpnRecord) -> dict[str, tuple[str, ...]]:
    """Gateways that know this machine, or may, with the names by which they do."""
    known = [*record.former, *((record.gateway, each) for each in record.roots)]
    return {gateway: tuple(each for one, each in known if one == gateway) for gateway, _ in known if gateway}


def remove_from_former_gateways(
    book: VpnRecordStore, sender: OperationSender, environment: VpnEnvironment, note: Note
) -> None:
    """Gateways that this machine used before it had another forget it. Whoever may not change them any more goes on
    nevertheless, and it is tried once more when the machine leaves."""
    for gateway, name in book.current.former:
        try:
            open_gateway(gateway, book, sender, environment, note).remove_roots((name,))
        except FlexError as error:
            note(f"{gateway} still knows this machine: {error.message} To mend it: {manual_command(gateway, name)}")
            continue
        book.update(former=tuple(each for each in book.current.former if each != (gateway, name)))


def manual_command(gateway: str, root: str) -> str:
    group, name = gateway.split("/")[4], gateway.rpartition("/")[2]
    return f"az network vnet-gateway root-cert delete --resource-group {group} --gateway-name {name} --name {root}"


def open_gateway(
    gateway: str, book: VpnRecordStore, sender: OperationSender, environment: VpnEnvironment, note: Note
) -> VpnGateway:
    return VpnGateway(gateway, sender, book, replace(environment.operation_timeout, seconds=DISCONNECT_SECONDS), note)


def remove_gateway(book: VpnRecordStore, config: NodeConfig, environment: VpnEnvironment, note: Note) -> None:
    """Take away what was made for the VPN, when it was made from here and nobody else uses it."""
    record = book.current
    if not record.made:
        raise ConfigError(
            "vpn-gateway-not-owned",
            f"The VPN gateway {record.gateway or 'of this machine'} was not made from here, so it stays.",
            "Remove it where it was made, or with `az network vnet-gateway delete`.",
        )
    with environment.operator_client(config) as sender:
        gateway = VpnGateway(record.gateway, sender, book, environment.operation_timeout, note)
        for made in record.made:
            _refuse_used(replace(gateway, id=made), (*record.roots, *(name for _, name in record.former)))
        for resource in reversed(record.made):
            gateway.remove(resource, resource.rpartition("/")[2])
    gone = set(record.made)
    book.update(
        roots=() if record.gateway in gone else record.roots,
        former=tuple(each for each in record.former if each[0] not in gone),
    )


def _refuse_used(gateway: VpnGateway, ours: tuple[str, ...]) -> None:
    """Nothing else of what is made for a VPN knows machines."""
    others = [
        each["name"] for each in gateway_spec.root_certificates(gateway.read() or {}) if each["name"] not in ours
    ]
    if others:
        raise ConfigError(
            "vpn-gateway-in-use",
            f"The VPN gateway {gateway.id} knows other machines, too: {', '.join(others)}. It stays.",
            "Remove the VPN of those machines first, then run the same command again.",
        )
