"""One request for a page: session, query, posted form, cookies, and the origin check."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from starlette.responses import RedirectResponse

from aks_flex_rp.api import http_messages
from aks_flex_rp.arm.errors import ArmError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request as Incoming
    from starlette.responses import Response

    from aks_flex_rp.callers import Caller
    from aks_flex_rp.dashboard.sessions import SignedInUser

SESSION_COOKIE = "__Host-aks-flex"
START_COOKIE = "__Host-aks-flex-start"  # set before sign-in
LIVE_HEADER = "x-live"  # request header of the refresh script
MAX_FIELDS = 200


@dataclass(frozen=True)
class PageRequest:
    """A request of a signed-in user."""

    incoming: Incoming
    request_id: str
    session: SignedInUser
    may_create: bool = False  # whether the user can create nodes in any cluster
    form: Mapping[str, str] = field(default_factory=dict)  # the posted form, after the CSRF check

    @property
    def caller(self) -> Caller:
        return self.session.caller

    @property
    def source(self) -> str:
        return http_messages.client_address(self.incoming)

    @property
    def query(self) -> Mapping[str, str]:
        return self.incoming.query_params

    @property
    def shown(self) -> str | None:
        """The hash of the live part that the refresh script shows; None for a request of a whole page."""
        return self.incoming.headers.get(LIVE_HEADER)


async def read_form(incoming: Incoming) -> dict[str, str]:
    """Returns the fields of a posted form. Raises when it comes from another origin."""
    check_origin(incoming)
    kind = incoming.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ArmError(415, "UnsupportedMediaType", "The content type must be application/x-www-form-urlencoded.")
    content = await http_messages.read_bounded(incoming)
    try:
        return dict(parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise ArmError(400, "InvalidRequestContent", "The form is malformed.") from None


def check_origin(incoming: Incoming) -> None:
    """Rejects a form from another origin. Without the headers of a browser, only the CSRF token protects the form."""
    where = incoming.headers.get("sec-fetch-site", "same-origin")
    origin = incoming.headers.get("origin")
    if where not in {"same-origin", "none"} or (origin and _host(origin) != incoming.headers.get("host")):
        raise foreign_form()


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # for example an unclosed bracket
        return ""


def foreign_form() -> ArmError:
    """Returns the error for a form that fails the CSRF check."""
    message = "The form was sent from another site, or its page has expired. Reload the page and try again."
    return ArmError(403, "ForeignForm", message)


def local_path(path: str) -> str:
    """Returns the path if it is a page of this service, otherwise `/`. Prevents open redirects."""
    known = path == "/" or path.startswith(("/ui/", "/?"))
    page = path.partition("?")[0]
    plain = path.isascii() and path.isprintable() and not any(pattern in page for pattern in ("//", "/.", "\\"))
    return path if known and plain and len(path) < 2000 else "/"


def digits(text: str, most: int) -> int:
    """Returns the number of up to `most` digits, or 0 for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= most else 0


def redirect(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303, {"Cache-Control": "no-store"})


def set_cookie(response: Response, name: str, value: str, seconds: float) -> None:
    response.set_cookie(name, value, max_age=int(seconds), path="/", secure=True, httponly=True, samesite="lax")


def delete_cookie(response: Response, name: str) -> None:
    response.set_cookie(name, "", max_age=0, path="/", secure=True, httponly=True, samesite="lax")


def start_token() -> str:
    return secrets.token_urlsafe(24)


def started_here(incoming: Incoming, token: str) -> bool:
    """Whether the token of the sign-in form matches the cookie that its page set."""
    cookie = incoming.cookies.get(START_COOKIE, "")
    return bool(cookie) and hmac.compare_digest(cookie.encode(), token.encode("utf-8", "replace"))
