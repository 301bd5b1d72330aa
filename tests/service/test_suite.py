"""Tests of the program behind `make test`: output of stages that pass, fail or are interrupted."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from scripts.run_history import KEPT_RUNS, LOCATION, load_runs, record_run
from scripts.suite import KINDS, LANES, MAX_RERUNS, Stage, SuiteRun, main

from aks_flex_lab.layout import LAB_NAME
from tests.wait import until

if TYPE_CHECKING:
    from pathlib import Path

REPORT = '<testsuites><testsuite tests="{tests}" failures="{failures}" errors="0" skipped="1"/></testsuites>'


@pytest.fixture
def suite(tmp_path: Path) -> SuiteRun:
    return SuiteRun("make test", tmp_path)


def shell(name: str, script: str, report: Path | None = None) -> Stage:
    return Stage(name, ["sh", "-c", script], (), report)


def test_labs_of_the_stages_have_valid_names(suite: SuiteRun, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[Stage] = []
    monkeypatch.setattr(suite, "run_parallel", stages.extend)
    monkeypatch.setattr(suite, "run_alone", stages.append)
    for _, work in KINDS.values():
        work(suite)
    labs = {lab for stage in stages for lab in stage.labs}
    assert labs
    assert [lab for lab in sorted(labs) if not LAB_NAME.fullmatch(lab)] == []


def test_every_stage_runs_and_its_output_is_shown_unmixed(
    suite: SuiteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.run_parallel([shell(f"part {number}", f"echo begins {number}; echo ends {number}") for number in range(8)])

    assert suite.finish() == 0
    said = capsys.readouterr().out
    for number in range(8):
        assert f"== part {number}\nbegins {number}\nends {number}\n== part {number}: ok (0 s)" in said
    assert said.splitlines()[-1].startswith("make test: PASSED in ")


def test_failed_stage_is_reported_and_other_stages_run(
    suite: SuiteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = [tmp_path / "a.xml", tmp_path / "b.xml"]
    reports[0].write_text(REPORT.format(tests=10, failures=2))
    reports[1].write_text(REPORT.format(tests=5, failures=0))
    suite.run_alone(shell("first", "exit 3", reports[0]))
    suite.run_parallel([shell("second", "true", reports[1])])

    assert suite.finish() == 1
    counts, result = capsys.readouterr().out.splitlines()[-2:]
    assert counts == "11 passed, 2 failed, 2 skipped"
    assert result.startswith("make test: FAILED in ")
    assert result.endswith(": first")


def test_stage_with_missing_program_fails(
    suite: SuiteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.run_parallel([Stage("lost", [str(tmp_path / "no-such-program")]), shell("other", "true")])

    assert suite.finish() == 1
    said = capsys.readouterr().out
    assert "== other: ok" in said
    assert "no-such-program" in said
    assert said.splitlines()[-1].endswith(": lost")


def test_interrupt_ends_running_stages_and_starts_no_more(
    suite: SuiteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "began"
    waits = [shell(f"waits {number}", f"echo $$ >>{mark}; exec sleep 600") for number in range(LANES)]
    work = threading.Thread(target=suite.run_parallel, args=([*waits, shell("later", f"echo later >>{mark}")],))
    work.start()
    try:
        until(lambda: mark.exists() and len(mark.read_text().split()) == LANES, "each lane has begun a stage")
    finally:
        suite.interrupt()
        work.join()

    assert suite.finish() == 130
    assert capsys.readouterr().out.splitlines()[-1] == "make test: INTERRUPTED"
    begun = mark.read_text().split()
    assert "later" not in begun
    assert [pid for pid in begun if os.path.exists(f"/proc/{pid}")] == []  # noqa: PTH110 - a process, not a file


ONCE = """
from pathlib import Path
import pytest

def test_passes(): ...

@pytest.mark.parametrize("number", range({tests}))
def test_fails_at_first(number):
    mark = Path({mark!r} + str(number))
    seen = mark.exists()
    mark.touch()
    assert seen and {luck}
"""


def pytest_stage(suite: SuiteRun, room: Path, tests: int, *, luck: bool) -> Stage:
    file = room / "test_unsteady.py"
    file.write_text(ONCE.format(tests=tests, mark=str(room / "mark"), luck=luck))
    return suite.tests("some", str(file))


def test_tests_that_pass_when_rerun_alone_are_reported_as_unsteady(
    suite: SuiteRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite.run_parallel([pytest_stage(suite, tmp_path, 2, luck=True)])
    suite.rerun_failed()

    assert suite.finish() == 0
    said = capfd.readouterr().out
    assert "== some tests: FAILED" in said
    assert "== some tests again, alone: ok" in said
    assert "2 passed" in said.partition("again, alone")[2]
    for number in range(2):
        assert (
            f"test_unsteady::test_fails_at_first[{number}] failed in parallel with other tests, and passed alone\n"
            in said
        )
    assert said.count("\nUNSTEADY: ") == 2
    assert "\n3 passed, 0 failed, 0 skipped\n" in said
    assert said.splitlines()[-1].startswith("make test: PASSED")


def test_suite_fails_when_rerun_test_fails_again(
    suite: SuiteRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite.run_parallel([pytest_stage(suite, tmp_path, 1, luck=False)])
    suite.rerun_failed()

    assert suite.finish() == 1
    said = capfd.readouterr().out
    assert "== some tests again, alone: FAILED" in said
    assert "UNSTEADY" not in said
    assert "\n1 passed, 1 failed, 0 skipped\n" in said


def test_more_failures_than_max_reruns_are_not_rerun(
    suite: SuiteRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite.run_parallel([pytest_stage(suite, tmp_path, MAX_RERUNS + 1, luck=True)])
    suite.rerun_failed()

    assert suite.finish() == 1
    assert "again, alone" not in capfd.readouterr().out


def test_stage_with_exit_code_2_is_not_rerun(
    suite: SuiteRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "ended.xml"
    report.write_text(REPORT.format(tests=3, failures=1))
    suite.run_parallel([shell("ended", "exit 2", report)])
    suite.rerun_failed()

    assert suite.finish() == 1
    assert "again, alone" not in capfd.readouterr().out


def test_unknown_suite_kind_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["suite.py", "nonsense"])

    assert main() == 2
    assert "unknown kind 'nonsense'; use one of test, full, unit, long, vm." in capsys.readouterr().err


def test_stage_fails_when_its_process_cannot_be_started(
    suite: SuiteRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.suite.DEFAULT_SIGINT", ("no-such-program",))
    suite.run_alone(shell("refused", "true"))

    assert suite.finish() == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith(": refused")


def test_test_unsteady_in_two_of_ten_runs_fails_the_suite(tmp_path: Path) -> None:
    history = tmp_path / "cache" / "runs.json"

    assert record_run(history, ["tests.a::test_x"]) == {}
    assert record_run(history, []) == {}
    assert record_run(history, ["tests.a::test_x", "tests.b::test_y"]) == {"tests.a::test_x": 2}


def test_unsteady_run_is_forgotten_after_ten_more_runs(tmp_path: Path) -> None:
    history = tmp_path / "runs.json"
    record_run(history, ["tests.a::test_x"])
    for _ in range(KEPT_RUNS - 1):
        assert record_run(history, []) == {}

    assert record_run(history, ["tests.a::test_x"]) == {}


def test_damaged_run_history_counts_as_empty(tmp_path: Path) -> None:
    history = tmp_path / "runs.json"
    history.write_text("{")

    assert record_run(history, ["tests.a::test_x"]) == {}
    assert load_runs(history) == [["tests.a::test_x"]]


def test_recorded_run_prints_tests_that_were_unsteady_too_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCATION, str(tmp_path / "runs.json"))
    for expected in (0, 1):
        suite = SuiteRun("make test", tmp_path, recorded=True)
        suite.run_alone(shell("first", "true"))
        suite.done[0].unsteady = ["tests.a::test_x"]

        assert suite.finish() == expected

    printed = capsys.readouterr().out
    assert "UNSTEADY TOO OFTEN: tests.a::test_x, in 2 of the last 10 runs" in printed
    assert printed.splitlines()[-1].endswith(": unsteady tests")
