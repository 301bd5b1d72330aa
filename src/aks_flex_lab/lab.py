"""Starts one lab, reports its state and removes it.

A lab has no central process: every command observes the state and does what is missing. `up` therefore repairs a
lab that lost a component, and `down` removes a lab whose `up` was killed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab import dns, network
from aks_flex_lab.architecture import Architecture
from aks_flex_lab.arm.managed_clusters import ManagedCluster, ManagedClusters
from aks_flex_lab.azcmagent.apt_repository import AzcmagentRepository, publish_repository
from aks_flex_lab.cluster import LabCluster
from aks_flex_lab.components import fault_proxy, gateway
from aks_flex_lab.components.azure import AzureComponent
from aks_flex_lab.components.control_plane import CLOUD_API_URL, ControlPlane, watch_api
from aks_flex_lab.components.pod_routes import POD_ROUTES, pod_routes_component
from aks_flex_lab.components.resource_provider import (
    CLUSTER_ID,
    LOCATION,
    PROVIDER_GATEWAY,
    PROVIDER_URL,
    RESOURCE_GROUP_ID,
    ResourceProviderComponent,
    resolv_conf,
    write_resolv_conf,
)
from aks_flex_lab.components.services import CloudServices, VpnComponent
from aks_flex_lab.errors import ComponentError
from aks_flex_lab.files import file_lock, write_atomically
from aks_flex_lab.host_requirements import require_host, require_kernel, require_root
from aks_flex_lab.kernel import host_state, mounts
from aks_flex_lab.kernel.cgroups import LabCgroups
from aks_flex_lab.kernel.namespaces import namespaces_with_prefix
from aks_flex_lab.layout import LAB_NAME
from aks_flex_lab.machines import qemu
from aks_flex_lab.machines.container import NSPAWN_DIRECTORY, remove_nspawn_directories
from aks_flex_lab.machines.inventory import MachineInventory
from aks_flex_lab.machines.virtual_base import VirtualBase
from aks_flex_lab.mirror.control import MirrorClient
from aks_flex_lab.network import LabNetwork
from aks_flex_lab.pki import CertificateAuthority, kubeconfig_text
from aks_flex_lab.progress import NO_PROGRESS, ProgressReporter
from aks_flex_lab.supervisor import ComponentSupervisor, LabComponent
from aks_flex_lab.tools.artifacts import artifact_tree
from aks_flex_lab.tools.catalog import LAB_TOOLS
from aks_flex_lab.tools.toolbox import Toolbox
from aks_flex_lab.versions import NodeVersions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aks_flex_lab.layout import LabLayout
    from aks_flex_lab.machines.base_system import DebianRelease
    from aks_flex_lab.machines.machine import EdgeMachine

HOST_LOCK = Path("/run/aks-flex-lab.lock")


@dataclass(frozen=True)
class Lab:
    layout: LabLayout
    tools: tuple[str, ...] = ()  # beside those of every lab, such as kubernetes@1.33.13; an etcd replaces Debian's

    @property
    def network(self) -> LabNetwork:
        return LabNetwork(self.layout)

    @property
    def authority(self) -> CertificateAuthority:
        return CertificateAuthority(self.layout.pki)

    @property
    def toolbox(self) -> Toolbox:
        return Toolbox(self.layout.cache)

    @property
    def supervisor(self) -> ComponentSupervisor:
        return ComponentSupervisor(self.layout)

    @property
    def control_plane(self) -> ControlPlane:
        etcd = next((selector.partition("@")[2] for selector in self.tools if selector.startswith("etcd@")), None)
        return ControlPlane(self.layout, self.toolbox, self.network.cloud, etcd)

    @property
    def services(self) -> CloudServices:
        return CloudServices(self.layout, self.network.cloud)

    @property
    def provider(self) -> ResourceProviderComponent:
        return ResourceProviderComponent(self.layout, self.network.cloud)

    @property
    def azure(self) -> AzureComponent:
        return AzureComponent(self.layout, self.network.cloud)

    @property
    def azcmagent_repository(self) -> AzcmagentRepository:
        """The APT repository of azcmagent and its signing key."""
        return AzcmagentRepository(artifact_tree(self.toolbox))

    @property
    def vpn(self) -> VpnComponent:
        return VpnComponent(self.layout, self.network.cloud, self.azure.state, RESOURCE_GROUP_ID)

    @property
    def inventory(self) -> MachineInventory:
        return MachineInventory(self.layout)

    @property
    def mirror(self) -> MirrorClient:
        return MirrorClient(self.services.mirror_control())

    @property
    def fault_proxy(self) -> fault_proxy.FaultProxy:
        return fault_proxy.FaultProxy(self.network.cloud)

    @property
    def admin_kubeconfig(self) -> Path:
        return self.layout.home / "admin.kubeconfig"

    @property
    def cluster(self) -> LabCluster:
        if not self.admin_kubeconfig.exists():
            raise ComponentError(
                "lab-not-running", f"Lab {self.layout.name} is not running.", f"Run `{self.command} up`."
            )
        return LabCluster(self.toolbox.path("kubernetes", "kubectl"), self.admin_kubeconfig)

    @property
    def command(self) -> str:
        """The command line that selects this lab."""
        return self.layout.command

    @property
    def exists(self) -> bool:
        return self.layout.home.exists()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        with file_lock(self.layout.lock, f"lab {self.layout.name}"):
            yield

    def up(self, progress: ProgressReporter, api_port: int | None = None) -> None:
        """Starts everything that is not running. A new lab is removed if it cannot be created on this host."""
        require_host(self.layout)
        port = gateway.choose_port(self.layout, api_port, alive=self.supervisor.process("gateway") is not None)
        tree = self.provide(LAB_TOOLS, progress)
        publish_repository(tree)
        with self.exclusive():
            new = not self.exists
            try:
                self._bring_up(progress, tree, port)
            except ComponentError:
                raise  # Keep the logs for diagnosis. `up` continues from here, and `down` removes the lab.
            except BaseException:
                if new:
                    self._tear_down()
                raise

    def provide(self, tools: Iterable[str], progress: ProgressReporter = NO_PROGRESS) -> Path:
        """Installs tools and those of this lab, and makes the mirrors of all labs serve them; returns the tree."""
        self.toolbox.install((*tools, *self.tools), progress, purpose=f"lab {self.layout.name}")
        return artifact_tree(self.toolbox, progress)

    def _bring_up(self, progress: ProgressReporter, tree: Path, port: int) -> None:
        self._record_host_state()
        require_kernel()
        foreign = [self._install_architecture(arch, progress) for arch in self._foreign_architectures()]
        plane = self.control_plane
        with progress.step("network and certificates"):
            self.network.up()
            self.authority.ensure()
            write_resolv_conf(self.layout)
            text = kubeconfig_text(f"https://127.0.0.1:{port}", self.authority, self.control_plane.admin())
            write_atomically(self.admin_kubeconfig, text, 0o600)
            gateway.save_port(self.layout, port)
        with progress.step("etcd, registry, mirror, DNS, fault proxy"):
            self._run(
                plane.etcd(),
                self.services.dns(),
                self.services.registry(),
                self.services.mirror(tree),
                fault_proxy.fault_proxy_component(
                    self.toolbox.path("toxiproxy", "toxiproxy-server"), self.network.cloud
                ),
            )
        with progress.step("Azure"):  # before the API server, which accepts its tokens
            self.provider.register_identity(self.azure.directory, self.azure.assignments)
            self._register_cluster()
            self._run(self.azure.component(PROVIDER_URL, self.provider.authority, resolv_conf(self.layout)))
        with progress.step("Kubernetes API server"):
            self._run(plane.api_server(resolv_conf(self.layout)), gateway.gateway_component(self.network.cloud, port))
        with progress.step("controller manager, scheduler, resource provider, images, roles"):
            self._start(plane.controller_manager(), plane.scheduler(), self.provider.component())
            self.services.push_images(self.toolbox, *foreign)
            self.fault_proxy.ensure()
            self.cluster.prepare()
            self._wait(plane.controller_manager(), plane.scheduler(), self.provider.component())
            self._start(self._provider_gateway(), self.vpn.component())
            self.provider.add_cluster(plane.admin())
            if self.supervisor.directory(POD_ROUTES).exists():
                self._start(pod_routes_component(self.layout))
        self.azure.metadata.reconcile()
        self.inventory.sweep()
        for machine in self.inventory.all():
            if machine.main_pid() is None or machine.runner() is None:
                with progress.step(f"machine {machine.name}"):
                    dns.add_host(self.layout, machine.name, machine.record.site, machine.record.address)
                    machine.start()

    def add_virtual_machine(
        self,
        name: str,
        system: DebianRelease,
        site: str,
        arch: Architecture | None = None,
        progress: ProgressReporter = NO_PROGRESS,
    ) -> EdgeMachine:
        """Creates a virtual machine, by default of the host's architecture, and boots it.

        Locks the lab for the creation only, because building what is missing takes minutes.
        """
        with self.exclusive():
            self.inventory.require_new(name, site)
        base = self.prepare_virtual(system, arch or Architecture.of_host(), progress)
        what = f"virtual machine {name} boots {system.value} {base.arch.value} with {base.accelerator}"
        with progress.step(what), self.exclusive():
            return self.inventory.add_virtual(name, base, site)

    def prepare_virtual(
        self, system: DebianRelease, arch: Architecture, progress: ProgressReporter = NO_PROGRESS
    ) -> VirtualBase:
        """Builds what virtual machines of a system and architecture need, and serves the programs of their nodes."""
        qemu.require_programs(arch)
        base = VirtualBase(system, self.layout.cache, arch)
        base.build(progress)
        # Makes the mirror and the registry serve what nodes of an architecture need, which the host may not have.
        # What is missing is built, which takes minutes.
        if arch.value != self.toolbox.arch:
            box = self._install_architecture(arch.value, progress)
            self.services.push_images(self.toolbox, box)
        return base

    def _install_architecture(self, arch: str, progress: ProgressReporter) -> Toolbox:
        """Installs the tools of another architecture, and makes the mirror serve them."""
        box = self.toolbox.for_architecture(arch)
        box.install(progress=progress, purpose=f"nodes of {arch}")
        artifact_tree(box, progress)
        return box

    def _foreign_architectures(self) -> list[str]:
        """Returns the architectures of the lab's virtual machines, without that of the host."""
        return sorted(
            {arch.value for machine in self.inventory.all() if (arch := machine.record.arch)} - {self.toolbox.arch}
        )

    def down(self) -> list[str]:
        """Removes everything of the lab, in any state, by ID. Returns the resources that could not be removed."""
        require_root()
        with self.exclusive():
            self._tear_down()
        return self.leftovers()

    def _tear_down(self) -> None:
        groups = LabCgroups(self.layout.name)
        groups.kill()
        self.network.down()
        groups.remove()
        mounts.unmount_below(self.layout.home)
        mounts.remove_tree(self.layout.home)
        remove_nspawn_directories(f"{self.layout.prefix}*")
        self._restore_host_state()

    def leftovers(self) -> list[str]:
        """Lists the resources of this lab that exist on the host."""
        groups = LabCgroups(self.layout.name)
        return [
            *(f"process {pid}" for pid in sorted(groups.pids())),
            *(f"cgroup {top}" for top in groups.roots()),
            *(f"network namespace {namespace.name}" for namespace in namespaces_with_prefix(self.layout.prefix)),
            *(f"mount {point}" for point in mounts.mounts_below(self.layout.home)),
            *(
                f"directory {path}"
                for path in (self.layout.home, *NSPAWN_DIRECTORY.glob(f"*/{self.layout.prefix}*"))
                if path.exists()
            ),
        ]

    def watch(self, path: str, seconds: float) -> Iterator[dict[str, Any]]:
        """Yields the events of a watch on the cluster's API until the watch ends."""
        return watch_api(self.layout, path, seconds)

    def _run(self, *components: LabComponent) -> None:
        self._start(*components)
        self._wait(*components)

    def _start(self, *components: LabComponent) -> None:
        for component in components:
            self.supervisor.start(component)

    def _wait(self, *components: LabComponent) -> None:
        for component in components:
            self.supervisor.wait(component)

    def _provider_gateway(self) -> LabComponent:
        alive = self.supervisor.process(PROVIDER_GATEWAY) is not None
        port = gateway.choose_port(self.layout, None, alive=alive, name=PROVIDER_GATEWAY)
        gateway.save_port(self.layout, port, PROVIDER_GATEWAY)
        return gateway.gateway_component(self.network.cloud, port, PROVIDER_GATEWAY, network.PROVIDER)

    def _register_cluster(self) -> None:
        """Registers the cluster with the lab's ARM, as AKS does."""
        credential = self.azure.state / "admin.kubeconfig"
        text = kubeconfig_text(CLOUD_API_URL, self.authority, self.control_plane.admin())
        write_atomically(credential, text, 0o600)
        cluster = ManagedCluster(
            CLUSTER_ID,
            LOCATION,
            NodeVersions().kubernetes,
            network.API_NAME,
            str(credential),
            network.SERVICES,
            network.DNS_SERVICE,
            network.PODS,
            self.vpn.subnet_id,
        )
        self.vpn.prepare(LOCATION)
        ManagedClusters(self.azure.state).register(cluster)

    @property
    def _sysctl_record(self) -> Path:
        return self.layout.labs_directory / ".sysctls.json"

    @property
    def _host_record(self) -> Path:
        return self.layout.labs_directory / ".host.json"

    def _record_host_state(self) -> None:
        with file_lock(HOST_LOCK, "this machine", wait=True):
            self.layout.home.mkdir(
                mode=0o700, parents=True, exist_ok=True
            )  # keys and disks are readable by root only
            host_state.record_sysctls(self._sysctl_record)
            host_state.record_host(self._host_record)
            host_state.raise_limits()

    def _restore_host_state(self) -> None:
        """Restores the state of the host when the last lab is removed."""
        with file_lock(HOST_LOCK, "this machine", wait=True):
            homes = self.layout.labs_directory
            if homes.exists() and any(path.is_dir() and LAB_NAME.fullmatch(path.name) for path in homes.iterdir()):
                return
            host_state.restore_sysctls(self._sysctl_record)
            host_state.restore_host(self._host_record)
            for directory in (homes, *NSPAWN_DIRECTORY.glob("*"), NSPAWN_DIRECTORY):
                with contextlib.suppress(OSError):  # The directory contains other files, which are kept.
                    directory.rmdir()
