"""Checks that links in all documents lead to existing files and headings, without building the site."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from scripts.reference.__main__ import PAGES as REFERENCE_PAGES

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")
PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "api/README.md", ROOT / "templates/README.md"}
)
GENERATED = ROOT / "docs/reference"
GENERATED_PAGES = [GENERATED / name for name in REFERENCE_PAGES]


def prose(text: str) -> str:
    return FENCED.sub("", text)


def anchors(text: str) -> set[str]:
    """Returns the anchors that GitHub and the site give the headings of a page."""
    seen: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


@pytest.fixture(scope="session")
def generated(reference: dict[str, str]) -> dict[Path, str]:
    """Returns the generated pages by their place in the site."""
    return {GENERATED / name: text for name, text in reference.items()}


@pytest.mark.parametrize("page", [*PAGES, *GENERATED_PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_and_anchor_resolves(page: Path, generated: dict[Path, str]) -> None:
    for target, anchor in LINK.findall(prose(generated.get(page) or page.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        destination = (page.parent / target).resolve() if target else page
        assert destination in generated or destination.exists(), target
        assert destination.is_relative_to(ROOT), target
        if anchor and destination.suffix == ".md":
            text = generated.get(destination) or destination.read_text()
            assert anchor in anchors(text), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_code_block_is_closed(page: Path) -> None:
    assert page.read_text().count("\n```") % 2 == 0


def test_every_documentation_page_is_in_navigation() -> None:
    navigation = (ROOT / "docs/site/mkdocs.yml").read_text()
    for page in (*PAGES, *GENERATED_PAGES):
        name = page.relative_to(ROOT).as_posix()
        if not name.startswith(("docs/decisions/0", "templates/")):
            assert re.search(rf"[ ]{re.escape(name)}$", navigation, re.MULTILINE), name


def test_every_decision_record_is_listed_in_index() -> None:
    folder = ROOT / "docs/decisions"
    listed = (folder / "README.md").read_text()
    for page in folder.glob("0*.md"):
        number, title = page.read_text().splitlines()[0].removeprefix("# ").split(": ", 1)
        assert page.name.startswith(number)
        assert f"| {number} | [{title}]({page.name}) |" in listed
