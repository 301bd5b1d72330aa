"""Pages and the error entry name the same disk space of the lab."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "page", ["README.md", "docs/tutorials/first-node.md", "docs/how-to/lab.md", "src/aks_flex_node/errors.yaml"]
)
def test_disk_space_of_the_lab_is_the_same_everywhere(page: str) -> None:
    # The tests need more.
    text = " ".join((ROOT / page).read_text().split()).replace("`make test` needs 20 GB", "")

    assert "5 GB of disk" in text
    assert "11 GB" in text
    assert "once" in text[text.index("11 GB") : text.index("11 GB") + 30]
    assert set(re.findall(r"(\d+) GB", text)) <= {"2", "3", "5", "11"}
