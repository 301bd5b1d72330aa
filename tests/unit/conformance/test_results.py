"""The results of the conformance tests, and the list of those that cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.__main__ import exit_code
from tests.conformance.result import ExcludedTest, details, excluded_tests, read_result, summary, table
from tests.conformance.suite import pattern, progress_of

if TYPE_CHECKING:
    from pathlib import Path

REPORT = """\
<testsuites><testsuite>
<testcase name="[It] [sig-node] Pods should run [Conformance] [sig-node, Conformance]" status="passed" time="2.5"/>
<testcase name="[It] [sig-node] Pods should fail [Conformance]" status="failed" time="1"><failure/></testcase>
<testcase name="[It] [sig-node] Pods should stop [Conformance]" status="timedout" time="9"><failure/></testcase>
<testcase name="[It] [sig-network] Services need a cloud [Conformance]" status="skipped" time="0"/>
<testcase name="[It] [sig-node] Pods not of the profile" status="passed" time="1"/>
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"/>
</testsuite></testsuites>
"""


def test_report_is_counted_without_tests_outside_the_profile(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    report.write_text(REPORT)

    result = read_result(report, [ExcludedTest("need a cloud", "The lab has no cloud.")])

    assert result.passed == ("[sig-node] Pods should run [Conformance]",)
    assert len(result.failed) == 2
    assert summary(result, 9.6) == "Conformance: 1 passed / 3 runnable / 4 total, 2 failed, 10 s."
    assert table(result).splitlines()[2:4] == ["| sig-network | 0 | 0 | 1 | 0 |", "| sig-node | 1 | 2 | 3 | 12 |"]
    assert result.not_run == ()


def test_test_that_passes_when_it_runs_again_is_named(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    report.write_text(REPORT)
    first = read_result(report)
    report.write_text(REPORT.replace('"timedout" time="9"', '"passed" time="4"'))

    result = first.after_repetition(read_result(report))

    assert [name.split()[3] for name in result.failed] == ["fail"]
    assert "PASSED WHEN IT RAN AGAIN: [sig-node] Pods should stop [Conformance]" in details(result, everything=False)
    assert result.seconds["[sig-node] Pods should stop [Conformance]"] == 4


def test_test_that_did_not_run_makes_a_whole_run_fail(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    passing = REPORT.replace('"timedout"', '"passed"').replace('"failed"', '"passed"')
    report.write_text(passing)
    result = read_result(report)
    assert (exit_code(result, everything=True), exit_code(result, everything=False)) == (1, 0)
    assert list(details(result, everything=True)) == [
        "DID NOT RUN: [sig-network] Services need a cloud [Conformance]"
    ]


def test_progress_counts_finished_and_failed_tests() -> None:
    log = "SSS•SS•\nSS\n------\n• [FAILED] [4.9 seconds]\n[sig-node] Secrets [It] should be consumable\n"
    assert progress_of(log)[6:] == "3 tests finished, 1 failed\n  [sig-node] Secrets [It] should be consumable"


@pytest.mark.parametrize("name", ["no such test", "Pods should"])
def test_entry_that_does_not_mean_one_test_is_an_error(tmp_path: Path, name: str) -> None:
    report = tmp_path / "junit.xml"
    report.write_text(REPORT)
    with pytest.raises(AssertionError, match=name):
        read_result(report, [ExcludedTest(name, "A reason.")])


def test_names_of_tests_are_escaped_for_ginkgo() -> None:
    assert pattern(["EmptyDir (root,0644)", "a [b]"]) == r"EmptyDir \(root,0644\)|a \[b\]"


def test_every_test_that_cannot_run_has_a_reason() -> None:
    assert all(each.test and each.reason.endswith(".") for each in excluded_tests())
