"""Screen sizes of the page tests, and pages that record all errors in them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request

HEIGHTS = {360: 740, 768: 1024, 1280: 800}
PATIENCE = 60_000  # milliseconds: an upper limit for a loaded machine
ABANDONED = "net::ERR_ABORTED"  # requests that were pending when the page was left


@dataclass(frozen=True)
class Screen:
    width: int = 1280
    scheme: Literal["light", "dark"] = "light"

    def __str__(self) -> str:
        return f"{self.width}-{self.scheme}"


WIDE = Screen()
ALL_SCREENS = tuple(Screen(width, scheme) for scheme in ("light", "dark") for width in HEIGHTS)
SCREENS = ALL_SCREENS if os.environ.get("AKS_FLEX_TEST_SCREENS") != "1" else (WIDE,)  # `make test` judges on one


@dataclass
class Opened:
    """The pages of one test and the errors in them."""

    browser: Browser
    troubles: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)

    def __call__(self, screen: Screen = WIDE, **options: Any) -> Page:
        """Opens a page in a new browser context. `options` are those of Playwright's contexts."""
        size = {"width": screen.width, "height": HEIGHTS[screen.width]}
        context = self.browser.new_context(
            **{"viewport": size, "color_scheme": screen.scheme, "reduced_motion": "reduce", **options}
        )
        context.on("page", self._watch)
        context.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        page = context.new_page()
        self.pages.append(page)
        return page

    def expect(self, pattern: str) -> None:
        """Allows an error that the test provokes."""
        self.expected.append(pattern)

    def close(self) -> None:
        for page in self.pages:
            page.context.close()
        unexpected = [each for each in self.troubles if not any(re.search(one, each) for one in self.expected)]
        assert not unexpected, "\n".join(unexpected)

    def _watch(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.troubles.append(f"script failed: {error}"))
        page.on("requestfailed", self._failed)
        page.on("dialog", self._interrupted)

    def _said(self, message: ConsoleMessage) -> None:
        """Missing resources and violations of the content security policy are also console errors."""
        if message.type in {"error", "warning"}:
            where = message.location.get("url", "")
            self.troubles.append(f"console {message.type}: {message.text} ({where})")

    def _interrupted(self, dialog: Dialog) -> None:
        """Our pages open no dialogs, so an injected script has run."""
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _failed(self, request: Request) -> None:
        if request.failure != ABANDONED:
            self.troubles.append(f"request failed: {request.method} {request.url}: {request.failure}")


def shoot(page: Page, name: str) -> None:
    """Saves a screenshot of the whole page if AKS_FLEX_SCREENSHOTS is set."""
    if folder := os.environ.get("AKS_FLEX_SCREENSHOTS"):
        file = re.sub(r"[^\w.-]+", "-", name).strip("-")
        page.screenshot(path=Path(folder) / f"{file}.png", full_page=True)
