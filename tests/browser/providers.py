"""The real service on loopback with TLS, its pages, SQLite, and a cluster simulated in memory."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab.entra.directory import TENANT_ID
from tests.browser.fleet_data import Fleet
from tests.service.ports import free_port
from tests.service.rp.api.fake_clusters import PLANT, FakeClusters, known_clusters
from tests.service.rp.api.service_harness import PLENTY, running, settings
from tests.service.rp.api.traffic_recorder import Recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.pki import CertificateAuthority, CertificatePair
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.rp.api.service_harness import Running

ROLES = ("owner", "contributor", "reader")
PASSWORD = "a pass word"  # of all users of Entra ID


@dataclass(frozen=True)
class Provider:
    running: Running

    @property
    def url(self) -> str:
        return self.running.service.settings.origin

    @property
    def key(self) -> str:
        """Returns the local admin key."""
        return self.running.service.settings.admin_key_file.read_text().strip()

    @property
    def fleet(self) -> Fleet:
        return Fleet(self.running)


@dataclass(frozen=True)
class EntraProvider(Provider):
    """A service that users of the lab's tenant can sign in to."""

    owner: EntraPrincipal
    contributor: EntraPrincipal
    reader: EntraPrincipal
    stranger: EntraPrincipal  # a user of the tenant without a role


@contextmanager
def running_pages(
    authority: CertificateAuthority, certificate: CertificatePair, room: Path, **words: Any
) -> Iterator[Provider]:
    """Runs the service with its pages; `words` are settings of the service."""
    tls = {"certificate_file": certificate.certificate, "key_file": certificate.key}
    made = settings(room / "state", **{"limits": PLENTY, "tls": tls, **words})
    facts = known_clusters(base64.b64encode(authority.certificate.read_bytes()).decode())
    service = running(made, FakeClusters.of(facts), Recording())
    _write_ca(made.state_dir, authority)
    # In a separate thread: Playwright's event loop runs in this one, and a thread has only one.
    with ThreadPoolExecutor(1) as thread:
        provider = Provider(thread.submit(service.__enter__).result())
        try:
            provider.fleet.register()
            yield provider
        finally:
            thread.submit(service.__exit__, None, None, None).result()


def _write_ca(state: Path, authority: CertificateAuthority) -> None:
    """Writes the CA to the path where clients of a service with its own CA look for it."""
    (state / "tls").mkdir(parents=True, mode=0o700)
    (state / "tls" / "ca.crt").write_bytes(authority.certificate.read_bytes())


@contextmanager
def running_with_entra(
    authority: CertificateAuthority, certificate: CertificatePair, cloud: Cloud, room: Path
) -> Iterator[EntraProvider]:
    origin = f"https://127.0.0.1:{free_port()}"
    people = {role: cloud.directory.user(f"{role}@flex.internal", PASSWORD) for role in (*ROLES, "stranger")}
    itself = cloud.directory.service_principal(
        "AKS Flex Node",
        "the secret of the application",
        redirect_uris=(f"{origin}/ui/sign-in/entra/done", f"{origin}/"),
    )
    secret = room / "client-secret"
    secret.touch(mode=0o600)
    secret.write_text(itself.secret)
    tenant = {
        "tenant_id": TENANT_ID,
        "metadata_url": cloud.metadata,
        "ca_file": cloud.ca,
        "audiences": [itself.client_id],
    }
    grants = [{"role": role, "scope": str(PLANT), "principal": people[role].object_id} for role in ROLES]
    words = {
        "listen": origin.removeprefix("https://"),
        "public_url": origin,
        "auth": {"tenants": [tenant], "roles": grants},
        "azure": {"authority": cloud.url, "ca_file": cloud.ca},
        "dashboard": {
            "entra": {"tenant_id": TENANT_ID, "client_id": itself.client_id, "client_secret_file": secret},
        },
    }
    with running_pages(authority, certificate, room, **words) as provider:
        yield EntraProvider(provider.running, **people)
