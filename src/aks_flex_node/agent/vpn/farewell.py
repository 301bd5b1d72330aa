"""What is ours in Azure goes: this machine's root certificate always, a gateway only when somebody says so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.vpn import wanted
from aks_flex_node.agent.vpn.gateways import Gateway
from aks_flex_node.errors import ConfigError, FlexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.vpn.records import Book, Record
    from aks_flex_node.agent.vpn.worlds import World
    from aks_flex_node.azure.operations import Sender

    Note = Callable[[str], None]

SECONDS = 600.0  # a machine that is to be given back does not wait for an hour


def take_back(book: Book, config: NodeConfig, world: World, note: Note) -> list[str]:
    """Take our root certificates off the gateways; the commands that do it, where it could not be done."""
    record, left = book.now, list[str]()
    for gateway, names in _known_to(record).items():
        note("taking this machine's certificate off the VPN gateway")
        try:
            with world.azure(config) as sender:
                gateway_of(gateway, book, sender, world, note).drop(names)
        except FlexError as error:
            note(f"the VPN gateway still knows this machine: {error.message}")
            left += [by_hand(gateway, each) for each in names]
    if record.made:
        note(f"what was made for the VPN stays, and Azure goes on charging for it: {', '.join(record.made)}")
    book.close()
    return left


def _known_to(record: Record) -> dict[str, tuple[str, ...]]:
    """Gateways that know this machine, or may, with the names by which they do."""
    known = [*record.former, *((record.gateway, each) for each in record.roots)]
    return {gateway: tuple(each for one, each in known if one == gateway) for gateway, _ in known if gateway}


def leave_former(book: Book, sender: Sender, world: World, note: Note) -> None:
    """Gateways that this machine used before it had another forget it. Whoever may not change them any more goes on
    nevertheless, and it is tried once more when the machine leaves."""
    for gateway, name in book.now.former:
        try:
            gateway_of(gateway, book, sender, world, note).drop((name,))
        except FlexError as error:
            note(f"{gateway} still knows this machine: {error.message} To mend it: {by_hand(gateway, name)}")
            continue
        book.note(former=tuple(each for each in book.now.former if each != (gateway, name)))


def by_hand(gateway: str, root: str) -> str:
    group, name = gateway.split("/")[4], gateway.rpartition("/")[2]
    return f"az network vnet-gateway root-cert delete --resource-group {group} --gateway-name {name} --name {root}"


def gateway_of(gateway: str, book: Book, sender: Sender, world: World, note: Note) -> Gateway:
    return Gateway(gateway, sender, book, replace(world.patience, seconds=SECONDS), note)


def remove_gateway(book: Book, config: NodeConfig, world: World, note: Note) -> None:
    """Take away what was made for the VPN, when it was made from here and nobody else uses it."""
    record = book.now
    if not record.made:
        raise ConfigError(
            "vpn-gateway-not-ours",
            f"The VPN gateway {record.gateway or 'of this machine'} was not made from here, so it stays.",
            "Remove it where it was made, or with `az network vnet-gateway delete`.",
        )
    with world.azure(config) as sender:
        gateway = Gateway(record.gateway, sender, book, world.patience, note)
        for made in record.made:
            _refuse_used(replace(gateway, id=made), (*record.roots, *(name for _, name in record.former)))
        for resource in reversed(record.made):
            gateway.remove(resource, resource.rpartition("/")[2])
    gone = set(record.made)
    book.note(
        roots=() if record.gateway in gone else record.roots,
        former=tuple(each for each in record.former if each[0] not in gone),
    )


def _refuse_used(gateway: Gateway, ours: tuple[str, ...]) -> None:
    """Nothing else of what is made for a VPN knows machines."""
    others = [each["name"] for each in wanted.roots(gateway.look() or {}) if each["name"] not in ours]
    if others:
        raise ConfigError(
            "vpn-gateway-in-use",
            f"The VPN gateway {gateway.id} knows other machines, too: {', '.join(others)}. It stays.",
            "Remove the VPN of those machines first, then run the same command again.",
        )
