"""Renders Jinja templates to responses with strict security headers, and serves static assets."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, cached_property, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from aks_flex_node import __version__, error_catalog
from aks_flex_node.error_catalog import StatusName
from aks_flex_node.errors import CommandUsageError
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.arm.errors import ArmError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.error_catalog import ErrorEntry
    from aks_flex_rp.dashboard.page_request import PageRequest

ASSETS = {
    "app.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

EXPLAIN_COMMAND = re.compile(r"^aks-flex-(node|rp) explain ")


class PageRenderer:
    """Renders pages with a strict content security policy."""

    def __init__(self, form_targets: Iterable[str] = ()) -> None:
        """`form_targets` are other origins that forms can redirect to, for sign-in."""
        targets = " ".join(("'self'", *form_targets))
        self._policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            f"form-action {targets}; frame-ancestors 'none'; base-uri 'none'"
        )

    def show(
        self, name: str, page_request: PageRequest | None = None, *, status: int = 200, **about: Any
    ) -> Response:
        """Renders a page. For the refresh script, renders only the live part, or 204 when it is unchanged.

        The live part of `node.html` is `node.live.html`, which the page includes.
        """
        about = {"visit": page_request, "live": "", **about}
        live = f"{name}.live.html"
        if live in self._templates:
            part = self._environment.get_template(live).render(about)
            mark = about["live"] = hashlib.sha256(part.encode()).hexdigest()[:24]
            if page_request and page_request.shown is not None:
                if mark == page_request.shown:
                    return Response(status_code=204, headers=self.headers)
                headers = {**self.headers, "X-Live": mark}
                return Response(part, 200, headers, media_type="text/html; charset=utf-8")
        text = self._environment.get_template(f"{name}.html").render(about)
        return Response(text, status, self.headers, media_type="text/html; charset=utf-8")

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Cache-Control": "no-store",
            "Content-Security-Policy": self._policy,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
            "Referrer-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }

    @cached_property
    def _environment(self) -> Environment:
        environment = Environment(
            loader=PackageLoader("aks_flex_rp.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {
            "moment": moment,
            "iso": format_utc,
            "number": number,
            "marked": marked,
            "pretty": partial(json.dumps, indent=2, ensure_ascii=False),
        }
        environment.globals |= {"version": __version__, "asset": asset_url}
        return environment

    @cached_property
    def _templates(self) -> frozenset[str]:
        return frozenset(self._environment.list_templates())


def moment(seconds: float) -> str:
    """Formats a timestamp in UTC. The script replaces it with a relative time."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def number(value: int) -> str:
    """Formats a number with thousands separators."""
    return f"{value:,}"


def marked(text: str) -> Markup:
    """Escapes text, and turns `backticks` into code. Names of the catalogue link to their help page."""
    return Markup(re.sub(r"`([^`]+)`", _code, str(escape(text))))  # noqa: S704 - it is escaped


def _code(found: re.Match[str]) -> str:
    code = f"<code>{found[1]}</code>"
    name = EXPLAIN_COMMAND.sub("", found[1])
    return f'<a href="/ui/help/{name}">{code}</a>' if name in catalog() else code


@cache
def catalog() -> dict[str, ErrorEntry | StatusName]:
    """Returns what the dashboard has a help page of, by name."""
    return {**error_catalog.load_catalog("aks_flex_rp", "aks_flex_node"), **error_catalog.load_status_names()}


@dataclass(frozen=True)
class HelpPage:
    """Serves the help page of an error, reason, event or metric."""

    pages: PageRenderer

    async def show(self, request: PageRequest) -> Response:
        """Shows the entry of the name in the path."""
        name = request.incoming.path_params["name"]
        try:
            entry = error_catalog.find_entry(name, catalog())
        except CommandUsageError:
            raise ArmError(404, "NotFound", f"The catalogue does not contain an entry named {name[:80]}.") from None
        if isinstance(entry, StatusName):
            kind = f"Reason of {entry.condition}" if entry.condition else entry.kind.capitalize()
            cause, check, remedy, see = entry.meaning, "", entry.remedy, entry.see
        else:
            kind = f"Error: {entry.group}"
            cause, check, remedy, see = entry.cause, entry.check, entry.remedy, ""
        return self.pages.show(
            "help", request, title=entry.name, kind=kind, cause=cause, check=check, remedy=remedy, see=see
        )


def asset(name: str) -> bytes:
    """Reads a static asset of the package."""
    return (files("aks_flex_rp.dashboard") / "assets" / name).read_bytes()


def asset_url(name: str) -> str:
    """Returns the URL of an asset, which contains its hash so that browsers can cache it permanently."""
    return _URLS.setdefault(name, f"/ui/assets/{hashlib.sha256(asset(name)).hexdigest()[:16]}/{name}")


_URLS: dict[str, str] = {}
