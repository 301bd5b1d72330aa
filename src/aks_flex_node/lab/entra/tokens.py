"""What the lab's tokens say: as Entra ID's own tokens for Azure Resource Manager, claim by claim."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.entra.signing import unique

if TYPE_CHECKING:
    from aks_flex_node.lab.entra.directory import Directory, Principal
    from aks_flex_node.lab.entra.signing import SigningKeys

REFRESH = "urn:aks-flex-lab:refresh"  # whom a refresh token is made for: nobody but us
REFRESH_SECONDS = 86400


@dataclass(frozen=True)
class Mint:
    directory: Directory
    keys: SigningKeys
    base: str  # where the authority is, such as https://login.flex.internal

    @property
    def issuer(self) -> str:
        """As the newer metadata say it, and identity tokens."""
        return f"{self.base}/{self.directory.tenant}/v2.0"

    @property
    def older_issuer(self) -> str:
        """As the older metadata say it. Access tokens for ARM and for AKS are of the older version."""
        return f"https://sts.windows.net/{self.directory.tenant}/"

    def access(self, principal: Principal, resource: str, client_id: str = "") -> str:
        tenant = self.directory.tenant
        return self.keys.sign(
            {
                **self._times(principal.token_seconds),
                "aud": resource,
                "iss": self.older_issuer,
                "idp": self.older_issuer,
                "appid": principal.client_id or client_id,
                "appidacr": "1" if principal.secret else "2",
                "oid": principal.object_id,
                "sub": principal.object_id,
                "tid": tenant,
                "uti": unique(),
                "ver": "1.0",
                **_own(principal),
            }
        )

    def identity(self, principal: Principal, client_id: str, nonce: str = "") -> str:
        """What tells a program who has signed in, and in answer to which of its questions."""
        claims = {"preferred_username": principal.name, "name": principal.name, "oid": principal.object_id}
        who = {"iss": self.issuer, "aud": client_id, "tid": self.directory.tenant, "sub": principal.object_id}
        more = _groups(principal) | ({"nonce": nonce} if nonce else {})
        times = self._times(principal.token_seconds)
        return self.keys.sign({**times, **who, **claims, **more, "uti": unique(), "ver": "2.0"})

    def refresh(self, principal: Principal) -> str:
        return self.keys.sign({**self._times(REFRESH_SECONDS), "aud": REFRESH, "oid": principal.object_id})

    def refreshed(self, token: str) -> Principal | None:
        claims = self.keys.verified(token, [REFRESH])
        return self.directory.find(str(claims["oid"]), "user") if claims else None

    def client_info(self, principal: Principal) -> str:
        told = json.dumps({"uid": principal.object_id, "utid": self.directory.tenant})
        return base64.urlsafe_b64encode(told.encode()).rstrip(b"=").decode()

    @staticmethod
    def _times(seconds: float) -> dict[str, int]:
        now = int(time.time())
        return {"iat": now, "nbf": now, "exp": now + int(seconds)}


def _own(principal: Principal) -> dict[str, Any]:
    """What differs between programs, machines and people."""
    groups = _groups(principal)
    if principal.kind == "managedIdentity":
        return {"idtyp": "app", "xms_mirid": principal.resource_id, **groups}
    if principal.kind == "servicePrincipal":
        return {"idtyp": "app", **groups}
    named = {"upn": principal.name, "unique_name": principal.name, "scp": "user_impersonation"}
    return {"idtyp": "user", **named, **groups}


def _groups(principal: Principal) -> dict[str, Any]:
    return {"groups": list(principal.groups)} if principal.groups else {}


def resource_of(scope: str) -> str:
    """The audience that a scope asks for: `https://x/.default` is for `https://x`."""
    asked = [each for each in scope.split() if each not in {"openid", "profile", "offline_access", "email"}]
    return asked[0].rpartition("/")[0] if asked and "/" in asked[0] else "".join(asked[:1])
