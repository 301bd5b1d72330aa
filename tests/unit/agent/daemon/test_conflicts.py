"""Tests of conflicts: repairs pause when another process reverts them."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.daemon.drift_monitor import Conflicts, parse_conflicts

HOUR = 3600.0
PATH = "/etc/containerd/config.toml"


def repaired_at(*moments: float) -> Conflicts:
    fights = Conflicts("7")
    for moment in moments:
        fights = fights.with_repairs([PATH], moment)
    return fights


def test_two_repairs_per_hour_are_not_a_conflict() -> None:
    fights = repaired_at(0.0, 1800.0, 3700.0, 5600.0, 7500.0)
    assert fights.ignored_subjects(7500.0) == frozenset()


def test_third_repair_within_an_hour_suspends_repair_for_an_hour() -> None:
    fights = repaired_at(0.0, 1000.0, 2000.0)
    assert fights.ignored_subjects(2000.0) == {PATH}
    assert fights.ignored_subjects(2000.0 + HOUR - 1) == {PATH}
    assert fights.ignored_subjects(2000.0 + HOUR) == frozenset()


def test_repair_count_restarts_after_the_suspension() -> None:
    fights = repaired_at(0.0, 1.0, 2.0, 4000.0, 4001.0)
    assert fights.ignored_subjects(4001.0) == frozenset()
    assert fights.with_repairs([PATH], 4002.0).ignored_subjects(4002.0) == {PATH}


def test_conflict_suspends_repair_only_for_its_own_path() -> None:
    fights = repaired_at(0.0, 1.0).with_repairs([PATH, "/etc/other"], 2.0)
    assert fights.ignored_subjects(3.0) == {PATH}


def test_new_config_clears_conflicts() -> None:
    fights = repaired_at(0.0, 1.0, 2.0)
    assert fights.for_configuration("7").ignored_subjects(3.0) == {PATH}
    assert fights.for_configuration("8").ignored_subjects(3.0) == frozenset()
    assert fights.for_configuration("8").configuration == "8"


def test_clock_set_to_an_earlier_time_suspends_no_repairs() -> None:
    assert repaired_at(10 * HOUR, 10 * HOUR + 1, 10 * HOUR + 2).ignored_subjects(0.0) == frozenset()


@pytest.mark.parametrize(
    "document", [None, [], "x", {}, {"repaired": []}, {"configuration": "7", "repaired": {"a": 1}, "givenUp": {}}]
)
def test_malformed_conflicts_document_is_ignored(document: object) -> None:
    assert parse_conflicts(document) == Conflicts()


def test_old_conflicts_are_discarded() -> None:
    fights = repaired_at(0.0, 1.0, 2.0).with_repairs(["/etc/other"], 9 * HOUR)
    assert (fights.given_up, list(fights.repaired)) == ({}, ["/etc/other"])
