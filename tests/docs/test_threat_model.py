"""The threat model names tests that exist, and every actor."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
TABLE = PAGE.partition("## Threat model")[2].partition("\n## ")[0]
ACTORS = (
    *("user of the machine", "other node", "reader", "contributor", "owner", "mirror", "network"),
    *("database administrator", "storage administrator", "cluster administrator", "root on the provider's host"),
)


def test_threat_model_names_every_actor() -> None:
    named = [line.split("|")[1].strip() for line in TABLE.splitlines() if line.startswith("| ")]

    assert [each for each in ACTORS if not any(name.startswith(each) for name in named)] == []


def test_threat_model_names_existing_tests() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", TABLE)

    assert len(named) > 15
    assert [each for each in named if not (ROOT / each).is_file()] == []
