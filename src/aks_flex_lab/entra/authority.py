"""The endpoints of Entra ID that az, MSAL and azure-identity request: discovery, keys and tokens."""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse
from starlette.routing import Route

from aks_flex_lab.entra import aadsts
from aks_flex_lab.entra import grants as entra_grants
from aks_flex_lab.entra.aadsts import EntraError
from aks_flex_lab.entra.device_codes import DEVICE_GRANT, DeviceCodes, DevicePages
from aks_flex_lab.entra.grants import AuthorizationCodes
from aks_flex_lab.entra.sign_in import SignInPages, authenticate, read_form
from aks_flex_lab.entra.tokens import TOKEN_SECONDS, resource_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.entra.tokens import TokenIssuer

Form = dict[str, str]
GRAPH_RESOURCE = "https://graph.microsoft.com"  # audience of an access token when only an identity token is requested
AUTH_METHODS = ["client_secret_post", "private_key_jwt"]


class EntraAuthority:
    def __init__(self, mint: TokenIssuer) -> None:
        self._mint = mint
        self._codes = AuthorizationCodes()
        self._device_codes = DeviceCodes()

    def routes(self) -> list[Route]:
        return [
            Route("/common/discovery/instance", self.instances),
            Route("/common/userrealm/{user}", self.realm),
            Route("/{tenant}/v2.0/.well-known/openid-configuration", self.metadata),
            Route("/{tenant}/.well-known/openid-configuration", self.older_metadata),
            Route("/{tenant}/discovery/v2.0/keys", self.keys),
            Route("/{tenant}/oauth2/v2.0/token", self.token, methods=["POST"]),
            *SignInPages(self._mint, self._codes).routes(),
            *DevicePages(self._mint, self._device_codes).routes(),
        ]

    async def instances(self, _: Request) -> Response:
        """Instance discovery: confirms the lab's authority to clients that validate it."""
        host = self._mint.base.removeprefix("https://")
        metadata = [{"preferred_network": host, "preferred_cache": host, "aliases": [host]}]
        where = f"{self._mint.base}/{self._mint.directory.tenant}/v2.0/.well-known/openid-configuration"
        return JSONResponse({"tenant_discovery_endpoint": where, "api-version": "1.1", "metadata": metadata})

    async def realm(self, request: Request) -> Response:
        """Realm discovery: users sign in here with a password, not with a federated provider."""
        user = request.path_params["user"]
        found = {"account_type": "Managed", "domain_name": user.rpartition("@")[2], "cloud_instance_name": "lab"}
        return JSONResponse({"ver": "1.0", **found})

    async def metadata(self, request: Request) -> Response:
        return self._metadata(request, self._mint.issuer)

    async def older_metadata(self, request: Request) -> Response:
        return self._metadata(request, self._mint.older_issuer)

    def _metadata(self, request: Request, issuer: str) -> Response:
        if not self._mint.directory.has_tenant(request.path_params["tenant"]):
            return aadsts.NO_TENANT.response(tenant=request.path_params["tenant"])
        here = f"{self._mint.base}/{self._mint.directory.tenant}"
        return JSONResponse(
            {
                "issuer": issuer,
                "token_endpoint": f"{here}/oauth2/v2.0/token",
                "authorization_endpoint": f"{here}/oauth2/v2.0/authorize",
                "device_authorization_endpoint": f"{here}/oauth2/v2.0/devicecode",
                "jwks_uri": f"{here}/discovery/v2.0/keys",
                "response_types_supported": ["code", "id_token", "token"],
                "response_modes_supported": ["query"],
                "subject_types_supported": ["pairwise"],
                "id_token_signing_alg_values_supported": ["RS256"],
                "token_endpoint_auth_methods_supported": AUTH_METHODS,
                "tenant_region_scope": None,
            }
        )

    async def keys(self, _: Request) -> Response:
        return JSONResponse(self._mint.keys.jwks())

    async def token(self, request: Request) -> Response:
        tenant = request.path_params["tenant"]
        if not self._mint.directory.has_tenant(tenant):
            return aadsts.NO_TENANT.response(tenant=tenant)
        form = await read_form(request)
        grant = form.get("grant_type", "")
        if grant in {"client_credentials", "password"} and not resource_of(form.get("scope", "")):
            return aadsts.NO_SCOPE.response()
        grants = {
            "authorization_code": self._authorization_code_grant,
            "client_credentials": self._client_credentials_grant,
            DEVICE_GRANT: self._device_code_grant,
            "password": self._password_grant,
            "refresh_token": self._refresh_token_grant,
        }
        return grants[grant](form) if grant in grants else aadsts.NO_GRANT.response(grant=grant)

    def _client_credentials_grant(self, form: Form) -> Response:
        found = self._client(form)
        if isinstance(found, EntraError):
            return found.response(client=form.get("client_id", ""))
        return _token_response({"access_token": self._mint.access_token(found, resource_of(form["scope"]))})

    def _authorization_code_grant(self, form: Form) -> Response:
        """Redeems an authorization code of a user for an authenticated application."""
        client, redirect = self._client(form), form.get("redirect_uri", "")
        if isinstance(client, EntraError):
            return client.response(client=form.get("client_id", ""))
        verifier = form.get("code_verifier", "")
        found = self._codes.redeem(form.get("code", ""), client.client_id, redirect, verifier)
        if isinstance(found, EntraError):
            return found.response(redirect=redirect)
        user = self._mint.directory.find(found.user, "user")
        if user is None:
            return aadsts.NO_USER.response(user=found.user)
        return self._signed_in(user, {"scope": found.scope, "client_id": client.client_id}, found.nonce)

    def _device_code_grant(self, form: Form) -> Response:
        """Redeems the device code of a public client after a user has entered its user code."""
        client = form.get("client_id", "")
        found = self._device_codes.redeem(form.get("device_code", ""), client)
        if isinstance(found, EntraError):
            return found.response()
        user = self._mint.directory.find(found.user, "user")
        if user is None:
            return aadsts.NO_USER.response(user=found.user)
        return self._signed_in(user, {"scope": found.scope, "client_id": client})

    def _client(self, form: Form) -> EntraPrincipal | EntraError:
        """Returns the principal of the authenticated client."""
        found = self._mint.directory.find(form.get("client_id", ""), "servicePrincipal", "managedIdentity")
        return aadsts.NO_CLIENT if found is None else self._refusal(found, form) or found

    def _refusal(self, principal: EntraPrincipal, form: Form) -> EntraError | None:
        """Returns the error of a client's authentication, or None."""
        secret, assertion = form.get("client_secret", ""), form.get("client_assertion", "")
        if not principal.enabled:
            return aadsts.DISABLED
        if form.get("client_assertion_type") == entra_grants.ASSERTION_TYPE and assertion:
            here = f"{self._mint.base}/{self._mint.directory.tenant}"
            return entra_grants.check_assertion(
                principal, assertion, [f"{here}/oauth2/v2.0/token", f"{here}/v2.0", f"{here}/"]
            )
        if not secret:
            return aadsts.NO_SECRET
        secrets_known = [one for one in (principal.secret, *principal.older_secrets) if one]
        if not any(hmac.compare_digest(secret.encode(), one.encode()) for one in secrets_known):
            return aadsts.WRONG_SECRET
        return aadsts.EXPIRED_SECRET if 0 < principal.secret_expires <= time.time() else None

    def _password_grant(self, form: Form) -> Response:
        user = form.get("username", "")
        found = authenticate(self._mint.directory.find(user, "user"), form.get("password", ""))
        return found.response(user=user) if isinstance(found, EntraError) else self._signed_in(found, form)

    def _refresh_token_grant(self, form: Form) -> Response:
        """Redeems a refresh token. A registered application must authenticate; others are public clients, as az."""
        client = self._mint.directory.find(form.get("client_id", ""), "servicePrincipal")
        if client and (refusal := self._refusal(client, form)):
            return refusal.response(client=client.client_id)
        found = self._mint.redeem_refresh_token(form.get("refresh_token", ""))
        return self._signed_in(found, form) if found else aadsts.OLD_REFRESH.response()

    def _signed_in(self, user: EntraPrincipal, form: Form, nonce: str = "") -> Response:
        if not user.enabled:
            return aadsts.USER_DISABLED.response()
        client, scope = form.get("client_id", ""), form.get("scope", "")
        return _token_response(
            {
                "access_token": self._mint.access_token(user, resource_of(scope) or GRAPH_RESOURCE, client),
                "refresh_token": self._mint.refresh_token(user),
                "id_token": self._mint.id_token(user, client, nonce),
                "client_info": self._mint.client_info(user),
                "scope": scope,
            },
        )


def _token_response(tokens: Mapping[str, Any]) -> Response:
    document = {"token_type": "Bearer", "expires_in": TOKEN_SECONDS, "ext_expires_in": TOKEN_SECONDS, **tokens}
    return JSONResponse(document, headers={"Cache-Control": "no-store"})
