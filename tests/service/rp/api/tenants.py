"""A tenant on loopback that signs tokens and publishes its keys, as Entra ID does."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_rp.auth.auth_settings import TenantSettings
from tests.service.http_servers import Handler, listening
from tests.unit.rp.auth.token_issuer import AUDIENCE, JWKS, TENANT, Issuer, bearer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority

METADATA = "/{}/v2.0/.well-known/openid-configuration"
KEYS = "/{}/discovery/v2.0/keys"


@dataclass(frozen=True)
class Tenant:
    issuer: Issuer
    url: str
    ca: Path
    id: str = TENANT

    @property
    def settings(self) -> TenantSettings:
        where = f"{self.url}{METADATA.format(self.id)}"
        return TenantSettings(tenant_id=self.id, metadata_url=where, ca_file=str(self.ca), audiences=(AUDIENCE,))

    def application(self, client_id: str, **changes: Any) -> str:
        """Returns the Authorization header of a service principal; its object ID is derived from
        its application ID.
        """
        object_id = client_id[:-1] + "0"
        who = {"appid": client_id, "oid": object_id, "sub": object_id, "app_displayname": f"app {client_id[:8]}"}
        home = {} if self.id == TENANT else {"tid": self.id, "iss": self.issuer.issuer}
        return bearer(self.issuer.sign(**{**who, **home, **changes}))


@contextmanager
def running_tenant(authority: CertificateAuthority, tenant: str = TENANT) -> Iterator[Tenant]:
    issuer = Issuer() if tenant == TENANT else Issuer(issuer=f"https://login.example/{tenant}/v2.0")
    pair = authority.issue("localhost", "localhost", names=("localhost",))

    class Answers(Handler):
        def do_GET(self) -> None:  # noqa: N802 - http.server's name
            shown = issuer.fetch(JWKS) if self.path == KEYS.format(tenant) else None
            if self.path == METADATA.format(tenant):
                shown = {**issuer.fetch(self.path), "jwks_uri": f"{url}{KEYS.format(tenant)}"}
            self.respond(200 if shown else 404, json.dumps(shown or {}).encode())

    with listening(Answers, pair) as url:
        yield Tenant(issuer, url, authority.certificate, tenant)
