"""Interactive sign-in: the authorize endpoint and its HTML page."""

from __future__ import annotations

import hmac
import html
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Route

from aks_flex_lab.entra import aadsts
from aks_flex_lab.entra.aadsts import EntraError
from aks_flex_lab.entra.grants import SignInGrant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.entra.grants import AuthorizationCodes
    from aks_flex_lab.entra.tokens import TokenIssuer


STYLE = """
:root { --page: #fff; --text: #111; --line: #767676; --button: #0b5cad; --wrong: #a4262c; color-scheme: light dark }
@media (prefers-color-scheme: dark) {
  :root { --page: #1b1b1b; --text: #f3f3f3; --line: #9a9a9a; --button: #0f6cbd; --wrong: #ff9a9a; }
}
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0; padding: 1rem; background: var(--page); color: var(--text); }
main { max-width: 26rem; margin: 10vh auto 0; overflow-wrap: anywhere; }
label { display: block; margin-top: 1rem; }
input { box-sizing: border-box; width: 100%; font: inherit; padding: .5rem; border: 1px solid var(--line); }
button { font: inherit; padding: .5rem 1.25rem; margin: 1.25rem .5rem 0 0; border: 1px solid var(--line); }
button.first { background: var(--button); border-color: var(--button); color: #fff; }
[role=alert] { color: var(--wrong); }
"""
HEADERS = {"Cache-Control": "no-store"}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - Entra ID of the lab</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""
FORM = """<p>{intro}</p>
{alert}
<form method="post">
{code}<label for="user">User name</label>
<input id="user" name="username" autocomplete="username" required value="{user}">
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required>
<button class="first" name="answer" value="sign-in">Sign in</button>
<button name="answer" value="cancel" formnovalidate>Cancel</button>
</form>"""
CODE = """<label for="code">Code</label>
<input id="code" name="code" autocomplete="off" required value="{code}">
"""


def sign_in_page(title: str, intro: str, user: str = "", wrong: str = "", code: str | None = None) -> HTMLResponse:
    """Returns the page on which a user signs in, with a device code if there is one."""
    alert = f'<p role="alert" id="wrong">{html.escape(wrong)}</p>' if wrong else ""
    field = "" if code is None else CODE.format(code=html.escape(code))
    return html_page(title, FORM.format(intro=html.escape(intro), alert=alert, code=field, user=html.escape(user)))


def html_page(title: str, body: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(PAGE.format(title=html.escape(title), style=STYLE, body=body), status, HEADERS)


PKCE_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True)
class AuthorizeRequest:
    """A valid authorization request of a registered application with a registered redirect URI."""

    client: EntraPrincipal
    redirect: str
    parameters: Mapping[str, str]

    def respond(self, parameters: Mapping[str, str]) -> Response:
        state = {"state": self.parameters["state"]} if "state" in self.parameters else {}
        return RedirectResponse(f"{self.redirect}?{urlencode({**parameters, **state})}", 303, HEADERS)

    def respond_error(self, refusal: EntraError, **names: str) -> Response:
        return self.respond({"error": refusal.error, "error_description": refusal.text(**names)})


class SignInPages:
    def __init__(self, mint: TokenIssuer, codes: AuthorizationCodes) -> None:
        self._mint = mint
        self._codes = codes

    def routes(self) -> list[Route]:
        return [
            Route("/{tenant}/oauth2/v2.0/authorize", self.authorize, methods=["GET", "POST"]),
        ]

    async def authorize(self, request: Request) -> Response:
        question = self._question(request)
        if isinstance(question, str):
            alert = f'<p role="alert">{html.escape(question)}</p>'
            return html_page("Sorry, but we're having trouble signing you in", alert, 400)
        if refused := _check_request(question):
            return refused
        if request.method == "GET":
            return sign_in_page("Sign in", f"to {question.client.name}", question.parameters.get("login_hint", ""))
        return self._answered(question, await read_form(request))

    def _question(self, request: Request) -> AuthorizeRequest | str:
        """Validates client and redirect URI. The page shows errors, because the redirect URI is not trusted."""
        tenant, parameters = request.path_params["tenant"], dict(request.query_params)
        client, redirect = parameters.get("client_id", ""), parameters.get("redirect_uri", "")
        if not self._mint.directory.has_tenant(tenant):
            return aadsts.NO_TENANT.text(tenant=tenant)
        if not client:
            return aadsts.MISSING_PARAMETER.text(name="client_id")
        found = self._mint.directory.find(client, "servicePrincipal")
        if found is None or not found.client_id:
            return aadsts.NO_CLIENT.text(client=client)
        if not found.enabled:
            return aadsts.DISABLED.text(client=client)
        if redirect not in found.redirect_uris:
            return aadsts.WRONG_REDIRECT.text(redirect=redirect, client=client)
        return AuthorizeRequest(found, redirect, parameters)

    def _answered(self, question: AuthorizeRequest, form: Mapping[str, str]) -> Response:
        user = form.get("username", "")
        if form.get("answer") == "cancel":
            return question.respond_error(aadsts.DECLINED)
        found = authenticate(self._mint.directory.find(user, "user"), form.get("password", ""))
        if isinstance(found, EntraError):
            return sign_in_page("Sign in", f"to {question.client.name}", user, found.text(user=user))
        parameters = question.parameters
        grant = SignInGrant(
            found.object_id,
            question.client.client_id,
            question.redirect,
            parameters["scope"],
            parameters.get("nonce", ""),
            parameters.get("code_challenge", ""),
        )
        return question.respond({"code": self._codes.issue(grant), "client_info": self._mint.client_info(found)})


def _check_request(question: AuthorizeRequest) -> Response | None:
    """Validates the other parameters. Errors are returned to the application."""
    parameters = question.parameters
    response_type, mode = parameters.get("response_type", ""), parameters.get("response_mode", "query")
    if response_type != "code":
        return question.respond_error(aadsts.NO_RESPONSE_TYPE, asked=response_type)
    if mode != "query":
        return question.respond_error(aadsts.NO_RESPONSE_MODE, asked=mode)
    if "openid" not in parameters.get("scope", "").split():
        return question.respond_error(aadsts.MISSING_PARAMETER, name="scope")
    if parameters.get("code_challenge_method") != "S256" or not PKCE_CHALLENGE.fullmatch(
        parameters["code_challenge"]
    ):
        return question.respond_error(aadsts.NO_CHALLENGE_METHOD)
    return None


async def read_form(request: Request) -> dict[str, str]:
    return dict(parse_qsl((await request.body()).decode(errors="replace")))


def authenticate(user: EntraPrincipal | None, password: str) -> EntraPrincipal | EntraError:
    if user is None:
        return aadsts.NO_USER
    if not hmac.compare_digest(password.encode(), user.secret.encode()):
        return aadsts.WRONG_PASSWORD
    return user if user.enabled else aadsts.USER_DISABLED
