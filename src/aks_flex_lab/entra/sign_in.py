"""Interactive sign-in: the authorize and logout endpoints, and their HTML pages."""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import re
import uuid
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
SUBMIT = "document.forms[0].submit();"
SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

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
FORM = """<p>to continue to <strong>{application}</strong></p>
{wrong}
<form method="post">
<label for="user">User name</label>
<input id="user" name="username" autocomplete="username" required value="{user}"{user_state}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required{password_state}>
<button class="first" name="answer" value="sign-in">Sign in</button>
<button name="answer" value="cancel" formnovalidate>Cancel</button>
</form>"""
HIDDEN = '<input type="hidden" name="{name}" value="{value}">'
BACK = """<p>You are being taken back to the application.</p>
<form method="post" action="{action}">
{fields}
<button class="first">Continue</button>
</form>
<script>{script}</script>"""


def sign_in_page(application: str, user: str, wrong: str = "") -> HTMLResponse:
    alert = f'<p role="alert" id="wrong">{html.escape(wrong)}</p>' if wrong else ""
    state = ' aria-invalid="true" aria-describedby="wrong"' if wrong else ""
    # With a user name, focus the password field.
    focus = " autofocus"
    states = {"user_state": state + ("" if user else focus), "password_state": state + (focus if user else "")}
    body = FORM.format(application=html.escape(application), wrong=alert, user=html.escape(user), **states)
    return html_page("Sign in", body)


def form_post_page(action: str, fields: Mapping[str, str]) -> HTMLResponse:
    """Returns the form_post response: a form that submits itself, or that the user submits."""
    hidden = (HIDDEN.format(name=html.escape(name), value=html.escape(value)) for name, value in fields.items())
    return html_page("Signed in", BACK.format(action=html.escape(action), fields="\n".join(hidden), script=SUBMIT))


def html_page(title: str, body: str, status: int = 200) -> HTMLResponse:
    # No form-action: browsers would also apply it to later redirects of the application.
    policy = (
        f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SUBMIT)}'; img-src data:; "
        "frame-ancestors 'none'; base-uri 'none'"
    )
    content = PAGE.format(title=html.escape(title), style=STYLE, body=body)
    return HTMLResponse(content, status, {**SECURITY_HEADERS, "Content-Security-Policy": policy})


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


RESPONSE_MODES = ("query", "form_post")
PKCE_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True)
class AuthorizeRequest:
    """A valid authorization request of a registered application with a registered redirect URI."""

    client: EntraPrincipal
    redirect: str
    parameters: Mapping[str, str]

    @property
    def mode(self) -> str:
        requested = self.parameters.get("response_mode", "query")
        return requested if requested in RESPONSE_MODES else "query"

    def respond(self, parameters: Mapping[str, str]) -> Response:
        state = {"state": self.parameters["state"]} if "state" in self.parameters else {}
        fields = {**parameters, **state}
        if self.mode == "form_post":
            return form_post_page(self.redirect, fields)
        joint = "&" if "?" in self.redirect else "?"
        return RedirectResponse(f"{self.redirect}{joint}{urlencode(fields)}", 303, SECURITY_HEADERS)

    def respond_error(self, refusal: EntraError, **names: str) -> Response:
        return self.respond({"error": refusal.error, "error_description": refusal.text(**names)})


class SignInPages:
    def __init__(self, mint: TokenIssuer, codes: AuthorizationCodes) -> None:
        self._mint = mint
        self._codes = codes

    def routes(self) -> list[Route]:
        return [
            Route("/{tenant}/oauth2/v2.0/authorize", self.authorize, methods=["GET", "POST"]),
            Route("/{tenant}/oauth2/v2.0/logout", self.sign_out),
        ]

    async def authorize(self, request: Request) -> Response:
        question = self._question(request)
        if isinstance(question, str):
            alert = f'<p role="alert">{html.escape(question)}</p>'
            return html_page("Sorry, but we're having trouble signing you in", alert, 400)
        if refused := _check_request(question):
            return refused
        if request.method == "GET":
            return sign_in_page(question.client.name, question.parameters.get("login_hint", ""))
        return self._answered(question, dict(parse_qsl((await request.body()).decode(errors="replace"))))

    async def sign_out(self, request: Request) -> Response:
        """Redirects to a registered URI. Sessions do not exist, so that nothing else is necessary."""
        redirect = request.query_params.get("post_logout_redirect_uri", "")
        ours = any(redirect in each.redirect_uris for each in self._mint.directory.all())
        return (
            RedirectResponse(redirect, 303, SECURITY_HEADERS)
            if redirect and ours
            else html_page("You signed out of your account", "<p>You may close this page.</p>")
        )

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
            return sign_in_page(question.client.name, user, found.text(user=user))
        return question.respond(self._signed_in(question, found))

    def _signed_in(self, question: AuthorizeRequest, user: EntraPrincipal) -> dict[str, str]:
        parameters = question.parameters
        grant = SignInGrant(
            user.object_id,
            question.client.client_id,
            question.redirect,
            parameters["scope"],
            parameters.get("nonce", ""),
            parameters.get("code_challenge", ""),
        )
        info = {"client_info": self._mint.client_info(user)} if parameters.get("client_info") == "1" else {}
        return {"code": self._codes.issue(grant), **info, "session_state": str(uuid.uuid4())}


def _check_request(question: AuthorizeRequest) -> Response | None:
    """Validates the other parameters. Errors are returned to the application."""
    parameters = question.parameters
    response_type, mode = parameters.get("response_type", ""), parameters.get("response_mode", "query")
    if response_type != "code":
        return question.respond_error(aadsts.NO_RESPONSE_TYPE, asked=response_type)
    if mode not in RESPONSE_MODES:
        return question.respond_error(aadsts.NO_RESPONSE_MODE, asked=mode)
    if "openid" not in parameters.get("scope", "").split():
        return question.respond_error(aadsts.MISSING_PARAMETER, name="scope")
    if "code_challenge" in parameters and not (
        parameters.get("code_challenge_method") == "S256"
        and bool(PKCE_CHALLENGE.fullmatch(parameters["code_challenge"]))
    ):
        return question.respond_error(aadsts.NO_CHALLENGE_METHOD)
    return question.respond_error(aadsts.NOBODY_SIGNED_IN) if parameters.get("prompt") == "none" else None


def authenticate(user: EntraPrincipal | None, password: str) -> EntraPrincipal | EntraError:
    if user is None:
        return aadsts.NO_USER
    if not hmac.compare_digest(password.encode(), user.secret.encode()):
        return aadsts.WRONG_PASSWORD
    return user if user.enabled else aadsts.USER_DISABLED
