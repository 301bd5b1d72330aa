"""Tests of the release conditions of a checkout, and of their messages."""

from __future__ import annotations

import pytest

import aks_flex_node
from release.checkout import ReleaseError, problems, version, version_in

CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 1.2.3 (2026-11-15)\n\n- Something.\n\n## 1.2.30\n"


def test_clean_checkout_with_changelog_entry_has_no_problems() -> None:
    assert problems("1.2.3", present="1.2.3", changelog=CHANGELOG, status="", tested=True) == []


@pytest.mark.parametrize(
    ("wanted", "present", "status", "words"),
    [
        ("v1.2.3", "v1.2.3", "", "v1.2.3 is not a valid version"),
        ("1.2.3", "1.2.2", "", "is 1.2.2, not 1.2.3"),
        ("1.2", "1.2", "", "1.2 is not a valid version"),
        ("1.2.3", "1.2.3", " M README.md\n", "The working tree has uncommitted changes:\n M README.md"),
        ("2.0.0", "2.0.0", "", "no section `## 2.0.0`"),
    ],
)
def test_release_problem_is_reported(wanted: str, present: str, status: str, words: str) -> None:
    assert words in "\n".join(problems(wanted, present=present, changelog=CHANGELOG, status=status, tested=True))


def test_changelog_entry_of_longer_version_does_not_match() -> None:
    assert problems("1.2.3", present="1.2.3", changelog="## 1.2.30\n", status="", tested=True)


def test_all_release_problems_are_reported_together() -> None:
    assert len(problems("9", present="1.2.3", changelog="", status="?? x\n", tested=False)) == 5


@pytest.mark.parametrize(("wanted", "refused"), [("1.2.3", True), ("1.2.3rc1", False), ("1.2.3b2", False)])
def test_only_prerelease_may_be_built_without_tests(wanted: str, refused: bool) -> None:
    found = problems(wanted, present=wanted, changelog=f"## {wanted}\n", status="", tested=False)
    assert [line.partition(".")[0] for line in found] == ["A final version requires all tests"] * refused


def test_release_version_is_read_from_package() -> None:
    assert version() == aks_flex_node.__version__
    with pytest.raises(ReleaseError, match="no __version__"):
        version_in("# nothing here\n")
