"""The few pages that a person sees of the lab's Entra ID. They need no script, and run no other than their own."""

from __future__ import annotations

import base64
import hashlib
import html
from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

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
SAFE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}

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


def sign_in(application: str, user: str, wrong: str = "") -> HTMLResponse:
    told = f'<p role="alert" id="wrong">{html.escape(wrong)}</p>' if wrong else ""
    state = ' aria-invalid="true" aria-describedby="wrong"' if wrong else ""
    # Whoever has said their name goes on with the password.
    focus = " autofocus"
    states = {"user_state": state + ("" if user else focus), "password_state": state + (focus if user else "")}
    body = FORM.format(application=html.escape(application), wrong=told, user=html.escape(user), **states)
    return _page("Sign in", body)


def refused(words: str) -> HTMLResponse:
    return _page("Sorry, but we're having trouble signing you in", f'<p role="alert">{html.escape(words)}</p>', 400)


def signed_out() -> HTMLResponse:
    return _page("You signed out of your account", "<p>You may close this page.</p>")


def form_post(action: str, fields: Mapping[str, str]) -> HTMLResponse:
    """The answer to an application by a form that sends itself, or that a person sends."""
    hidden = (HIDDEN.format(name=html.escape(name), value=html.escape(value)) for name, value in fields.items())
    return _page("Signed in", BACK.format(action=html.escape(action), fields="\n".join(hidden), script=SUBMIT))


def _page(title: str, body: str, status: int = 200) -> HTMLResponse:
    # Where forms may lead is left open: a browser holds every later redirect against it, and applications have those.
    policy = (
        f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SUBMIT)}'; img-src data:; "
        "frame-ancestors 'none'; base-uri 'none'"
    )
    content = PAGE.format(title=html.escape(title), style=STYLE, body=body)
    return HTMLResponse(content, status, {**SAFE, "Content-Security-Policy": policy})


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
