"""The lab's resource provider: the real `aks-flex-rp`, configured with the lab's cluster and Azure."""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network
from aks_flex_lab.arm.managed_clusters import PROVIDER_NAMESPACE, SUBSCRIPTION_ID
from aks_flex_lab.components import gateway
from aks_flex_lab.components.control_plane import CLOUD_API_URL
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.files import write_atomically
from aks_flex_lab.pki import CertificateAuthority, kubeconfig_text
from aks_flex_lab.processes import run
from aks_flex_lab.supervisor import RESOLV_CONF_WRAPPER, LabComponent, https_probe

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.arm.role_assignments import RoleAssignments
    from aks_flex_lab.entra.directory import EntraDirectory
    from aks_flex_lab.kernel.namespaces import NetworkNamespace
    from aks_flex_lab.layout import LabLayout
    from aks_flex_lab.pki import CertificatePair
    from aks_flex_lab.processes import CommandResult

LOCATION = "westeurope"
RESOURCE_GROUP_ID = f"/subscriptions/{SUBSCRIPTION_ID}/resourceGroups/lab"
CLUSTER_ID = f"{RESOURCE_GROUP_ID}/providers/{PROVIDER_NAMESPACE}/managedClusters/lab"
PROVIDER_URL = f"https://{network.PROVIDER_NAME}"
OWNER_ROLE_ID = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"  # Azure's built-in role Owner
PROVIDER_GATEWAY = "provider-gateway"
PROVIDER_AUDIENCE = "api://aks-flex-rp"
POLL_SECONDS = 5  # short, so that a deletion is confirmed soon
PROVIDER_COMMAND = (sys.executable, "-m", "aks_flex_rp")


@dataclass(frozen=True)
class ResourceProviderComponent:
    layout: LabLayout
    cloud: NetworkNamespace
    program: tuple[str, ...] = PROVIDER_COMMAND

    @property
    def directory(self) -> Path:
        return self.layout.components / "provider"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def config(self) -> Path:
        return self.directory / "config.yaml"

    @property
    def authority(self) -> Path:
        """The certificate of the provider's CA. It exists when the provider is running."""
        return self.state / "tls" / "ca.crt"

    @property
    def cluster_file(self) -> Path:
        """The kubeconfig with which the provider accesses the cluster."""
        return self.directory / "cluster.kubeconfig"

    def register_identity(self, directory: EntraDirectory, assignments: RoleAssignments) -> None:
        """Creates the provider's service principal, which can read the cluster, its credentials and roles."""
        if self.secret_file.exists():
            return
        secret = secrets.token_urlsafe(24)
        principal = directory.service_principal("aks-flex-rp", secret)
        assignments.put(RESOURCE_GROUP_ID, OWNER_ROLE_ID, principal.object_id)
        write_atomically(self.client_file, principal.client_id)
        write_atomically(self.secret_file, secret, 0o600)

    @property
    def client_file(self) -> Path:
        return self.directory / "client-id"

    @property
    def secret_file(self) -> Path:
        return self.directory / "client-secret"

    def component(self) -> LabComponent:
        argv = (*self.program, "serve", f"--config={self.config}")
        ready = https_probe(self.cloud, network.PROVIDER, 443, "/readyz", self.authority)
        files = {self.config: json.dumps(self._settings(), indent=1)}
        return LabComponent(
            "provider", argv, PROVIDER_URL, ready, self.cloud, files=files, resolver=resolv_conf(self.layout)
        )

    def _settings(self) -> dict[str, Any]:
        authority = str(CertificateAuthority(self.layout.pki).certificate)
        metadata = f"{network.LOGIN_URL}/{TENANT_ID}/v2.0/.well-known/openid-configuration"
        tenant = {"tenantId": TENANT_ID, "metadataUrl": metadata, "caFile": authority}
        audiences = [PROVIDER_AUDIENCE, network.MANAGEMENT_URL, f"{network.MANAGEMENT_URL}/"]
        return {
            "listen": f"{network.PROVIDER}:443",
            "publicUrl": PROVIDER_URL,
            "stateDir": str(self.state),
            "nodes": {"pollSeconds": POLL_SECONDS, "allowExec": True},
            "auth": {
                "tenants": [{**tenant, "audiences": audiences}],
                "behindArm": True,  # and nodes call it directly, with its own audience
                "azureRoleAssignments": True,
            },
            "azure": {
                "resourceManager": network.MANAGEMENT_URL,
                "authority": network.LOGIN_URL,
                "caFile": authority,
                "tenantId": TENANT_ID,
                "clientId": self.client_file.read_text(),
                "clientSecretFile": str(self.secret_file),
            },
        }

    def add_cluster(self, admin: CertificatePair) -> None:
        """Adds the lab's cluster to the provider, unless it has it with the same kubeconfig."""
        text = kubeconfig_text(CLOUD_API_URL, CertificateAuthority(self.layout.pki), admin)
        if self.cluster_file.exists() and self.cluster_file.read_text() == text:
            return
        part = self.cluster_file.with_suffix(".new")
        write_atomically(part, text, 0o600)
        arguments = ("cluster", "add", CLUSTER_ID, f"--kubeconfig={part}", f"--server={network.API_URL}")
        self.run_cli_on_state(*arguments, f"--location={LOCATION}", f"--tenant={TENANT_ID}")
        part.replace(self.cluster_file)

    @property
    def dashboard(self) -> str:
        """The URL of the dashboard for a browser on this machine, through the gateway."""
        return f"https://127.0.0.1:{gateway.read_port(self.layout, PROVIDER_GATEWAY)}/"

    @property
    def key_file(self) -> Path:
        return self.state / "admin.key"

    def environment(self) -> dict[str, str]:
        """The environment in which `aks-flex-rp` on the host is administrator of this provider."""
        return {
            "AKS_FLEX_RP_URL": self.dashboard.rstrip("/"),
            "AKS_FLEX_RP_CA": str(self.authority),
            "AKS_FLEX_RP_TOKEN_FILE": str(self.key_file),
            "AKS_FLEX_RP_CLUSTER": CLUSTER_ID,
            "AKS_FLEX_RP_STATE": str(self.state),
        }

    def run_cli(self, *arguments: str) -> CommandResult:
        """Runs `aks-flex-rp` over HTTPS, as an operator does."""
        return run(*self.program, *arguments, env=self.environment())

    def run_cli_on_state(self, *arguments: str) -> CommandResult:
        """Runs `aks-flex-rp` in the provider's namespace, on its state."""
        inside: tuple[str | Path, ...] = (
            *RESOLV_CONF_WRAPPER,
            resolv_conf(self.layout),
            *self.program,
            *arguments,
            f"--config={self.config}",
        )
        return run(*self.cloud.command(*inside))


def resolv_conf(layout: LabLayout) -> Path:
    """The resolv.conf of programs in the cloud."""
    return layout.home / "resolv.conf"


def write_resolv_conf(layout: LabLayout) -> None:
    write_atomically(resolv_conf(layout), f"nameserver {network.DNS}\n")
