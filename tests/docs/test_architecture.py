"""Checks that the files named in docs/architecture.md exist, and that there are only a few."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
FLOWS = re.split(r"^### ", PAGE.partition(" flows, file by file\n")[2].partition("\n## ")[0], flags=re.MULTILINE)[1:]
MOST_FILES = {"A join": 8, "A PUT": 8, "An update": 10}


@pytest.mark.parametrize("title", MOST_FILES)
def test_architecture_flow_lists_limited_number_of_existing_files(title: str) -> None:
    flow = next(text for text in FLOWS if text.startswith(title))
    package = ROOT / re.findall(r"^Below `(src/\S+)`:$", flow, re.MULTILINE)[0]
    files = re.findall(r"^\d+\. `([a-z_/]+\.py)`:", flow, re.MULTILINE)
    assert [name for name in files if not (package / name).is_file()] == []
    assert 0 < len(files) <= MOST_FILES[title]
