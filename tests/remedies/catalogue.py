"""The remedies of the error catalogue, as tests follow them.

A test that creates the situation of an error, follows its remedy and shows that the problem is gone has the mark
`@pytest.mark.remedy("error-name")`. It takes every command from the catalogue, and fails when the text changes.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

from aks_flex_node import error_catalog

PACKAGES = ("aks_flex_node", "aks_flex_rp")
TESTS = Path(__file__).parents[1]
MARK = re.compile(r"mark\.remedy\(([^)]*)\)")


@cache
def remedies() -> dict[str, str]:
    """Returns the remedy of every error, without line breaks."""
    entries = error_catalog.load_catalog(*PACKAGES).values()
    return {entry.name: " ".join(entry.remedy.split()) for entry in entries}


def command(name: str, start: str, **values: str) -> list[str]:
    """Returns the command of the remedy that begins with `start`, with values for its placeholders."""
    found = [text for text in re.findall(r"`([^`]+)`", remedies()[name]) if text.startswith(start)]
    assert found, f"the remedy of {name} does not contain a command that begins with {start}: {remedies()[name]}"
    text = found[0]
    for placeholder, value in values.items():
        assert placeholder in text, f"{text} does not contain {placeholder}"
        text = text.replace(placeholder, value)
    return shlex.split(text)


def advice(name: str, text: str) -> None:
    """Fails if the remedy does not contain the words that the test follows by hand."""
    assert text in remedies()[name], f"the remedy of {name} is: {remedies()[name]}"


def followed_names() -> set[str]:
    """Returns the names of the errors whose remedies tests follow."""
    marks = (mark for file in TESTS.rglob("*.py") for mark in MARK.findall(file.read_text()))
    return {name for mark in marks for name in re.findall(r'"([^"]+)"', mark)} - {"error-name"}
