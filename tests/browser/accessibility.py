"""Checks of accessibility with axe-core, and of text that does not fit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab.processes import run
from tests.browser.viewports import HEIGHTS, SCREENS, WIDE, shoot

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCRIPT = Path(__file__).parents[2] / "scripts" / "axe"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OVERFLOW = Path(__file__).with_name("overflow.js")
# Repeats the check if the page refreshed itself meanwhile, because the result belongs to no visible page.
STEADILY = """(async () => {
  for (let left = 20; ; left--) {
    const live = document.querySelector("[data-live]"), shown = live?.firstElementChild;
    const found = await axe.run(document, %s);
    if (live?.firstElementChild === shown || !left) return found;
  }
})()"""


def judge(page: Page, name: str) -> None:
    """Takes a screenshot and runs all checks."""
    shoot(page, name)
    wrong = [*axe(page), *overflow(page)]
    assert not wrong, f"{name}:\n" + "\n".join(wrong)


def judge_on_every_screen(page: Page, name: str) -> None:
    """Runs all checks with each width and each color scheme."""
    for screen in SCREENS:
        page.set_viewport_size({"width": screen.width, "height": HEIGHTS[screen.width]})
        page.emulate_media(color_scheme=screen.scheme, reduced_motion="reduce")
        judge(page, f"{name}-{screen}")
    page.set_viewport_size({"width": WIDE.width, "height": HEIGHTS[WIDE.width]})


def axe(page: Page) -> list[str]:
    """Returns the violations that axe-core finds, one line each."""
    asked = json.dumps({"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]})
    found = _aside(page, axe_source(), STEADILY % asked)
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {' '.join(node['target'])}: {node['html'][:160]}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def overflow(page: Page) -> list[str]:
    """Returns pages that scroll sideways and text that is cut off or overflows its box, one line each."""
    found: list[str] = _aside(page, OVERFLOW.read_text(), "overflowing()")
    return found


@cache
def axe_source() -> str:
    return Path(run(SCRIPT, timeout=600).out.strip()).read_text()


def _aside(page: Page, source: str, question: str) -> Any:
    """Evaluates a script in an isolated world, which the page and its content security policy cannot affect."""
    session = page.context.new_cdp_session(page)
    frame = session.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
    world = session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "judging"})
    where = {"contextId": world["executionContextId"], "awaitPromise": True, "returnByValue": True}
    session.send("Runtime.evaluate", {"expression": f"{source}\n;0", **where})
    answer = session.send("Runtime.evaluate", {"expression": question, **where})
    session.detach()
    assert "exceptionDetails" not in answer, answer["exceptionDetails"]
    return answer["result"]["value"]
