"""Tests of progress output without a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.cli.terminal_progress import TerminalProgress
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    import pytest


def operate(progress: ProgressReporter) -> None:
    progress.warning("the clock is late")
    with progress.show_transfers(list):
        progress.step_started("runc", "the container runtime")
        progress.note("fetched")
        progress.step_finished("runc", 2, 0.5)
        progress.step_started("readiness", "the node is Ready")
        progress.step_failed("readiness", FlexError("not-ready", "It is not.", ""))
    progress.message("Done.")


def test_each_step_is_printed_as_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    operate(TerminalProgress())
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.split() for line in printed.err.splitlines()] == [
        ["warning:", "the", "clock", "is", "late"],
        ["fetched"],
        ["✓", "the", "container", "runtime", "2", "changes", "0.50", "s"],
        ["✗", "the", "node", "is", "Ready"],
        ["Done."],
    ]


def test_silent_progress_reporter_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    operate(ProgressReporter())
    assert capsys.readouterr() == ("", "")
