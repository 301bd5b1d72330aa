"""The results of the conformance tests, and the list of those that cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite import ExcludedTest, excluded_tests, pattern, read_result

if TYPE_CHECKING:
    from pathlib import Path

REPORT = """\
<testsuites><testsuite>
<testcase name="[It] [sig-node] Pods should run [Conformance]" status="passed" time="2.5"/>
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

    assert [name.split("] ")[2] for name in result.passed] == ["Pods should run [Conformance]"]
    assert len(result.failed) == 2
    assert (result.runnable, result.total) == (3, 4)
    assert next(iter(result.slowest)).endswith("Pods should stop [Conformance]")


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
