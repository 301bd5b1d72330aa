"""What is ours in Azure goes: this machine's root certificate always, a gateway only when somebody says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.vpn import wanted
from aks_flex_node.agent.vpn.gateways import Gateway
from aks_flex_node.azure.operations import Patience
from aks_flex_node.errors import ConfigError, FlexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.vpn.records import Book
    from aks_flex_node.agent.vpn.worlds import World
    from aks_flex_node.azure.operations import Sender

    Note = Callable[[str], None]

SECONDS = 600.0  # a machine that is to be given back does not wait for an hour


def take_back(book: Book, config: NodeConfig, world: World, note: Note) -> list[str]:
    """Take our root certificates off the gateway; the commands that do it, where it could not be done."""
    record, left = book.now, list[str]()
    if record.gateway and record.roots:
        note("taking this machine's certificate off the VPN gateway")
        try:
            with world.azure(config) as sender:
                gateway_of(book, sender, world, note).forget(record.roots)
        except FlexError as error:
            note(f"the VPN gateway still knows this machine: {error.message}")
            left = [by_hand(record.gateway, each) for each in record.roots]
    if record.gateway in record.made:
        note(f"the VPN gateway stays, and Azure goes on charging for it: {record.gateway}")
    book.close()
    return left


def by_hand(gateway: str, root: str) -> str:
    group, name = gateway.split("/")[4], gateway.rpartition("/")[2]
    return f"az network vnet-gateway root-cert delete --resource-group {group} --gateway-name {name} --name {root}"


def gateway_of(book: Book, sender: Sender, world: World, note: Note) -> Gateway:
    patience = Patience(SECONDS, world.sleep, world.now)
    return Gateway(book.now.gateway, sender, book, patience, note)


def remove_gateway(book: Book, config: NodeConfig, world: World, note: Note) -> None:
    """Take away what was made for the VPN, when it was made from here and nobody else uses it."""
    record = book.now
    if not record.gateway or record.gateway not in record.made:
        raise ConfigError(
            "vpn-gateway-not-ours",
            f"The VPN gateway {record.gateway or 'of this machine'} was not made from here, so it stays.",
            "Remove it where it was made, or with `az network vnet-gateway delete`.",
        )
    with world.azure(config) as sender:
        gateway = Gateway(record.gateway, sender, book, world.patience, note)
        others = [each["name"] for each in wanted.roots(gateway.look() or {}) if each["name"] not in record.roots]
        if others:
            raise ConfigError(
                "vpn-gateway-in-use",
                f"The VPN gateway {record.gateway} knows other machines, too: {', '.join(others)}. It stays.",
                "Remove the VPN of those machines first, then run the same command again.",
            )
        for resource in reversed(record.made):
            gateway.remove(resource, resource.rpartition("/")[2])
    book.note(roots=())
