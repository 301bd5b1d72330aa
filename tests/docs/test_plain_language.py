"""Checks that texts use the terms of the field and no retired private terms."""

from __future__ import annotations

import re

import pytest
from scripts.text_inventory import Text, all_texts

# Retired term: replacement.
RETIRED = {
    r"agents? that stays?": "daemon",
    r"followers?|followed (?:node|machine)s?|(?:node|machine)s? that (?:is|are) followed": "managed node",
    r"somebody|nobody|anybody|whoever|whomever|whom": "the operator, the user, another process",
    r"anew|afresh": "again",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"vouch(?:es|ed)?": "sign, trust",
    r"way back": "rollback",
    r"fight(?:s|ing)?": "conflict",
    r"farewell": "unbootstrap",
    r"verdicts?": "result",
    r"sights?|glances?": "observed state",
    r"work ?bench|workshop": "node operations",
    r"without a word|last words": "without a result, the end of the log",
    r"in peace|seen to": "idle, handled",
    r"proven": "verified",
    r"pods may come again": "Node uncordoned",
}
THIS_FILE = "tests/docs/test_plain_language.py"
TEST_NAME_LENGTH = 70
PATTERN = re.compile(rf"(?<![\w-])(?:{'|'.join(RETIRED)})(?![\w-])", re.IGNORECASE)


def checked(text: Text) -> bool:
    """Returns whether a text is checked: all texts of product and documentation, and the names of tests."""
    if text.file == THIS_FILE:
        return False
    return not text.file.startswith("tests/") or text.kind == "test"


def test_no_text_uses_a_retired_term() -> None:
    found = [
        f"{text} (retired: {match[0]!r})"
        for text in all_texts()
        if checked(text) and (match := PATTERN.search(text.text))
    ]

    assert found == []


def test_inventory_finds_texts_of_every_kind() -> None:
    texts = list(all_texts())

    assert {text.kind for text in texts} == {"comment", "docstring", "message", "test", "text"}
    suffixes = {text.file.rpartition(".")[2] for text in texts}
    assert {"py", "md", "html", "tsp", "service", "bicep"} <= suffixes


def test_test_names_are_short_enough_for_a_log() -> None:
    names = [text for text in all_texts() if text.kind == "test"]

    assert len(names) > 3000
    assert [str(text) for text in names if len(text.text) > TEST_NAME_LENGTH] == []


@pytest.mark.parametrize("term", ["Nobody answers.", "It is proven.", "The agent that stays."])
def test_retired_term_is_found(term: str) -> None:
    assert PATTERN.search(term)
