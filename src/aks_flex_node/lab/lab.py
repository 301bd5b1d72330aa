"""A whole lab: how it comes up, what it is made of, and how it goes without a trace.

There is no process that is "the lab". Every command looks at what is there and does what is missing, so `up` repairs
a lab that lost a part, and `down` clears away one that was killed half-way.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab import dns, network
from aks_flex_node.lab.arm.resources import ManagedCluster, Resources
from aks_flex_node.lab.azcmagent.repositories import ArcPackages, publish
from aks_flex_node.lab.cluster import Cluster
from aks_flex_node.lab.errors import PartError
from aks_flex_node.lab.files import locked, write_atomically
from aks_flex_node.lab.floor.join import Versions
from aks_flex_node.lab.kernel import host, mounts, sysctls
from aks_flex_node.lab.kernel.cgroups import Groups
from aks_flex_node.lab.kernel.namespaces import named
from aks_flex_node.lab.layout import NAME
from aks_flex_node.lab.machines.inventory import Inventory
from aks_flex_node.lab.machines.machine import TRACES, clear_traces
from aks_flex_node.lab.mirror.client import Mirror
from aks_flex_node.lab.network import Network
from aks_flex_node.lab.parts import faults, gateway
from aks_flex_node.lab.parts.cloud import Azure
from aks_flex_node.lab.parts.control_plane import LOOPBACK, ControlPlane
from aks_flex_node.lab.parts.part import Part, Supervisor
from aks_flex_node.lab.parts.probes import Connection, trusting
from aks_flex_node.lab.parts.provider import (
    CLUSTER,
    GATEWAY,
    GROUP,
    LOCATION,
    URL,
    ResourceProvider,
    resolver,
    write_resolver,
)
from aks_flex_node.lab.parts.services import Services
from aks_flex_node.lab.parts.vpn import Vpn
from aks_flex_node.lab.pki import Authority, kubeconfig
from aks_flex_node.lab.requirements import require_host, require_kernel, require_root
from aks_flex_node.lab.tools.artifacts import artifact_tree
from aks_flex_node.lab.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.lab.layout import Layout
    from aks_flex_node.lab.progress import Progress

MACHINE_LOCK = Path("/run/aks-flex-lab.lock")


@dataclass(frozen=True)
class Lab:
    layout: Layout

    @property
    def network(self) -> Network:
        return Network(self.layout)

    @property
    def authority(self) -> Authority:
        return Authority(self.layout.pki)

    @property
    def toolbox(self) -> Toolbox:
        return Toolbox(self.layout.cache)

    @property
    def supervisor(self) -> Supervisor:
        return Supervisor(self.layout)

    @property
    def control_plane(self) -> ControlPlane:
        return ControlPlane(self.layout, self.toolbox, self.network.cloud)

    @property
    def services(self) -> Services:
        return Services(self.layout, self.network.cloud)

    @property
    def provider(self) -> ResourceProvider:
        return ResourceProvider(self.layout, self.network.cloud)

    @property
    def azure(self) -> Azure:
        return Azure(self.layout, self.network.cloud)

    @property
    def arc(self) -> ArcPackages:
        """Where machines get azcmagent from, and the key that vouches for it."""
        return ArcPackages(artifact_tree(self.toolbox))

    @property
    def vpn(self) -> Vpn:
        return Vpn(self.layout, self.network.cloud, self.azure.state, GROUP)

    @property
    def inventory(self) -> Inventory:
        return Inventory(self.layout)

    @property
    def mirror(self) -> Mirror:
        return Mirror(self.services.mirror_control())

    @property
    def faults(self) -> faults.Faults:
        return faults.Faults(self.network.cloud)

    @property
    def admin_kubeconfig(self) -> Path:
        return self.layout.home / "admin.kubeconfig"

    @property
    def cluster(self) -> Cluster:
        if not self.admin_kubeconfig.exists():
            raise PartError("lab-not-up", f"Lab {self.layout.name} is not up.", f"Run `{self.command} up` first.")
        return Cluster(self.toolbox.path("kubernetes", "kubectl"), self.admin_kubeconfig)

    @property
    def command(self) -> str:
        """What a person types to reach this very lab."""
        return self.layout.command

    @property
    def exists(self) -> bool:
        return self.layout.home.exists()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with locked(self.layout.lock, f"lab {self.layout.name}"):
            yield

    def up(self, progress: Progress, api_port: int | None = None) -> None:
        """Bring up what is not up yet. A new lab that this machine cannot carry leaves nothing half-made behind."""
        require_host(self.layout)
        port = gateway.choose_port(self.layout, api_port, alive=self.supervisor.process("gateway") is not None)
        self.toolbox.install(progress=progress)
        tree = artifact_tree(self.toolbox, progress)
        publish(tree)
        with self.alone():
            new = not self.exists
            try:
                self._bring_up(progress, tree, port)
            except PartError:
                raise  # its log is worth reading; `up` goes on from here, and `down` takes it away
            except BaseException:
                if new:
                    self._clear_away()
                raise

    def _bring_up(self, progress: Progress, tree: Path, port: int) -> None:
        self._remember_the_machine()
        require_kernel()
        plane = self.control_plane
        with progress.step("network and certificates"):
            self.network.up()
            self.authority.ensure()
            write_resolver(self.layout)
            self._write_kubeconfig(port)
        with progress.step("etcd, registry, mirror, DNS, fault proxy"):
            self._run(plane.etcd(), *self._cloud(tree))
        with progress.step("Azure"):  # before the API server, which believes its tokens
            self.provider.enrol(self.azure.directory, self.azure.assignments)
            self._register_cluster()
            self._run(self.azure.azure(URL, self.provider.authority, resolver(self.layout)))
        with progress.step("Kubernetes API server"):
            self._run(plane.api_server(resolver(self.layout)), gateway.part(self.network.cloud, port))
        with progress.step("controller manager, scheduler, resource provider, images, roles"):
            self._start(plane.controller_manager(), plane.scheduler(), self.provider.part())
            self.services.push_images(self.toolbox)
            self.faults.ensure()
            self.cluster.prepare()
            self._wait(plane.controller_manager(), plane.scheduler(), self.provider.part())
            self._start(self._provider_gateway(), self.vpn.part())
            self.provider.introduce(plane.admin())
        self.azure.metadata.settle()
        self.inventory.sweep()
        for machine in self.inventory.all():
            if machine.init() is None or machine.runner() is None:
                with progress.step(f"machine {machine.name}"):
                    dns.announce(self.layout, machine.name, machine.record.site, machine.record.address)
                    machine.start()

    def down(self) -> list[str]:
        """Take everything away, by its own id, whatever state it is in. Returns what could not be taken away."""
        require_root()
        with self.alone():
            self._clear_away()
        return self.leftovers()

    def _clear_away(self) -> None:
        groups = Groups(self.layout.name)
        groups.kill()
        self.network.down()
        groups.remove()
        mounts.unmount_below(self.layout.home)
        mounts.remove_tree(self.layout.home)
        clear_traces(f"{self.layout.prefix}*")
        self._forget_the_machine()

    def leftovers(self) -> list[str]:
        """What of this lab can still be seen on the machine."""
        groups = Groups(self.layout.name)
        return [
            *(f"process {pid}" for pid in sorted(groups.pids())),
            *(f"control group {top}" for top in groups.tops()),
            *(f"network namespace {namespace.name}" for namespace in named(self.layout.prefix)),
            *(f"mount {point}" for point in mounts.below(self.layout.home)),
            *(
                f"directory {path}"
                for path in (self.layout.home, *TRACES.glob(f"*/{self.layout.prefix}*"))
                if path.exists()
            ),
        ]

    def watch(self, path: str, seconds: float) -> Iterator[dict[str, Any]]:
        """The events of a watch on the cluster's API, as they come; ends by itself.

        It starts from what the API server's cache holds (version 0): with Debian's etcd, which cannot be asked how
        far it is, a watch from "now" waits for a write to the same kind of object, and then gives up.
        """
        admin = self.control_plane.admin()
        trust = trusting(self.authority.certificate)
        trust.load_cert_chain(admin.certificate, admin.key)
        connection = Connection(self.network.cloud, network.API, 443, network.API_NAME, trust)
        with contextlib.closing(connection):
            connection.request("GET", f"{path}&resourceVersion=0&timeoutSeconds={int(seconds)}")
            connection.sock.settimeout(seconds)
            for line in connection.getresponse():
                event = json.loads(line)
                if event.get("type") not in {"ADDED", "MODIFIED", "DELETED"}:
                    raise PartError(
                        "watch-refused",
                        f"The API server ended a watch: {event.get('object', event)}.",
                        "Try again; if it stays, look at `aks-flex-lab logs kube-apiserver`.",
                    )
                yield event

    def _run(self, *parts: Part) -> None:
        self._start(*parts)
        self._wait(*parts)

    def _start(self, *parts: Part) -> None:
        for part in parts:
            self.supervisor.start(part)

    def _wait(self, *parts: Part) -> None:
        for part in parts:
            self.supervisor.wait(part)

    def _provider_gateway(self) -> Part:
        alive = self.supervisor.process(GATEWAY) is not None
        port = gateway.choose_port(self.layout, None, alive=alive, name=GATEWAY)
        gateway.remember_port(self.layout, port, GATEWAY)
        return gateway.part(self.network.cloud, port, GATEWAY, network.PROVIDER)

    def _register_cluster(self) -> None:
        """With the lab's ARM, as AKS would have it."""
        credential = self.azure.state / "admin.kubeconfig"
        text = kubeconfig(LOOPBACK, self.authority, self.control_plane.admin())
        write_atomically(credential, text, 0o600)
        cluster = ManagedCluster(
            CLUSTER,
            LOCATION,
            Versions().kubernetes,
            network.API_NAME,
            str(credential),
            network.SERVICES,
            network.DNS_SERVICE,
            network.PODS,
            self.vpn.subnet_id,
        )
        self.vpn.prepare(LOCATION)
        Resources(self.azure.state).register(cluster)

    def _cloud(self, tree: Path) -> list[Part]:
        proxy = self.toolbox.path("toxiproxy", "toxiproxy-server")
        services = self.services
        return [
            services.names(),
            services.registry(),
            services.mirror(tree),
            faults.part(proxy, self.network.cloud),
        ]

    def _write_kubeconfig(self, port: int) -> None:
        text = kubeconfig(f"https://127.0.0.1:{port}", self.authority, self.control_plane.admin())
        write_atomically(self.admin_kubeconfig, text, 0o600)
        gateway.remember_port(self.layout, port)

    @property
    def _sysctls(self) -> Path:
        return self.layout.homes / ".sysctls.json"

    @property
    def _host(self) -> Path:
        return self.layout.homes / ".host.json"

    def _remember_the_machine(self) -> None:
        with locked(MACHINE_LOCK, "this machine", wait=True):
            self.layout.home.mkdir(mode=0o700, parents=True, exist_ok=True)  # keys and disks are nobody else's
            sysctls.remember(self._sysctls)
            host.remember(self._host)
            sysctls.make_room()

    def _forget_the_machine(self) -> None:
        """The last lab to go puts the machine back as the first one found it."""
        with locked(MACHINE_LOCK, "this machine", wait=True):
            homes = self.layout.homes
            if homes.exists() and any(path.is_dir() and NAME.fullmatch(path.name) for path in homes.iterdir()):
                return
            sysctls.restore(self._sysctls)
            host.restore(self._host)
            for room in (homes, *TRACES.glob("*"), TRACES):
                with contextlib.suppress(OSError):  # something else is in there, and stays
                    room.rmdir()
