"""The lab's Azure with a real resource provider on loopback, as target of template deployments."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.arm.managed_clusters import SUBSCRIPTION_ID
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.nodes.context import ClusterInfo
from tests.service.lab.cloud_harness import OWNER, running_cloud
from tests.service.ports import free_port
from tests.service.rp.api.fake_clusters import FakeClusters, facts
from tests.service.rp.api.service_harness import running, settings
from tests.service.rp.api.traffic_recorder import Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.pki import CertificateAuthority
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running

TEMPLATES = Path(__file__).parents[3] / "templates"
PLANT = ClusterId(SUBSCRIPTION_ID, "edge", "plant")


@dataclass(frozen=True)
class Whole:
    cloud: Cloud
    provider: Running

    @property
    def nodes(self) -> Api:
        """Calls the provider directly, without ARM."""
        return self.provider.admin.at(PLANT)


@contextmanager
def running_whole(authority: CertificateAuthority, room: Path) -> Iterator[Whole]:
    port = free_port()
    with running_cloud(authority, room, f"https://127.0.0.1:{port}", room / "provider" / "tls" / "ca.crt") as cloud:
        own = cloud.directory.service_principal("aks-flex-rp", "of-the-provider")
        cloud.assignments.put(PLANT.key.partition("/providers/")[0], OWNER, own.object_id)
        secret = room / "secret"
        secret.write_text("of-the-provider")
        secret.chmod(0o600)
        audiences = ["api://aks-flex-rp", cloud.url, f"{cloud.url}/"]
        tenant = {"tenant_id": TENANT_ID, "metadata_url": cloud.metadata, "ca_file": cloud.ca, "audiences": audiences}
        azure = {"resource_manager": cloud.url, "authority": cloud.url, "ca_file": cloud.ca, "tenant_id": TENANT_ID}
        made = settings(
            room / "provider",
            listen=f"127.0.0.1:{port}",
            public_url=f"https://127.0.0.1:{port}",
            auth={"tenants": [tenant], "behind_arm": True, "azure_role_assignments": True},
            azure={**azure, "client_id": own.client_id, "client_secret_file": secret},
        )
        data = base64.b64encode(authority.certificate.read_bytes()).decode()
        clusters = FakeClusters.of([ClusterInfo(PLANT, facts(data))])
        with running(made, clusters, Recording()) as provider:
            yield Whole(cloud, provider)
