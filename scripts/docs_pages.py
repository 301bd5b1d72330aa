"""Copies the pages of the documentation, and all files they link to, into the directory from which the site is built.

The site has the layout of the repository, so that links are valid in both. A link to a directory is changed to the
page of the directory; a directory without a page gets a list of its files.
usage: docs_pages.py ROOT FOLDER
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PAGES = ("*.md", "docs/**/*.md", "api/README.md", "templates/README.md")
OURS = "docs/site"  # the configuration of the site is not part of it


def pages(root: Path) -> list[Path]:
    found = {page for pattern in PAGES for page in root.glob(pattern)}
    return sorted(page for page in found if OURS not in page.relative_to(root).as_posix())


def outside_code(text: str) -> str:
    """Returns the text without code blocks, which contain no links."""
    return CODE.sub("", text)


def targets(page: Path) -> set[Path]:
    """Returns the files and directories that a page links to."""
    found = {match[2] for match in LINK.finditer(outside_code(page.read_text()))}
    return {
        Path(os.path.normpath(page.parent / each)) for each in found if "://" not in each and "mailto:" not in each
    }


def with_folder_links(page: Path) -> str:
    """Returns the text of a page, with links to directories changed to their pages."""

    def mended(match: re.Match[str]) -> str:
        folder = page.parent / match[2]
        name = f"{match[2].rstrip('/')}/README.md" if "://" not in match[2] and folder.is_dir() else match[2]
        return match[1] + name + match[3]

    return LINK.sub(mended, page.read_text())


def listing(folder: Path, root: Path) -> str:
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    lines = [f"- [{each.relative_to(folder)}]({each.relative_to(folder)})" for each in files]
    return "\n".join([f"# {folder.relative_to(root)}", "", *lines, ""])


def gather_pages(root: Path, directory: Path) -> None:
    found = pages(root)
    for target in sorted({each for page in found for each in targets(page)} - set(found)):
        there = directory / target.relative_to(root)
        if target.is_dir():
            shutil.copytree(target, there, dirs_exist_ok=True)
            if not (target / "README.md").exists():
                (there / "README.md").write_text(listing(target, root))
        elif target.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, there)
    for page in found:
        there = directory / page.relative_to(root)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(with_folder_links(page))


if __name__ == "__main__":
    gather_pages(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
