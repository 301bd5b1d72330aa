"""The VPN gateway: found or made, and told of this machine. What others have set up there stays as it is."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.vpn import wanted
from aks_flex_node.agent.vpn.networks import GATEWAY_SUBNET, NETWORK_API
from aks_flex_node.agent.vpn.pairs import same
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.operations import Operation, begun, follow, provisioning_state
from aks_flex_node.errors import ConfigError, FlexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.vpn.networks import Place
    from aks_flex_node.agent.vpn.pairs import Pair
    from aks_flex_node.agent.vpn.records import Book
    from aks_flex_node.azure.operations import Note, Patience, Sender

Document = dict[str, Any]
MOST_ROOTS = 20  # that Azure takes
ATTEMPTS = 10  # at a change that somebody else was quicker with
BETWEEN = 2.0


@dataclass(frozen=True)
class Gateway:
    id: str
    sender: Sender
    book: Book
    patience: Patience
    note: Note

    def look(self) -> Document | None:
        """What there is, once Azure is not at work on it."""
        return self.settled(self.id, "the VPN gateway")

    def trust(self, pair: Pair) -> None:
        """Have this machine's root certificate on the gateway, beside those of others."""

        def add(document: Document) -> bool:
            roots = wanted.roots(document)
            if any(each["name"] == pair.name and same(wanted.data(each), pair.root) for each in roots):
                return False
            others = [each for each in roots if each["name"] != pair.name]
            if len(others) >= MOST_ROOTS:
                raise full(self.id)
            wanted.set_roots(document, [*others, wanted.root(pair)])
            return True

        self.book.note(roots=tuple(dict.fromkeys((*self.book.now.roots, pair.name))))
        self.change(add, "this machine's root certificate")

    def forget(self, names: tuple[str, ...]) -> None:
        """Take root certificates of ours off the gateway that we use."""
        self.drop(names)
        self.book.note(roots=tuple(each for each in self.book.now.roots if each not in names))

    def drop(self, names: tuple[str, ...]) -> None:
        def drop(document: Document) -> bool:
            roots = wanted.roots(document)
            kept = [each for each in roots if each["name"] not in names]
            wanted.set_roots(document, kept)
            return len(kept) < len(roots)

        if names:
            self.change(drop, "root certificates that are no longer used")

    def change(self, edit: Callable[[Document], bool], what: str) -> None:
        """Change what is there now, and nothing that somebody else changed meanwhile: then it is read once more."""
        for _ in range(ATTEMPTS):
            found = self.look()
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
                self.patience.sleep(BETWEEN)
                continue
            return
        raise FlexError(
            "vpn-gateway-busy",
            f"Others keep changing the VPN gateway {self.id}, so {what} could not be changed on it.",
            "Run the same command again in a few minutes.",
            again=True,
        )

    def put(self, resource: str, document: Document, what: str, etag: str = "") -> Document:
        """Make or change something, and wait for it. Where Azure is at work is kept until it is done."""
        body = {key: value for key, value in document.items() if key != "etag"}
        reply = self.sender.send("PUT", resource, NETWORK_API, body, etag)
        return self._finished(begun(reply, what, resource, NETWORK_API, self.patience.now()))

    def remove(self, resource: str, what: str) -> None:
        """Take something away, and wait until it is gone."""
        try:
            reply = self.sender.send("DELETE", resource, NETWORK_API)
            self._finished(begun(reply, f"the removal of {what}", resource, NETWORK_API, self.patience.now()))
        except AzureCallError as error:
            if error.status != 404:
                raise
            self.book.note(operation=None)
        self.book.note(made=tuple(each for each in self.book.now.made if each != resource))

    def _finished(self, operation: Operation) -> Document:
        self.book.note(operation=operation)
        try:
            done = follow(self.sender, operation, self.patience, self.note)
        except AzureCallError as error:
            if not error.again:
                self.book.note(operation=None)  # it has ended: there is nothing to wait for any more
            raise
        self.book.note(operation=None)
        return done if isinstance(done, dict) else {}

    def settled(self, resource: str, what: str) -> Document | None:
        """A resource, once Azure is not at work on it; None when there is none."""
        found, kept = self.get(resource), self.book.now.operation
        ours = kept if kept and kept.resource == resource else None
        if found is None or provisioning_state(found).lower() in {"succeeded", "failed", "canceled"}:
            if ours:
                self.book.note(operation=None)  # it ended when nobody looked
            return found
        return self._finished(ours or Operation(what, resource, NETWORK_API, began=self.patience.now()))

    def get(self, resource: str) -> Document | None:
        try:
            told = self.sender.send("GET", resource, NETWORK_API).body
        except AzureCallError as error:
            if error.status == 404:
                return None
            raise
        return told if isinstance(told, dict) else {}


@dataclass(frozen=True)
class Provisioning:
    """Brings a gateway about, or finds that the one that is there will do."""

    gateway: Gateway
    config: NodeConfig
    place: Place

    def ensure(self, pair: Pair, *, make: bool, adopt: bool) -> None:
        found = self.gateway.look()
        if found is None:
            self._make(pair, allowed=make)
        elif provisioning_state(found).lower() != "succeeded":
            self._mend(found, pair)
        elif differences := wanted.differences(found, self.config):
            self._adopt(differences, allowed=adopt)
        self.gateway.trust(pair)

    def _make(self, pair: Pair, *, allowed: bool) -> None:
        if other := self.place.gateway_in_use:
            raise other_name(self.place.id, other)
        if not allowed:
            raise no_gateway(self.gateway.id)
        subnet, address = self._subnet(), self._address()
        body = wanted.gateway(self.config, self.place.location, subnet, address, pair)
        self.gateway.book.note(roots=tuple(dict.fromkeys((*self.gateway.book.now.roots, pair.name))))
        self._missing(self.gateway.id, body, "the VPN gateway, which takes Azure 30 to 45 min")

    def _subnet(self) -> str:
        path = f"{self.place.id}/subnets/{GATEWAY_SUBNET}"
        if GATEWAY_SUBNET not in self.place.subnets:
            body = {"properties": {"addressPrefix": wanted.subnet_range(self.config, self.place)}}
            self._missing(path, body, "the gateway's subnet")
        return path

    def _address(self) -> str:
        name = f"{self.config.azure.vpn.gateway_name}-address"
        path = f"{self.place.group}/providers/Microsoft.Network/publicIPAddresses/{name}"
        self._missing(path, wanted.address(self.config, self.place.location), "the gateway's public address")
        return path

    def _missing(self, resource: str, body: Document, what: str) -> None:
        """Make something that is not there; first it is written down that it may have come from us.

        What somebody else made is used as it is, also where Azure says that it failed.
        """
        for left in reversed(range(ATTEMPTS)):
            found, ours = self.gateway.settled(resource, what), resource in self.gateway.book.now.made
            if found is not None and not (ours and provisioning_state(found).lower() == "failed"):
                return
            self.gateway.book.note_made(resource)
            try:
                self.gateway.put(resource, body, what)
            except AzureCallError as error:
                if not (left and is_busy(error)):
                    raise
                self.gateway.patience.sleep(BETWEEN)  # another machine makes the same, or something beside it
                continue
            return

    def _mend(self, found: Document, pair: Pair) -> None:
        """A gateway whose making failed is made once more when it is ours; another one is not ours to mend."""
        if self.gateway.id not in self.gateway.book.now.made:
            raise ConfigError(
                "vpn-gateway-failed",
                f"The VPN gateway {self.gateway.id} is in state {provisioning_state(found)}.",
                "Mend it first: `az network vnet-gateway update` repeats its last change.",
            )
        body = wanted.gateway(self.config, self.place.location, self._subnet(), self._address(), pair)
        self.gateway.put(self.gateway.id, body, "the VPN gateway, once more", str(found.get("etag", "")))

    def _adopt(self, differences: list[str], *, allowed: bool) -> None:
        if not allowed:
            raise differs(self.gateway.id, differences)
        self.gateway.note(f"changing the VPN gateway: {'; '.join(differences)}")
        self.gateway.change(lambda found: wanted.adopt(found, self.config), "the settings of the VPN gateway")


def is_busy(error: AzureCallError) -> bool:
    """Whether somebody else was quicker, or is at work there: then it is looked at once more."""
    return error.status in {409, 412} or error.code in {"AnotherOperationInProgress", "RetryableError"}


def full(gateway: str) -> FlexError:
    return ConfigError(
        "vpn-gateway-full",
        f"The VPN gateway {gateway} has {MOST_ROOTS} root certificates, which is the most that Azure takes.",
        "Remove those of machines that are gone: `az network vnet-gateway root-cert list` and `… delete`.",
    )


def other_name(network: str, other: str) -> FlexError:
    name = other.rpartition("/")[2]
    return ConfigError(
        "vpn-gateway-other-name",
        f"{network} has a VPN gateway already, and it is called {name}.",
        f"A network can have one. To use it, set azure.vpn.gatewayName: {name}.",
    )


def no_gateway(gateway: str) -> FlexError:
    return ConfigError(
        "vpn-gateway-missing",
        f"There is no VPN gateway {gateway}.",
        "Name one that exists with azure.vpn.gatewayName, or have it made (30 to 45 min, and Azure charges for it "
        "by the hour): `aks-flex-node bootstrap-vpn --auto-provision`.",
    )


def differs(gateway: str, differences: list[str]) -> FlexError:
    return ConfigError(
        "vpn-gateway-differs",
        f"The VPN gateway {gateway} has other settings than this configuration: {'; '.join(differences)}. "
        "Nothing was changed.",
        "Change the configuration, or have the gateway changed, which may cut off those who use it: "
        "`aks-flex-node bootstrap-vpn --adopt`.",
    )
