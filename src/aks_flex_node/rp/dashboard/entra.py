"""Signing in with Entra ID: the authorization code flow with PKCE, by MSAL, and its outcome verified by ourselves."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
import warnings
from typing import TYPE_CHECKING, Any

from aks_flex_node.rp import private_files
from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.auth.refusals import Unauthenticated
from aks_flex_node.rp.auth.settings import ENTRA, AuthSettings, TenantSettings
from aks_flex_node.rp.auth.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from msal import ConfidentialClientApplication  # type: ignore[import-untyped]
    from requests import Session

    from aks_flex_node.rp.callers import Caller
    from aks_flex_node.rp.dashboard_settings import EntraSignIn
    from aks_flex_node.rp.sealing import Sealer

FLOW_COOKIE = "__Host-aks-flex-flow"
FLOW_SECONDS = 600.0
LONGEST = 2000  # characters of an address that is kept meanwhile: a cookie has 4 KiB
SECONDS = 10.0  # for one question to Entra
FLOW = "sign-in under way"  # what a sealed flow is for
DONE = "/ui/sign-in/entra/done"

log = logging.getLogger(__name__)


class Entra:
    """One application of one tenant. MSAL blocks, so it works in threads."""

    def __init__(
        self, settings: EntraSignIn, authority: str, ca_file: str | None, origin: str, sealer: Sealer
    ) -> None:
        self._settings, self._sealer = settings, sealer
        self.authority, self._ca_file = authority, ca_file
        self._redirect = origin + DONE
        metadata = f"{authority}/{settings.tenant_id}/v2.0/.well-known/openid-configuration"
        tenant = TenantSettings(
            tenant_id=settings.tenant_id, metadata_url=metadata, audiences=(settings.client_id,), ca_file=ca_file
        )
        self._tokens = Tokens(AuthSettings(tenants=(tenant,)))

    async def start(self, after: str) -> tuple[str, str]:
        """Where the browser is to go, and what it is to keep meanwhile; `after` is where it was going."""
        flow = await asyncio.to_thread(self._begin)
        where = flow.pop("auth_uri")
        kept = {"flow": flow, "after": after if len(after) < LONGEST else "/", "until": time.time() + FLOW_SECONDS}
        sealed = self._sealer.seal(json.dumps(kept).encode(), FLOW)
        return where, base64.urlsafe_b64encode(sealed).decode()

    async def finish(self, kept: str, answered: Mapping[str, str]) -> tuple[Caller, str]:
        """Who has signed in, and where they were going. The code is worth nothing without what the browser kept."""
        flow, after = self._opened(kept)
        result = await asyncio.to_thread(self._redeem, flow, dict(answered))
        try:
            return await self._tokens.caller(f"Bearer {result['id_token']}"), after
        except Unauthenticated as refused:
            log.warning("an id token was refused: %s", refused.message)
            raise _failed("Entra's answer could not be verified.") from None

    def _begin(self) -> dict[str, Any]:
        with warnings.catch_warnings():
            # MSAL would rather have the answer posted by Entra's page; a browser sends no cookie of ours with that.
            warnings.filterwarnings("ignore", "response_mode='form_post'")
            flow: dict[str, Any] = self._application().initiate_auth_code_flow([], redirect_uri=self._redirect)
        return flow

    def _redeem(self, flow: dict[str, Any], answered: dict[str, str]) -> dict[str, Any]:
        application = self._application()
        try:
            result: dict[str, Any] = application.acquire_token_by_auth_code_flow(flow, answered)
        except OSError as error:
            raise self._away(error) from None
        except (ValueError, RuntimeError):  # another state or nonce than we gave: somebody else's answer
            raise _failed("Entra's answer is not to the question that this browser asked.") from None
        if "id_token" not in result:
            said = str(result.get("error_description") or result.get("error") or "no reason was given")
            log.warning("Entra refused a sign-in: %s", said.splitlines()[0])
            raise _failed(f"Entra did not let you in: {said.splitlines()[0][:300]}")
        return result

    def _opened(self, kept: str) -> tuple[dict[str, Any], str]:
        try:
            found = json.loads(self._sealer.open(base64.urlsafe_b64decode(kept), FLOW))
        except Exception:  # whatever a stranger has put there
            raise _failed("This browser has not begun to sign in, or it took too long.") from None
        if found["until"] < time.time():
            raise _failed("It took too long.")
        return found["flow"], found["after"]

    def _application(self) -> ConfidentialClientApplication:
        """Made for each sign-in, which are rare: so a secret that was replaced is used at once."""
        from msal import ConfidentialClientApplication  # noqa: PLC0415 - most services need none

        try:
            return ConfidentialClientApplication(
                self._settings.client_id,
                client_credential=self._credential(),
                authority=f"{self.authority}/{self._settings.tenant_id}",
                instance_discovery=self.authority == ENTRA,
                http_client=_verifying(self._ca_file),
            )
        except (OSError, ValueError) as error:  # it asks the authority who it is
            raise self._away(error) from None

    def _away(self, error: Exception) -> ArmError:
        log.warning("%s cannot be asked: %s", self.authority, error)
        message = f"Entra ID ({self.authority}) cannot be reached from this service now. Try again in a minute."
        return ArmError(503, "ServiceUnavailable", message, headers={"Retry-After": "60"})

    def _credential(self) -> Any:
        if certificate := self._settings.client_certificate_file:
            pem = private_files.read(certificate).decode()
            return {"private_key": pem, "public_certificate": pem}
        secret = self._settings.client_secret_file
        return private_files.read(secret).decode().strip() if secret else None


def _failed(why: str) -> ArmError:
    return ArmError(401, "SignInFailed", f"{why} Sign in again.")


def _verifying(ca_file: str | None) -> Session:
    """Trusts our own CA whatever the environment says of others, which `requests` would believe more."""
    from requests import Session  # noqa: PLC0415

    class Verifying(Session):
        def request(self, *words: Any, **more: Any) -> Any:
            more |= {"timeout": SECONDS, **({"verify": ca_file} if ca_file else {})}
            return super().request(*words, **more)

    return Verifying()
