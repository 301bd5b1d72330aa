"""The results of conformance tests: read from ginkgo's reports, counted, and rendered for people."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CONFORMANCE = "[Conformance]"
NOT_RUNNABLE = Path(__file__).parent / "not_runnable.yaml"
FAILED = ("failed", "timedout", "panicked", "interrupted", "aborted")
LABELS = re.compile(r" \[sig-[^]]*\]$")  # ginkgo appends all labels of a test to its name
GROUP = re.compile(r"\[(sig-[a-z-]+)\]")
SLOWEST = 12


@dataclass(frozen=True)
class ExcludedTest:
    """A conformance test that cannot run in the lab."""

    test: str  # a part of its name that no other test has
    reason: str


@dataclass(frozen=True)
class ConformanceResult:
    passed: tuple[str, ...]
    failed: tuple[str, ...]
    excluded: tuple[ExcludedTest, ...] = ()
    names: tuple[str, ...] = ()  # of all conformance tests, also of those that did not run
    seconds: Mapping[str, float] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()  # passed only when they ran again, alone

    @property
    def total(self) -> int:
        return len(self.names)

    @property
    def runnable(self) -> int:
        return self.total - len(self.excluded)

    @property
    def not_run(self) -> tuple[str, ...]:
        ran = {*self.passed, *self.failed}
        return tuple(
            name for name in self.names if name not in ran and not any(each.test in name for each in self.excluded)
        )

    def after_repetition(self, again: ConformanceResult) -> ConformanceResult:
        """Returns the result after the failed tests ran again."""
        passed = tuple(name for name in self.failed if name in again.passed)
        return replace(
            self,
            passed=(*self.passed, *passed),
            failed=tuple(name for name in self.failed if name not in passed),
            repeated=passed,
            seconds={**self.seconds, **{name: again.seconds[name] for name in passed}},
        )


def excluded_tests(file: Path = NOT_RUNNABLE) -> tuple[ExcludedTest, ...]:
    return tuple(ExcludedTest(**each) for each in yaml.safe_load(file.read_text()) or ())


def read_result(report: Path, excluded: Sequence[ExcludedTest] = ()) -> ConformanceResult:
    """Reads ginkgo's report, which lists also the tests that did not run."""
    cases = {
        name: case
        for case in Xml.parse(report).getroot().iter("testcase")  # noqa: S314 - ginkgo wrote it just now
        if CONFORMANCE in (name := LABELS.sub("", case.get("name", "").removeprefix("[It] ")))
    }
    for each in excluded:  # an entry that means no test, or several, is wrong
        assert sum(each.test in name for name in cases) == 1, each.test
    return ConformanceResult(
        tuple(name for name, case in cases.items() if case.get("status") == "passed"),
        tuple(name for name, case in cases.items() if case.get("status") in FAILED),
        tuple(excluded),
        tuple(cases),
        {name: float(case.get("time", 0)) for name, case in cases.items()},
    )


def summary(result: ConformanceResult, seconds: float) -> str:
    """Returns the figures in a line: passed / runnable / total."""
    counts = f"{len(result.passed)} passed / {result.runnable} runnable / {result.total} total"
    return f"Conformance: {counts}, {len(result.failed)} failed, {seconds:.0f} s."


def details(result: ConformanceResult, *, everything: bool) -> Iterator[str]:
    """Yields a line for each test that failed, passed only alone, cannot run, or should have run and did not."""
    yield from (f"FAILED: {name}" for name in result.failed)
    yield from (f"PASSED WHEN IT RAN AGAIN: {name}" for name in result.repeated)
    yield from (f"CANNOT RUN: {each.test}: {each.reason}" for each in result.excluded)
    if everything:
        yield from (f"DID NOT RUN: {name}" for name in result.not_run)


def table(result: ConformanceResult) -> str:
    """Returns the figures of each SIG, and the slowest tests, as Markdown."""
    groups = sorted({group(name) for name in result.names})
    lines = ["| SIG | passed | failed | total | time of its tests, s |", "|---|---|---|---|---|"]
    for one in groups:
        passed, failed, names = (
            [name for name in some if group(name) == one] for some in (result.passed, result.failed, result.names)
        )
        spent = sum(result.seconds.get(name, 0) for name in names)
        lines.append(f"| {one} | {len(passed)} | {len(failed)} | {len(names)} | {spent:.0f} |")
    slowest = Counter(dict(result.seconds)).most_common(SLOWEST)
    lines += ["", "| slowest tests | time, s |", "|---|---|"]
    lines += [f"| {name.removesuffix(f' {CONFORMANCE}')} | {spent:.0f} |" for name, spent in slowest]
    return "\n".join(lines) + "\n"


def group(name: str) -> str:
    found = GROUP.search(name)
    return found[1] if found else "other"
