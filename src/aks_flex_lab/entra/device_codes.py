"""The device code flow (RFC 8628): issues codes, shows the page on which a user enters one, and redeems them."""

from __future__ import annotations

import html
import secrets
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.responses import JSONResponse
from starlette.routing import Route

from aks_flex_lab.entra import aadsts
from aks_flex_lab.entra.aadsts import EntraError
from aks_flex_lab.entra.sign_in import authenticate, html_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from aks_flex_lab.entra.tokens import TokenIssuer

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
DEVICE_PAGE = "/devicelogin"
CODE_SECONDS = 900
POLL_SECONDS = 1  # Entra ID: 5
CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
FORM = """{alert}
<form method="post">
<label for="code">Code</label>
<input id="code" name="code" autocomplete="off" required value="{code}">
<label for="user">User name</label>
<input id="user" name="username" autocomplete="username" required>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required>
<button class="first" name="answer" value="sign-in">Sign in</button>
<button name="answer" value="cancel" formnovalidate>Cancel</button>
</form>"""


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

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._grants: dict[str, DeviceGrant] = {}
        self._lock = threading.Lock()

    def issue(self, client: str, scope: str) -> tuple[str, str]:
        """Returns a device code and its user code."""
        device, user = secrets.token_urlsafe(48), "".join(secrets.choice(CODE_LETTERS) for _ in range(9))
        with self._lock:
            self._grants[device] = DeviceGrant(user, client, scope, self._clock() + CODE_SECONDS)
        return device, user

    def answer(self, user_code: str, user: str, *, declined: bool = False) -> bool:
        """Records the user of a code. Returns False if the code is unknown, expired or was used before."""
        with self._lock:
            for device, grant in self._grants.items():
                open_code = not grant.user and not grant.declined and self._clock() < grant.end
                if secrets.compare_digest(grant.user_code, user_code.strip().upper()) and open_code:
                    self._grants[device] = replace(grant, user=user, declined=declined)
                    return True
        return False

    def redeem(self, device: str, client: str) -> DeviceGrant | EntraError:
        """Returns the grant of a device code, once, or the error that the client gets."""
        with self._lock:
            grant = self._grants.get(device)
            if grant is None or grant.client.lower() != client.lower():
                return aadsts.BAD_DEVICE_CODE
            if self._clock() >= grant.end:
                return aadsts.OLD_DEVICE_CODE
            if grant.declined:
                return aadsts.DEVICE_DECLINED
            if not grant.user:
                return aadsts.DEVICE_PENDING
            del self._grants[device]
            return grant


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
        form = dict(parse_qsl((await request.body()).decode(errors="replace")))
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
            return _form()
        form = dict(parse_qsl((await request.body()).decode(errors="replace")))
        code, name = form.get("code", ""), form.get("username", "")
        if form.get("answer") == "cancel":
            self._codes.answer(code, "", declined=True)
            return html_page("Sign-in cancelled", "<p>You may close this page.</p>")
        user = authenticate(self._mint.directory.find(name, "user"), form.get("password", ""))
        if isinstance(user, EntraError):
            return _form(code, user.text(user=name))
        if not self._codes.answer(code, user.object_id):
            return _form("", "That code is not valid or has expired.")
        return html_page("You have signed in on your device", "<p>You may close this page.</p>")


def _form(code: str = "", wrong: str = "") -> Response:
    alert = f'<p role="alert" id="wrong">{html.escape(wrong)}</p>' if wrong else ""
    return html_page("Enter code to allow access", FORM.format(alert=alert, code=html.escape(code)))
