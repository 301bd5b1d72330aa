"""The device code flow (RFC 8628): issues codes, shows the page on which a user enters one, and redeems them."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import Route

from aks_flex_lab.entra import aadsts
from aks_flex_lab.entra.aadsts import EntraError
from aks_flex_lab.entra.sign_in import authenticate, html_page, read_form, sign_in_page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aks_flex_lab.entra.tokens import TokenIssuer

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
DEVICE_PAGE = "/devicelogin"
CODE_SECONDS = 900
POLL_SECONDS = 1  # Entra ID: 5
CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"


@dataclass(frozen=True)
class DeviceGrant:
    """A device code, and the user who entered its user code."""

    user_code: str
    client: str
    scope: str
    end: float
    user: str = ""  # object ID; empty until a user signs in
    declined: bool = False


class DeviceCodes:
    """Device codes in memory. A restart loses them."""

    def __init__(self) -> None:
        self._grants: dict[str, DeviceGrant] = {}

    def issue(self, client: str, scope: str) -> tuple[str, str]:
        """Returns a device code and its user code."""
        device, user = secrets.token_urlsafe(48), "".join(secrets.choice(CODE_LETTERS) for _ in range(9))
        self._grants[device] = DeviceGrant(user, client, scope, time.monotonic() + CODE_SECONDS)
        return device, user

    def answer(self, user_code: str, user: str, *, declined: bool = False) -> bool:
        """Records the user of a code. Returns False if the code is unknown, expired or was used before."""
        for device, grant in self._grants.items():
            is_open = not grant.user and not grant.declined and time.monotonic() < grant.end
            if is_open and secrets.compare_digest(grant.user_code, user_code.strip().upper()):
                self._grants[device] = replace(grant, user=user, declined=declined)
                return True
        return False

    def redeem(self, device: str, client: str) -> DeviceGrant | EntraError:
        """Returns the grant of a device code, once, or the error that the client gets."""
        grant = self._grants.get(device)
        if grant is None or grant.client.lower() != client.lower():
            return aadsts.BAD_DEVICE_CODE
        if time.monotonic() >= grant.end:
            return aadsts.OLD_DEVICE_CODE
        if grant.declined:
            return aadsts.DEVICE_DECLINED
        if not grant.user:
            return aadsts.DEVICE_PENDING
        return self._grants.pop(device)


class DevicePages:
    def __init__(self, mint: TokenIssuer, codes: DeviceCodes) -> None:
        self._mint = mint
        self._codes = codes

    def routes(self) -> list[Route]:
        return [
            Route("/{tenant}/oauth2/v2.0/devicecode", self.start, methods=["POST"]),
            Route(DEVICE_PAGE, self.page, methods=["GET", "POST"]),
        ]

    async def start(self, request: Request) -> Response:
        """Issues a code. Public clients, such as the Azure CLI, exist in every tenant."""
        tenant = request.path_params["tenant"]
        if not self._mint.directory.has_tenant(tenant):
            return aadsts.NO_TENANT.response(tenant=tenant)
        form = await read_form(request)
        if missing := next((name for name in ("client_id", "scope") if not form.get(name)), None):
            return aadsts.MISSING_PARAMETER.response(name=missing)
        device, user_code = self._codes.issue(form["client_id"], form["scope"])
        address = f"{self._mint.base}{DEVICE_PAGE}"
        message = f"To sign in, use a web browser to open the page {address} and enter the code {user_code}."
        document = {
            "user_code": user_code,
            "device_code": device,
            "verification_uri": address,
            "expires_in": CODE_SECONDS,
            "interval": POLL_SECONDS,
            "message": f"{message[:-1]} to authenticate.",
        }
        return JSONResponse(document, headers={"Cache-Control": "no-store"})

    async def page(self, request: Request) -> Response:
        if request.method == "GET":
            return _page()
        form = await read_form(request)
        code, name = form.get("code", ""), form.get("username", "")
        if form.get("answer") == "cancel":
            self._codes.answer(code, "", declined=True)
            return html_page("Sign-in cancelled", "<p>You may close this page.</p>")
        user = authenticate(self._mint.directory.find(name, "user"), form.get("password", ""))
        if isinstance(user, EntraError):
            return _page(code, user.text(user=name))
        if not self._codes.answer(code, user.object_id):
            return _page("", "That code is not valid or has expired.")
        return html_page("You have signed in on your device", "<p>You may close this page.</p>")


def _page(code: str = "", wrong: str = "") -> Response:
    return sign_in_page("Enter code to allow access", "with the code of your device", wrong=wrong, code=code)
