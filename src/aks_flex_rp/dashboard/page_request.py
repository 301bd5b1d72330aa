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
START_COOKIE = "__Host-aks-flex-start"  # of somebody who is about to sign in
LIVE_HEADER = "x-live"  # the header by which a script asks for the live part of a page
MOST_FIELDS = 200


@dataclass(frozen=True)
class PageRequest:
    incoming: Incoming
    request_id: str
    session: SignedInUser
    may_create: bool = False  # a node, in any cluster
    form: Mapping[str, str] = field(default_factory=dict)  # what was posted, once it is known to be from our own page

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
        """What a script has on the screen already; None when a whole page is asked for."""
        return self.incoming.headers.get(LIVE_HEADER)


async def read_form(incoming: Incoming) -> dict[str, str]:
    """The fields of a form. Raises unless it comes from a page of this very address."""
    check_origin(incoming)
    kind = incoming.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ArmError(415, "UnsupportedMediaType", "A form is expected here.")
    content = await http_messages.read_bounded(incoming)
    try:
        return dict(parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise ArmError(400, "InvalidRequestContent", "The form cannot be read.") from None


def check_origin(incoming: Incoming) -> None:
    """Browsers say where a form comes from. One that says nothing is left to the token in the form."""
    where = incoming.headers.get("sec-fetch-site", "same-origin")
    origin = incoming.headers.get("origin")
    if where not in {"same-origin", "none"} or (origin and _host(origin) != incoming.headers.get("host")):
        raise foreign_form()


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as a bracket that is not closed
        return ""


def foreign_form() -> ArmError:
    message = "This form was not sent by a page of this service, or the page is old. Load the page again."
    return ArmError(403, "ForeignForm", message)


def local_path(path: str) -> str:
    """Where to go next, if that is a page of ours; the first page otherwise."""
    known = path == "/" or path.startswith(("/ui/", "/?"))
    page = path.partition("?")[0]
    plain = path.isascii() and path.isprintable() and not any(odd in page for odd in ("//", "/.", "\\"))
    return path if known and plain and len(path) < 2000 else "/"


def redirect(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303, {"Cache-Control": "no-store"})


def set_cookie(response: Response, name: str, value: str, seconds: float) -> None:
    response.set_cookie(name, value, max_age=int(seconds), path="/", secure=True, httponly=True, samesite="lax")


def delete_cookie(response: Response, name: str) -> None:
    response.set_cookie(name, "", max_age=0, path="/", secure=True, httponly=True, samesite="lax")


def start_token() -> str:
    return secrets.token_urlsafe(24)


def started_here(incoming: Incoming, token: str) -> bool:
    """Whether a form before anybody is signed in has what its own page put into a cookie."""
    cookie = incoming.cookies.get(START_COOKIE, "")
    return bool(cookie) and hmac.compare_digest(cookie.encode(), token.encode("utf-8", "replace"))
