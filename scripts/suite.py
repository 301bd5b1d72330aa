"""Runs tests, prints one result at the end, and stops all it started: `suite.py [test|full|unit|long|vm [CUTS]]`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

from scripts.run_history import KEPT_RUNS, history_file, record_run

from aks_flex_lab.cluster_network import NETWORK_TOOLS
from aks_flex_lab.tools.catalog import go_tool

if TYPE_CHECKING:
    from types import FrameType

BIN = Path(".venv/bin")
LANES = 3  # on two cores: most tests mainly wait, but with four lanes labs exceed their time limits
PROGRESS_SECONDS = 60.0  # seconds between two lines of progress
DEFAULT_SIGINT = ("env", "--default-signal=INT")  # background processes of a shell ignore Ctrl-C by default
INTERRUPT_SECONDS = 120.0  # seconds for an interrupted stage to remove its lab
SOME_FAILED = 1  # exit code of pytest when it is interrupted
# tests/tiers.py marks the tests of the full tier.
FAST = "not full and not long"
FULL = "full and not long and not vm"
EVERY_SCREEN = "(full or every_screen) and not long"  # `make test` judges these pages on one screen
ONE_SCREEN = {"AKS_FLEX_TEST_SCREENS": "1"}
MAX_RERUNS = 50  # with at most this many failures, which may be caused by load, the failed tests are rerun alone


@dataclass
class Stage:
    """One command of the suite with its labs and its result."""

    name: str
    command: list[str]
    labs: tuple[str, ...] = ()
    report: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    output: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    ended: float = 0.0
    failed: bool = True  # until it has passed
    unsteady: list[str] = field(default_factory=list)  # tests that passed only in the rerun

    def start(self, output: Path | None) -> None:
        """Starts the stage in its own process group, so that it receives Ctrl-C only once, from this program."""
        self.began, self.output = time.monotonic(), output
        lab = {"AKS_FLEX_TEST_LAB": self.labs[0]} if self.labs else {}
        environment = {**os.environ, **lab, **self.environment}
        stream = output.open("wb") if output else None
        try:
            self.process = subprocess.Popen(
                (*DEFAULT_SIGINT, *self.command),
                stdout=stream,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )
        finally:
            if stream:
                stream.close()

    def wait(self) -> None:
        assert self.process  # noqa: S101 - it was started
        self.failed = self.process.wait() != 0
        self.ended = time.monotonic()

    def interrupt(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Waits for the end of the stage, and kills it after a time limit."""
        if not self.process:
            return
        try:
            self.process.wait(INTERRUPT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def tests_failed(self) -> bool:
        """Whether tests failed, and not the stage as a whole."""
        ended = self.process.returncode if self.process else None
        return self.failed and ended == SOME_FAILED and bool(_failures(self))

    @property
    def result(self) -> str:
        return f"== {self.name}: {'FAILED' if self.failed else 'ok'} ({self.ended - self.began:.0f} s)"

    @property
    def progress(self) -> str:
        """Returns the progress: pytest prints a letter for each finished test."""
        text = self.output.read_text(errors="replace") if self.output and self.output.exists() else ""
        over = sum(map(len, re.findall(r"^[.FEsxX]+(?= *(?:\[|$))", text, re.MULTILINE)))
        return f"{self.name} ({over})" if over else self.name


@dataclass
class SuiteRun:
    """Runs stages sequentially or in parallel, and reports their results."""

    title: str
    reports: Path
    began: float = field(default_factory=time.monotonic)
    done: list[Stage] = field(default_factory=list)
    running: list[Stage] = field(default_factory=list)
    output_lock: threading.Lock = field(default_factory=threading.Lock)
    lanes: list[threading.Thread] = field(default_factory=list)
    labs: set[str] = field(default_factory=set)
    stopped: bool = False
    recorded: bool = False  # whether the run is recorded in the history of unsteady tests

    def tests(
        self,
        name: str,
        *arguments: str,
        marked: str = FAST,
        labs: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> Stage:
        report = self.reports / f"{name}.xml"
        own = (f"--junitxml={report}", "-o", f"cache_dir={self.reports / name}")
        command = [str(BIN / "pytest"), "-q", "--durations=12", *own, "-m", marked, *arguments]
        return Stage(f"{name} tests", command, labs, report, environment or {})

    def run_alone(self, stage: Stage) -> None:
        """Runs one stage and shows its output immediately."""
        self._show(stage)
        self.done.append(stage)

    def run_parallel(self, stages: list[Stage]) -> None:
        """Runs stages in parallel lanes; put the longest first. The output of a stage is shown at its end."""
        queue = deque(stages)
        self.lanes = [threading.Thread(target=self._lane, args=(queue,)) for _ in range(LANES)]
        for lane in self.lanes:
            lane.start()
        beat = time.monotonic() + PROGRESS_SECONDS
        while any(lane.is_alive() for lane in self.lanes):
            time.sleep(0.2)
            if time.monotonic() >= beat:
                beat += PROGRESS_SECONDS
                self._print_progress()

    def rerun_failed(self) -> None:
        """Reruns failed tests alone, if they are few.

        The lanes are a heavy load, and a failure that occurs only under this load may not be a defect of the code.
        The test is reported at the end, because it must be fixed.
        """
        failed = [stage for stage in self.done if stage.tests_failed]
        if sum(len(_failures(stage)) for stage in failed) > MAX_RERUNS:
            return
        for stage in failed:
            assert stage.report  # noqa: S101 - or none of its tests could have failed
            report = stage.report.with_suffix(".again.xml")
            arguments = ("--last-failed", "--last-failed-no-failures=none", f"--junitxml={report}")
            once_more = Stage(
                f"{stage.name} again, alone", [*stage.command, *arguments], stage.labs, report, stage.environment
            )
            self._show(once_more)
            if not once_more.failed:
                stage.failed, stage.unsteady = False, _failures(stage)

    def _show(self, stage: Stage) -> None:
        print(f"\n== {stage.name}", flush=True)
        self._run(stage, None)
        print(stage.result, flush=True)

    def _lane(self, queue: deque[Stage]) -> None:
        while not self.stopped:
            try:
                stage = queue.popleft()
            except IndexError:  # another lane took the last stage
                return
            output = self.reports / f"{stage.name}.log"
            self._run(stage, output)
            self.done.append(stage)
            with self.output_lock:
                print(f"\n== {stage.name}\n{output.read_text(errors='replace')}{stage.result}", flush=True)

    def _run(self, stage: Stage, output: Path | None) -> None:
        self.labs.update(stage.labs)
        self.running.append(stage)  # before it starts, so that an interruption stops it
        try:
            stage.start(output)
        except OSError as error:
            stage.ended = stage.began
            print(f"{stage.name}: {error}", flush=True)
        else:
            stage.wait()
        self.running.remove(stage)

    def _print_progress(self) -> None:
        now = ", ".join(stage.progress for stage in list(self.running))
        with self.output_lock:
            print(f"   {(time.monotonic() - self.began) / 60:.0f} min: running {now}", flush=True)

    def interrupt(self) -> None:
        """Stops all running stages, also those that a lane has just started."""
        self.stopped = True
        while True:
            stages = list(self.running)
            for stage in stages:
                stage.interrupt()
            for stage in stages:
                stage.end()
            if not any(lane.is_alive() for lane in self.lanes):
                return
            time.sleep(0.2)

    def finish(self) -> int:
        """Removes the labs and prints the result."""
        for lab in sorted(self.labs):
            subprocess.run([BIN / "aks-flex-lab", "--lab", lab, "down"], capture_output=True, check=False)
        total = sum((_counts(stage) for stage in self.done), Counter[str]())
        print(f"\n{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
        unsteady = [test for stage in self.done for test in stage.unsteady]
        for test in unsteady:
            print(f"UNSTEADY: {test} failed in parallel with other tests, and passed alone")
        failed = [stage.name for stage in self.done if stage.failed]
        if self.stopped:
            print(f"{self.title}: INTERRUPTED")
            return 130
        failed += ["unsteady tests"] if self.recorded and self._unsteady_too_often(unsteady) else []
        seconds = f"{time.monotonic() - self.began:.0f} s"
        what = f"FAILED in {seconds}: {', '.join(failed)}" if failed else f"PASSED in {seconds}"
        print(f"{self.title}: {what}")
        return 1 if failed else 0

    def _unsteady_too_often(self, unsteady: list[str]) -> bool:
        """Records this run, and prints the tests that were unsteady in more than one of the last runs."""
        history = history_file()
        repeated = record_run(history, unsteady)
        for test, count in repeated.items():
            print(f"UNSTEADY TOO OFTEN: {test}, in {count} of the last {KEPT_RUNS} runs")
        if repeated:
            print(f"Fix these tests or the code they test. When that is done, remove {history}.")
        return bool(repeated)


def _counts(stage: Stage) -> Counter[str]:
    counts: Counter[str] = Counter()
    if stage.report and stage.report.exists():
        for suite in Xml.parse(stage.report).getroot().iter("testsuite"):  # noqa: S314 - pytest wrote it just now
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped = int(suite.get("skipped", 0))
            passed = int(suite.get("tests", 0)) - failed - skipped
            counts.update(passed=passed, failed=failed, skipped=skipped)
    if stage.unsteady:
        counts.update(passed=counts.pop("failed", 0))
    return counts


def _failures(stage: Stage) -> list[str]:
    """Returns the names of the failed tests."""
    if not stage.report or not stage.report.exists():
        return []
    cases = Xml.parse(stage.report).getroot().iter("testcase")  # noqa: S314 - pytest wrote it just now
    bad = (each for each in cases if each.find("failure") is not None or each.find("error") is not None)
    return sorted({f"{each.get('classname')}::{each.get('name')}" for each in bad})


def run_test(suite: SuiteRun) -> None:
    """Runs `make test`: everything that needs no lab, and one or two scenarios of each promise in labs."""
    suite.run_alone(TOOLS)  # in a separate stage: with an empty cache they take most of the time
    suite.run_parallel(
        [
            suite.tests("unit", "tests/unit"),
            CHECKS,
            # The longest first; stages without a lab are between those with one, because labs need much CPU time.
            suite.tests("promises of a node", *MANAGED_NODES, labs=("test-node",)),
            suite.tests("provider", "tests/service/rp"),
            suite.tests("promises of a fleet", "tests/azure", *OTHER_NODES, labs=("test-fleet",)),
            suite.tests("browser", "tests/browser", environment=ONE_SCREEN),
            suite.tests("service", "tests/service", "--ignore=tests/service/rp"),
            suite.tests("crash", "tests/crash", "tests/damage"),
            suite.tests("az-extension", "tests/az_extension"),
            suite.tests("documents", "tests/docs", labs=("test-docs",)),
        ]
    )
    suite.rerun_failed()


def run_full(suite: SuiteRun) -> None:
    """Runs `make test-full`: what `make test` leaves out, except the tests marked `long`."""
    suite.run_alone(TOOLS)
    suite.run_alone(CONFORMANCE_TOOLS)
    suite.run_parallel(
        [
            suite.tests("virtual machine", "tests/vm", marked=FULL, labs=("test-vm",)),
            suite.tests("managed nodes", *MANAGED_NODES, marked=FULL, labs=("test-managed",)),
            suite.tests("provider", "tests/service/rp", marked=FULL),
            suite.tests("azure", "tests/azure", marked=FULL, labs=("test-azure",)),
            suite.tests("service", "tests/service", "--ignore=tests/service/rp", marked=FULL),
            suite.tests("join", *OTHER_NODES, marked=FULL, labs=("test-e2e",)),
            suite.tests("conformance", CLUSTER_NETWORK, marked=FULL, labs=("test-conf",)),
            suite.tests("lab", "tests/lab", marked=FULL, labs=("test", "test-b")),
            suite.tests("browser", "tests/browser", marked=EVERY_SCREEN),
            suite.tests("packages", "tests/packaging", marked=FULL, labs=("test-deb",)),
            suite.tests("remedies", "tests/remedies", marked=FULL, labs=("test-remedy",)),
            suite.tests("fuzz", "tests/fuzz", marked=FULL),
        ]
    )
    suite.rerun_failed()


def run_unit(suite: SuiteRun) -> None:
    suite.run_alone(suite.tests("unit", "tests/unit"))


def run_long(suite: SuiteRun) -> None:
    """Runs the tests that are too long for every change: the sweeps, and all tests marked `long`."""
    suite.run_alone(TOOLS)
    suite.run_alone(CONFORMANCE_TOOLS)
    suite.run_alone(suite.tests("long", "tests/long", marked="", labs=("test", "test-b")))
    # In a lab of its own: the other tests expect no cluster network.
    suite.run_alone(suite.tests("cluster", CLUSTER_NETWORK, marked="long", labs=("test-conf",)))
    others = ("tests", "--ignore=tests/long", f"--ignore={CLUSTER_NETWORK}")
    suite.run_alone(suite.tests("marked", *others, marked="long", labs=("test", "test-b")))


def run_vm(suite: SuiteRun) -> None:
    """Runs all tests in virtual machines. An argument is the number of random power losses."""
    suite.run_alone(TOOLS)
    cuts = next(iter(sys.argv[2:]), DEFAULT_POWER_CUTS)
    options = (f"--power-cuts={cuts}", "--figures=dist/virtual-machines.json")
    suite.run_alone(suite.tests("virtual machine", "tests/vm", *options, marked="", labs=("test-vm",)))


# The tests of nodes in two halves, which run in parallel in two labs.
MANAGED_NODES = [*map(str, sorted(Path("tests/e2e").glob("test_managed_node*.py"))), "tests/e2e/test_dashboard.py"]
OTHER_NODES = ["tests/e2e", *(f"--ignore={path}" for path in MANAGED_NODES)]
CLUSTER_NETWORK = "tests/conformance"
TOOLS = Stage("tools", [str(BIN / "aks-flex-lab"), "tools", "install"])
# Most labs do not need these, so that `tools install` installs them only by name.
CONFORMANCE_TOOLS = Stage(
    "tools of the conformance tests", [*TOOLS.command, *NETWORK_TOOLS, go_tool("kubernetes-e2e").selector]
)
CHECKS = Stage("lint", ["scripts/lint"])
KINDS = {
    "test": ("make test", run_test),
    "full": ("make test-full", run_full),
    "unit": ("make test-unit", run_unit),
    "long": ("make test-long", run_long),
    "vm": ("make test-vm", run_vm),
}
DEFAULT_POWER_CUTS = "30"


def main() -> int:
    os.chdir(Path(__file__).parents[1])
    kind = sys.argv[1] if len(sys.argv) > 1 else "test"
    if kind not in KINDS:
        print(f"suite.py: unknown kind {kind!r}; use one of {', '.join(KINDS)}.", file=sys.stderr)
        return 2
    title, work = KINDS[kind]
    with tempfile.TemporaryDirectory() as reports:
        suite = SuiteRun(title, Path(reports), recorded=kind in {"test", "full"})

        def stop(_number: int, _frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        try:
            work(suite)
        except KeyboardInterrupt:
            suite.interrupt()
        return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
