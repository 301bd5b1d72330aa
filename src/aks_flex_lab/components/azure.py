"""The lab's Azure: Entra ID and Azure Resource Manager in one program, and instance metadata services at the
sites.
"""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_lab import network
from aks_flex_lab.arm.role_assignments import RoleAssignments
from aks_flex_lab.entra.directory import TENANT_ID, EntraDirectory, MachineIdentities
from aks_flex_lab.pki import CertificateAuthority
from aks_flex_lab.supervisor import METADATA_PREFIX, ComponentSupervisor, LabComponent, https_probe, tcp_probe

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.kernel.namespaces import NetworkNamespace
    from aks_flex_lab.layout import LabLayout
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.network import EdgeSite


IMDS_ADDRESS = "169.254.169.254"


@dataclass(frozen=True)
class InstanceMetadataComponent:
    layout: LabLayout
    state: Path  # state directory of the lab's Azure

    @property
    def machine_identities(self) -> MachineIdentities:
        return MachineIdentities(self.state)

    def assign_identities(self, machine: EdgeMachine, *identities: EntraPrincipal) -> None:
        """Sets the managed identities of a machine. Without identities, the machine is not an Azure VM."""
        self.machine_identities.set(machine.record.address, [each.object_id for each in identities])
        self.reconcile()

    def reconcile(self) -> None:
        """Runs the instance metadata service at exactly the sites that need it."""
        addresses = [ipaddress.ip_address(each) for each in self.machine_identities.addresses()]
        net = network.LabNetwork(self.layout)
        for site in net.sites():
            if any(each in ipaddress.ip_network(site.subnet) for each in addresses):
                net.site_namespace(site).ip(f"addr replace {IMDS_ADDRESS}/32 dev lo")
                supervisor, part = ComponentSupervisor(self.layout), self.component(net, site)
                supervisor.start(part)
                supervisor.wait(part)
            elif process := ComponentSupervisor(self.layout).process(f"{METADATA_PREFIX}{site.name}"):
                process.stop()
                net.site_namespace(site).ip(f"addr del {IMDS_ADDRESS}/32 dev lo")

    def component(self, net: network.LabNetwork, site: EdgeSite) -> LabComponent:
        argv = (
            *(sys.executable, "-m", "aks_flex_lab.entra"),
            f"--listen={IMDS_ADDRESS}:80",
            f"--state={self.state}",
            f"--login={network.LOGIN_URL}",
        )
        inside = net.site_namespace(site)
        return LabComponent(
            f"{METADATA_PREFIX}{site.name}",
            argv,
            f"http://{IMDS_ADDRESS}",
            tcp_probe(inside, IMDS_ADDRESS, 80),
            inside,
        )


@dataclass(frozen=True)
class AzureComponent:
    layout: LabLayout
    cloud: NetworkNamespace

    @property
    def state(self) -> Path:
        """The directory of its principals, clusters and role assignments."""
        return self.layout.components / "azure" / "state"

    @property
    def directory(self) -> EntraDirectory:
        return EntraDirectory(self.state)

    @property
    def assignments(self) -> RoleAssignments:
        return RoleAssignments(self.state, self.directory)

    @property
    def metadata(self) -> InstanceMetadataComponent:
        return InstanceMetadataComponent(self.layout, self.state)

    def component(self, provider: str, provider_authority: Path, resolver: Path) -> LabComponent:
        """Returns the component. ARM forwards requests for flex nodes to the provider, whose CA it trusts."""
        authority = CertificateAuthority(self.layout.pki)
        serving = authority.issue(
            "azure", "azure", names=(network.LOGIN_NAME, network.MANAGEMENT_NAME, network.AZURE)
        )
        argv = (
            *(sys.executable, "-m", "aks_flex_lab.arm"),
            f"--listen={network.AZURE}:443",
            f"--cert={serving.certificate}",
            f"--key={serving.key}",
            f"--state={self.state}",
            f"--provider={provider}",
            f"--provider-ca={provider_authority}",
        )
        path = f"/{TENANT_ID}/v2.0/.well-known/openid-configuration"
        ready = https_probe(self.cloud, network.AZURE, 443, path, authority.certificate)
        return LabComponent("azure", argv, network.MANAGEMENT_URL, ready, self.cloud, resolver=resolver)
