"""Tests of the built site in a browser: no external requests, diagrams, search."""

from __future__ import annotations

import os
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

from aks_flex_lab.processes import run
from tests.browser.browsers import PROGRAM, QUIET
from tests.service.http_servers import Handler, listening

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
# A phone and a desktop.
WIDTHS = (390, 1280)
PATIENCE = 60_000  # milliseconds: an upper limit for a loaded machine
DRAWN = "() => document.querySelectorAll('div.mermaid').length"
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Files(Handler, SimpleHTTPRequestHandler):
    """Serves the files of a directory."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the site; warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    run(ROOT / "scripts/docs", "build", folder, timeout=600)
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with listening(partial(Files, directory=str(site))) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=[*QUIET, *sandbox])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Yields a page that fails the test on an error or on a request to another host."""
    page = browser.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    yield page
    page.close()
    own = ("http://127.0.0.1:", "file:", "data:", "blob:")
    assert [url for url in asked if not url.startswith(own)] == []
    assert wrong == []


def diagrams() -> dict[str, int]:
    """Returns the number of diagrams of each page."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    counted = {page.relative_to(ROOT).as_posix(): page.read_text().count("\n```mermaid\n") for page in pages}
    return {_name(page): count for page, count in counted.items() if count}


def _name(page: str) -> str:
    return page.replace("README.md", "index.md").removesuffix(".md") + ".html"


@pytest.mark.parametrize(("name", "count"), diagrams().items())
def test_every_diagram_renders_without_syntax_error(page: Page, address: str, name: str, count: int) -> None:
    page.goto(f"{address}/{name}")
    page.wait_for_function(f"({DRAWN})() >= {count}", timeout=PATIENCE)

    assert page.get_by_text("Syntax error in text").count() == 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["index", "docs/reference/configuration", "docs/reference/cli", "docs/comparison"])
def test_page_does_not_overflow_at_any_screen_width(page: Page, address: str, name: str) -> None:
    page.goto(f"{address}/{name}.html")

    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(f"({TOO_WIDE})() === 0", timeout=PATIENCE)
        assert page.evaluate(TOO_WIDE) == 0


def test_site_search_works_from_file_url_without_server(page: Page, site: Path) -> None:
    page.goto(f"file://{site}/index.html")
    page.locator(".md-search__input").click()
    page.keyboard.type("bootstrap-token-forbidden")

    expect(page.locator(".md-search-result__list")).to_contain_text("bootstrap-token-forbidden", timeout=PATIENCE)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_site_uses_browser_color_scheme(browser: Browser, address: str, scheme: str) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    page = context.new_page()
    page.goto(f"{address}/index.html")

    chosen = {"light": "default", "dark": "slate"}[scheme]
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", chosen, timeout=PATIENCE)
    context.close()
