"""Tests of all checks together: order, timeout, and checks that can be skipped."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.preflight import (
    Check,
    CheckFinding,
    Severity,
    run_checks,
)
from aks_flex_node.agent.preflight.check import ok, warning
from aks_flex_node.agent.preflight.registry import CHECKS, NAMES
from aks_flex_node.errors import CommandUsageError
from tests.unit.agent.config.builders import TOKEN
from tests.unit.agent.preflight.builders import fit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.preflight import PreflightContext


def waits_for(event: threading.Event) -> Check:
    def run(situation: PreflightContext) -> Iterator[CheckFinding]:
        event.wait(30)
        yield ok("came")

    return Check("waits", "waits", run)


def fails(situation: PreflightContext) -> list[CheckFinding]:
    raise ZeroDivisionError("a mistake")


def times_out(situation: PreflightContext) -> list[CheckFinding]:
    raise TimeoutError("of a socket")


def test_preflight_gives_one_ok_finding_per_check_on_a_suitable_machine() -> None:
    found = run_checks(fit())

    assert [finding for finding in found if finding.severity is not Severity.OK] == []
    assert [finding.check for finding in found] == list(NAMES)


def test_preflight_findings_do_not_contain_the_token() -> None:
    assert TOKEN not in repr(run_checks(fit()))
    assert TOKEN not in repr(fit())


def test_preflight_check_names_are_unique() -> None:
    assert len(set(NAMES)) == len(CHECKS)


def test_skipped_preflight_check_is_not_run() -> None:
    checks = (Check("bad", "bad", fails), Check("good", "all is well", lambda _: []))

    assert run_checks(fit(), {"bad"}, checks) == [CheckFinding("good", Severity.OK, "all is well")]


@pytest.mark.parametrize(("word", "hint"), [("port", "Did you mean ports?"), ("xyzzy", "Checks: root, os,")])
def test_unknown_preflight_check_is_refused_with_a_suggestion(word: str, hint: str) -> None:
    with pytest.raises(CommandUsageError) as caught:
        run_checks(fit(), {word})

    assert (caught.value.name, caught.value.exit_code) == ("check-unknown", 2)
    assert hint in caught.value.hint


def test_failing_preflight_check_becomes_an_error_finding() -> None:
    found = run_checks(fit(), frozenset(), (Check("bad", "bad", fails), Check("late", "late", times_out)))

    assert [finding.severity for finding in found] == [Severity.ERROR] * 2
    assert "The check bad failed (ZeroDivisionError: a mistake)" in found[0].message
    assert "--skip bad" in found[0].remedy
    assert "TimeoutError" in found[1].message


def test_hanging_preflight_check_does_not_block_the_others() -> None:
    never = threading.Event()
    good = Check("good", "good", lambda _: [warning("hm", "do")])

    found = run_checks(fit(), frozenset(), (waits_for(never), good), seconds=0.05)

    assert [finding.check for finding in found] == ["waits", "good"]
    assert "did not finish within 0.05 s" in found[0].message
    assert found[0].severity is Severity.ERROR
    never.set()


def test_preflight_checks_run_concurrently() -> None:
    together = threading.Barrier(2, timeout=10)

    def meets(situation: PreflightContext) -> Iterator[CheckFinding]:
        together.wait()
        yield ok("met")

    found = run_checks(fit(), frozenset(), (Check("one", "one", meets), Check("two", "two", meets)))

    assert [finding.message for finding in found] == ["met", "met"]


def test_preflight_calls_the_watcher_for_each_check() -> None:
    seen: list[str] = []

    run_checks(fit(), set(NAMES) - {"root", "os"}, watch=lambda check: seen.append(check.name))

    assert seen == ["root", "os"]
