"""The lab's Azure with a real service behind it, and users with different roles."""

from __future__ import annotations

import base64
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.pki import CertificateAuthority
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.nodes.context import ClusterInfo
from tests.azure_cli import Az, build_extension
from tests.service.lab.cloud_harness import CLUSTER, running_cloud
from tests.service.ports import free_port
from tests.service.rp.api.fake_clusters import FakeClusters, facts
from tests.service.rp.api.service_harness import PLENTY, running, settings
from tests.service.rp.api.simulated_fleet import SimulatedFleet
from tests.service.rp.api.traffic_recorder import Recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificatePair
    from aks_flex_rp.settings import ServiceSettings
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running

AUDIENCE = "api://aks-flex-rp"
ROLES = ("owner", "contributor", "reader")
PLANT = parse_cluster_id(CLUSTER)
assert PLANT


@dataclass(frozen=True)
class Site:
    """A cloud, the service behind it, and the extension."""

    cloud: Cloud
    service: Running
    wheel: Path
    pair: CertificatePair

    @property
    def admin(self) -> Api:
        assert PLANT
        return self.service.admin.at(PLANT)

    def signed_in(self, role: str, folder: Path) -> Az:
        """Returns the az of a user with this role."""
        az = Az.at(self.cloud, folder)
        az.run("extension", "add", "--source", str(self.wheel), "--yes")
        [principal] = [each for each in self.cloud.directory.all() if each.name == role]
        az.sign_in(principal)
        az.run("config", "set", f"aks_flex_node.rp_audience={AUDIENCE}")
        return az


class SiteFleet(SimulatedFleet):
    """A pool of simulated nodes in the cluster of the site."""

    @property
    def api(self) -> Api:
        assert PLANT
        return self.service.admin.at(PLANT)


@contextmanager
def running_site(room: Path) -> Iterator[Site]:
    port, authority = free_port(), CertificateAuthority(room / "pki")
    authority.ensure()
    pair = authority.issue("localhost", "localhost", names=("localhost", "127.0.0.1"))
    (room / "cloud").mkdir()
    with ExitStack() as stack:
        cloud = stack.enter_context(running_cloud(authority, room / "cloud", f"https://localhost:{port}"))
        made = _settings(cloud, room / "state", port, pair)
        # The path of a CA created by the service, where tests look for it.
        (room / "state" / "tls").mkdir(parents=True)
        (room / "state" / "tls" / "ca.crt").write_bytes(authority.certificate.read_bytes())
        assert PLANT
        known = ClusterInfo(PLANT, facts(base64.b64encode(authority.certificate.read_bytes()).decode()))
        service = stack.enter_context(running(made, FakeClusters.of([known]), Recording()))
        yield Site(cloud, service, build_extension(room / "wheel"), pair)


def _settings(cloud: Cloud, state: Path, port: int, pair: CertificatePair) -> ServiceSettings:
    people = {role: cloud.directory.service_principal(role, f"secret-of-{role}") for role in ROLES}
    where = {"tenant_id": TENANT_ID, "metadata_url": cloud.metadata, "ca_file": cloud.ca}
    tenant = {**where, "audiences": [AUDIENCE, cloud.url]}
    grants = [{"role": role, "scope": CLUSTER, "principal": each.object_id} for role, each in people.items()]
    return settings(
        state,
        listen=f"127.0.0.1:{port}",
        public_url=f"https://localhost:{port}",
        auth={"tenants": [tenant], "behind_arm": True, "roles": grants},
        limits=PLENTY,
        nodes={"allow_exec": True},
        tls={"certificate_file": pair.certificate, "key_file": pair.key},
    )
