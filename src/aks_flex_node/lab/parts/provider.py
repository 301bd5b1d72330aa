"""The lab's resource provider: the real `aks-flex-rp` in the cloud, which knows the lab's cluster and its Azure."""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab import network
from aks_flex_node.lab.arm.resources import PROVIDER, SUBSCRIPTION
from aks_flex_node.lab.entra.directory import TENANT
from aks_flex_node.lab.files import write_atomically
from aks_flex_node.lab.parts import gateway
from aks_flex_node.lab.parts.control_plane import LOOPBACK
from aks_flex_node.lab.parts.part import RESOLVING, Part
from aks_flex_node.lab.parts.probes import answers
from aks_flex_node.lab.pki import Authority, kubeconfig
from aks_flex_node.lab.processes import run

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.lab.arm.assignments import Assignments
    from aks_flex_node.lab.entra.directory import Directory
    from aks_flex_node.lab.kernel.namespaces import Namespace
    from aks_flex_node.lab.layout import Layout
    from aks_flex_node.lab.pki import Pair
    from aks_flex_node.lab.processes import Result

LOCATION = "westeurope"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/lab"
CLUSTER = f"{GROUP}/providers/{PROVIDER}/managedClusters/lab"
URL = f"https://{network.PROVIDER_NAME}"
OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"  # Azure's built-in role
GATEWAY = "provider-gateway"
POLL_SECONDS = 5  # so that nobody waits long for a deletion to be believed
PROGRAM = (sys.executable, "-m", "aks_flex_rp")


@dataclass(frozen=True)
class ResourceProvider:
    layout: Layout
    cloud: Namespace

    @property
    def room(self) -> Path:
        return self.layout.parts / "provider"

    @property
    def state(self) -> Path:
        return self.room / "state"

    @property
    def config(self) -> Path:
        return self.room / "config.yaml"

    @property
    def authority(self) -> Path:
        """Of the provider's own; it is there when the provider is up."""
        return self.state / "tls" / "ca.crt"

    @property
    def cluster_file(self) -> Path:
        """The kubeconfig by which it reaches the cluster."""
        return self.room / "cluster.kubeconfig"

    def enrol(self, directory: Directory, assignments: Assignments) -> None:
        """Give it an identity of its own, which may read the cluster, get its credentials, and see roles."""
        if self.secret_file.exists():
            return
        secret = secrets.token_urlsafe(24)
        principal = directory.service_principal("aks-flex-rp", secret)
        assignments.put(GROUP, OWNER, principal.object_id)
        write_atomically(self.client_file, principal.client_id)
        write_atomically(self.secret_file, secret, 0o600)

    @property
    def client_file(self) -> Path:
        return self.room / "client-id"

    @property
    def secret_file(self) -> Path:
        return self.room / "client-secret"

    def part(self) -> Part:
        argv = (*PROGRAM, "serve", f"--config={self.config}")
        ready = answers(self.cloud, network.PROVIDER, 443, "/readyz", self.authority)
        files = {self.config: json.dumps(self._settings(), indent=1)}
        return Part("provider", argv, URL, ready, self.cloud, files=files, resolver=resolver(self.layout))

    def _settings(self) -> dict[str, Any]:
        authority = str(Authority(self.layout.pki).certificate)
        metadata = f"{network.LOGIN_URL}/{TENANT}/v2.0/.well-known/openid-configuration"
        tenant = {"tenantId": TENANT, "metadataUrl": metadata, "caFile": authority}
        audiences = [network.MANAGEMENT_URL, f"{network.MANAGEMENT_URL}/"]
        return {
            "listen": f"{network.PROVIDER}:443",
            "publicUrl": URL,
            "stateDir": str(self.state),
            "nodes": {"pollSeconds": POLL_SECONDS},
            "auth": {"tenants": [{**tenant, "audiences": audiences}], "azureRoleAssignments": True},
            "azure": {
                "resourceManager": network.MANAGEMENT_URL,
                "authority": network.LOGIN_URL,
                "caFile": authority,
                "tenantId": TENANT,
                "clientId": self.client_file.read_text(),
                "clientSecretFile": str(self.secret_file),
            },
        }

    def introduce(self, admin: Pair) -> None:
        """Tell it of the lab's cluster, unless it knows it just so."""
        text = kubeconfig(LOOPBACK, Authority(self.layout.pki), admin)
        if self.cluster_file.exists() and self.cluster_file.read_text() == text:
            return
        part = self.cluster_file.with_suffix(".new")
        write_atomically(part, text, 0o600)
        words = ("cluster", "add", CLUSTER, f"--kubeconfig={part}", f"--server={network.API_URL}")
        self.run(*words, f"--location={LOCATION}", f"--tenant={TENANT}")
        part.replace(self.cluster_file)

    @property
    def dashboard(self) -> str:
        """Its pages, for a browser on this machine, by the gateway that leads into the cloud."""
        return f"https://127.0.0.1:{gateway.port_of(self.layout, GATEWAY)}/"

    @property
    def key_file(self) -> Path:
        return self.state / "admin.key"

    def environment(self) -> dict[str, str]:
        """By which `aks-flex-rp`, outside, speaks to this provider as its administrator."""
        return {
            "AKS_FLEX_RP_URL": self.dashboard.rstrip("/"),
            "AKS_FLEX_RP_CA": str(self.authority),
            "AKS_FLEX_RP_TOKEN_FILE": str(self.key_file),
            "AKS_FLEX_RP_CLUSTER": CLUSTER,
            "AKS_FLEX_RP_STATE": str(self.state),
        }

    def ask(self, *words: str) -> Result:
        """`aks-flex-rp` as an operator runs it, over HTTP."""
        return run(*PROGRAM, *words, env=self.environment())

    def run(self, *words: str) -> Result:
        """`aks-flex-rp` where the provider runs, on the same state."""
        inside: tuple[str | Path, ...] = (
            *RESOLVING,
            resolver(self.layout),
            *PROGRAM,
            *words,
            f"--config={self.config}",
        )
        return run(*self.cloud.command(*inside))


def resolver(layout: Layout) -> Path:
    """The resolv.conf of programs in the cloud that look names up."""
    return layout.home / "resolv.conf"


def write_resolver(layout: Layout) -> None:
    write_atomically(resolver(layout), f"nameserver {network.DNS}\n")
