"""Finds the blocks of the documentation that a comment marks as runnable."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = {"here", "machine"}
MARKED = re.compile(
    r"^<!-- run: (?P<place>\w+)(?P<stays>, stays)?(?P<long>, long)? -->\n"
    r"(?:```(?P<language>\w+)\n(?P<fenced>.*?)^```$|\n?(?P<indented>(?:    .*\n)+))",
    re.MULTILINE | re.DOTALL,
)
PROMPT = re.compile(r"^[$#] ")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    place: str
    stays: bool  # a service that runs until the end of its page
    long: bool  # slow: runs only with `make test-long`
    script: str


def marks(text: str) -> int:
    return len(re.findall(r"^<!-- run:", text, re.MULTILINE))


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(
            name,
            text.count("\n", 0, one.start()) + 1,
            one["place"],
            bool(one["stays"]),
            bool(one["long"]),
            _script(one),
        )
        for one in MARKED.finditer(text)
    ]


def _script(found: re.Match[str]) -> str:
    lines = (found["fenced"] or found["indented"]).splitlines()
    if found["language"] == "console":
        return "\n".join(PROMPT.sub("", line) for line in lines if PROMPT.match(line))
    return "\n".join(line.removeprefix("    ") if found["indented"] else line for line in lines)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def runnable() -> dict[str, list[Block]]:
    """Returns the marked blocks of each page."""
    found = {page.relative_to(ROOT).as_posix(): blocks_of(page) for page in pages()}
    return {name: blocks for name, blocks in found.items() if blocks}
