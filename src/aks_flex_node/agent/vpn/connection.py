"""From a configuration to a tunnel by which the API server answers: the whole way on one page.

Every step looks first at what is there, so a run that was cut off is finished by the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.components import vpn
from aks_flex_node.agent.components.vpn import COMPONENT, NAME, PROGRAM, client_file, vpn_dir
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.agent.vpn import clients, farewell, looking, names, networks, overlaps, profiles, tunnels
from aks_flex_node.agent.vpn.causes import cause
from aks_flex_node.agent.vpn.gateways import Gateway, Provisioning
from aks_flex_node.agent.vpn.looking import pair_file
from aks_flex_node.agent.vpn.networks import NETWORK_API
from aks_flex_node.agent.vpn.pairs import Pair, root_data
from aks_flex_node.agent.vpn.reaching import Reaching
from aks_flex_node.agent.vpn.records import Book
from aks_flex_node.agent.vpn.worlds import World
from aks_flex_node.azure.operations import Sender, begun, follow
from aks_flex_node.errors import FlexError, MachineError
from aks_flex_node.host.actions import Remove, RestartUnit, Run, WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.agent.vpn.networks import Place
    from aks_flex_node.agent.vpn.profiles import Profile

UP_SECONDS = 120.0
AGAIN_SECONDS = 20.0  # for a tunnel that was there and is on its way back
RESOLVED = "/run/systemd/resolve/stub-resolv.conf"
INSTALL = (
    "env",
    "DEBIAN_FRONTEND=noninteractive",
    "apt-get",
    "install",
    "--yes",
    "--no-install-recommends",
    "openvpn",
)
BEFORE_THE_NODE = frozenset(phase for phase in Phase if phase.name.startswith(("NOT_", "ARC_", "VPN_"))) | {
    Phase.NODE_FAILED
}


class Connection:
    """`make`: a gateway where there is none; `adopt`: one that differs; `renew`: the certificate, now."""

    def __init__(
        self,
        engine: Engine,
        note: Callable[[str], None],
        world: World | None = None,
        *,
        make: bool = False,
        adopt: bool = False,
        renew: bool = False,
    ) -> None:
        self.engine = engine
        self.host, self.config = engine.host, engine.config
        self.note = note
        self.world = world or World()
        self.make = make or self.config.azure.vpn.auto_provision
        self.adopt = adopt or self.config.azure.vpn.adopt
        self.renew = renew
        self.book = Book(self.host, self.config)

    def run(self) -> None:
        """Do what is missing, and prove that the API server answers through the tunnel."""
        if not self.config.azure.vpn.enabled:
            return
        if not self._is_settled():
            with self._remembered():
                self._prepare()
                with self.world.azure(self.config) as sender:
                    self._establish(sender)
            self.engine.events.emit("vpn-connected", f"The VPN by {self.book.now.gateway} is up")
        self._remember(Phase.VPN_CONNECTED)
        self._tell_address()

    def due(self) -> bool:
        """Whether the certificate should be renewed; asks nobody."""
        return looking.due(self.host, self.config, self.world.now())

    def _is_settled(self) -> bool:
        """Whether all is done, by a look at this machine alone."""
        record = self.book.now
        return (
            not (self.renew or self.due())
            and not looking.is_other(self.host, self.config)
            and record.roots == (record.active,)
            and self.host.digest(client_file(self.config)) == record.started
            and not self.engine.plan(COMPONENT).actions
            and self.world.waiting.up(AGAIN_SECONDS)
        )

    def _prepare(self) -> None:
        """OpenVPN, and a place for its configuration; its unit waits until there is one."""
        if self.host.look(PROGRAM) is None:
            self.note("installing OpenVPN")
            with contextlib.suppress(MachineError):
                self.host.do(Run(INSTALL, "install OpenVPN", seconds=300.0))
        if self.host.look(PROGRAM) is None:
            raise MachineError(
                "vpn-program-missing",
                f"This machine has no OpenVPN ({PROGRAM}), and it could not be installed.",
                "Install it: `apt-get install --no-install-recommends openvpn`, then run the same command again.",
            )
        self.engine.apply(COMPONENT)

    def _establish(self, sender: Sender) -> None:
        place = networks.find(sender, self.config)
        place = self._check(place)
        gateway = self._gateway(sender, place)
        self._turn_to(gateway.id, place.id)
        pair = self._pair()
        Provisioning(gateway, self.config, place).ensure(pair, make=self.make, adopt=self.adopt)
        profile = self._profile(sender, gateway)
        text = self._configuration(profile, pair, place)
        self._connect(pair, text)
        self._forget_script(text)
        reaching = Reaching(self.host, self.config, self.world, place)
        reaching.name(sender, self.book.now.name_servers)
        reaching.prove()
        gateway.forget(tuple(each for each in self.book.now.roots if each != pair.name))
        farewell.leave_former(self.book, sender, self.world, self.note)
        self.world.waiting.up(AGAIN_SECONDS)  # a gateway that is changed may begin anew
        self._forget_pairs(pair)
        self.book.note(settings=looking.fingerprint(self.config))

    def _check(self, place: Place) -> Place:
        """Nothing is made when addresses would be used twice. A network that somebody joined with the one that is
        meant is no reason to stay outside: what of it is here, too, is left where it is."""
        pool = overlaps.parsed("azure.vpn.p2sGatewayCIDR", self.config.azure.vpn.p2s_gateway_cidr)
        ours = frozenset({vpn.LINK, "flex0", "cni0"})  # the tunnel itself, and pods of this node
        here = overlaps.on_host(self.host.ask("ip", "-j", "addr").out, self.host.ask("ip", "-j", "route").out, ours)
        kept = tuple(each for each in place.spaces if each in place.own or not overlaps.is_taken(each, here))
        if left := [each for each in place.spaces if each not in kept]:
            self.note(f"not through the VPN, because this machine has these addresses, too: {', '.join(left)}")
        place = replace(place, spaces=kept)
        overlaps.check(pool, place.beyond, overlaps.cluster_ranges(place.cluster), here)
        return place

    def _gateway(self, sender: Sender, place: Place) -> Gateway:
        kind = "Microsoft.Network/virtualNetworkGateways"
        path = f"{place.group}/providers/{kind}/{self.config.azure.vpn.gateway_name}"
        # Azure writes ids now in one case and now in another: what is written down stays as it is.
        known = [self.book.now.gateway, *(each for each, _ in self.book.now.former)]
        id_ = next((each for each in known if each.lower() == path.lower()), path)
        return Gateway(id_, sender, self.book, self.world.patience, self.note)

    def _turn_to(self, gateway: str, network: str) -> None:
        """A machine that is to use another gateway is forgotten by the one before, once the other one works."""
        before = self.book.now
        if before.gateway in {"", gateway}:
            return self.book.note(network=network, gateway=gateway)
        known = (*before.former, *((before.gateway, each) for each in before.roots))
        roots = tuple(name for one, name in known if one == gateway)
        former = tuple(each for each in known if each[0] != gateway)
        return self.book.note(network=network, gateway=gateway, roots=roots, former=former)

    def _pair(self) -> Pair:
        """Ours if it lasts a while, else one that was made and not yet used, else a new one."""
        active = self.book.now.active
        stems = (each.removesuffix(".pem") for each in self.host.names(vpn_dir(self.config)) if each.endswith(".pem"))
        others = sorted(each for each in stems if each != active)
        for name in [*([] if self.renew or self.due() else [active]), *others]:
            pem = self.host.read(pair_file(self.config, name)) if name else None
            if pem and root_data(pem) and looking.lasts(pem, self.config, self.world.now()):
                return Pair(name, root_data(pem), pem)
        pair = self.world.pair(self.engine.machine.node_name(self.config))
        self.host.do(WriteFile(pair_file(self.config, pair.name), pair.pem, 0o600, secret=True))
        return pair

    def _profile(self, sender: Sender, gateway: Gateway) -> Profile:
        body = {"processorArchitecture": "Amd64", "authenticationMethod": "EAPTLS"}
        path = f"{gateway.id}/generatevpnprofile"
        reply = sender.send("POST", path, NETWORK_API, body)
        made = reply.body
        if reply.status == 202:
            operation = begun(reply, "the VPN profile", path, NETWORK_API, self.world.now())
            made = follow(sender, operation, self.world.patience, self.note)
        profile = profiles.parse(profiles.unpacked(self.world.download(self.config, profiles.link(made))))
        if profile.dropped:
            self.note(f"left out of the VPN profile: {', '.join(profile.dropped)}")
        return profile

    def _configuration(self, profile: Profile, pair: Pair, place: Place) -> bytes:
        settings = self.config.azure.vpn
        servers = clients.name_servers(settings.dns_servers, place.name_servers, profile.name_servers)
        host, port = networks.api_server(self.config, place.cluster)
        self.book.note(name_servers=servers, server=f"{host}:{port}")
        script = self._up_script(servers, settings.dns_domains or (host,))
        direct = [host] if names.is_address(host) else []
        ways = [*place.spaces, *(f"{each}/32" for each in (*servers, *direct))]
        return clients.configuration(profile, pair_file(self.config, pair.name), ways, script)

    def _up_script(self, servers: tuple[str, ...], domains: tuple[str, ...]) -> str:
        """Only systemd-resolved can ask different servers for different names."""
        path = f"{vpn_dir(self.config)}/up"
        if not servers or self.host.look(RESOLVED) is None:
            return ""
        self._write(path, clients.up_script(servers, domains), 0o700)
        return path

    def _forget_script(self, text: bytes) -> None:
        """One that is not used any more; not before the tunnel is up, because the one before may need it again."""
        path = f"{vpn_dir(self.config)}/up"
        if self.host.look(path) is not None and path.encode() not in text:
            self.host.do(Remove(path))

    def _write(self, path: str, content: bytes, mode: int) -> None:
        if self.host.read(path) != content:
            self.host.do(WriteFile(path, content, mode, secret=True))

    def _connect(self, pair: Pair, text: bytes) -> None:
        """Bring the tunnel up with this configuration; where it does not come, the one before is put back."""
        before = self.host.read(client_file(self.config))
        self._start(text)
        self.note("waiting for the tunnel")
        if not self.world.waiting.up(UP_SECONDS):
            error = cause(tunnels.words(self.host))
            if before and before != text and self.book.now.active:
                self._start(before)
            raise error
        self.book.note(active=pair.name)

    def _start(self, text: bytes) -> None:
        mark = hashlib.sha256(text).hexdigest()
        ran = self.host.unit(NAME).running
        self._write(client_file(self.config), text, 0o600)
        self.engine.apply(COMPONENT)
        if ran and self.book.now.started != mark:
            self.host.do(RestartUnit(NAME))
        self.book.note(started=mark)

    def _forget_pairs(self, pair: Pair) -> None:
        for each in self.host.names(vpn_dir(self.config)):
            if each.endswith(".pem") and each != f"{pair.name}.pem":
                self.host.do(Remove(f"{vpn_dir(self.config)}/{each}"))

    def _tell_address(self) -> None:
        """From now on, this machine may reach the API server from another address of its own."""
        self.engine.machine = looking.steady(self.host, self.config, self.engine.machine)

    def take_back(self) -> list[str]:
        """Take what is ours in Azure away; what is left to type by hand, when Azure cannot be asked."""
        return farewell.take_back(self.book, self.config, self.world, self.note)

    def forget_phase(self) -> None:
        """The VPN is gone: this machine stands where it began. What Arc knows of it, Arc is asked for."""
        known = node_state.read(self.host, self._state_file)
        if known.phase.startswith("VPN"):
            node_state.write(self.host, self._state_file, known.with_phase(Phase.NOT_STARTED))

    @contextlib.contextmanager
    def _remembered(self) -> Iterator[None]:
        self._remember(Phase.VPN_BOOTSTRAPPING)
        try:
            yield
        except FlexError as error:
            self._remember(Phase.VPN_FAILED, step="vpn", error=error.name, message=error.message)
            raise

    def _remember(self, phase: Phase, **changes: str) -> None:
        """How far the machine has come. A node that renews its certificate is a node before and after."""
        known = node_state.read(self.host, self._state_file)
        if Phase(known.phase) in BEFORE_THE_NODE and (changes or known.phase != phase.value):
            node_state.write(self.host, self._state_file, known.with_phase(phase, **changes))

    @property
    def _state_file(self) -> str:
        return f"{self.config.paths.data_dir}/state.json"
