"""`make conformance`: runs Kubernetes' conformance tests on two flex nodes of a lab, and prints the result."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from aks_flex_lab.cli.console import TerminalProgress
from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.machines.base_system import DebianRelease
from tests.conformance.images import ETCD_TOOL
from tests.conformance.result import ConformanceResult, details, summary, table
from tests.conformance.suite import forget_images, prepare_cluster, push_images, run_conformance

NODES = ("conformance-1", "conformance-2")
REPEATED = 30  # more failures than these are not repeated: something is wrong with all


def main() -> int:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--lab", default="conformance", help="name of the lab")
    parser.add_argument("--focus", action="append", default=[], help="a part of the names of tests; repeatable")
    parser.add_argument("--processes", type=int, default=6, help="number of tests at the same time")
    parser.add_argument(
        "--report", type=Path, default=Path("dist/conformance"), help="directory for logs and reports"
    )
    parser.add_argument("--keep", action="store_true", help="keep the lab, and use it if it is running")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as on Ctrl-C
    lab, began = Lab(lab_layout(options.lab), (ETCD_TOOL,)), time.monotonic()
    try:
        prepare_lab(lab, keep=options.keep)
        print(f"Two nodes are ready after {time.monotonic() - began:.0f} s.", flush=True)
        result = run(lab, options.report.absolute(), options.processes, options.focus)
        # Before the lab is removed, which may fail or be interrupted.
        (options.report / "result.md").write_text(table(result))
        for line in (*details(result, everything=not options.focus), summary(result, time.monotonic() - began)):
            print_line(line)
        print_line(f"Logs and figures: {options.report}")
    finally:
        if not options.keep:
            lab.down()
    return exit_code(result, everything=not options.focus)


def run(lab: Lab, report: Path, processes: int, focus: list[str]) -> ConformanceResult:
    """Runs the tests in parallel, and those that failed once more, alone: many fail on a busy machine only."""
    result = run_conformance(lab, report, processes, focus, print_line)
    if not 0 < len(result.failed) <= REPEATED:
        return result
    print_line(f"{len(result.failed)} failed; they run again, alone")
    return result.after_repetition(run_conformance(lab, report / "again", 1, result.failed, print_line))


def print_line(line: str) -> None:
    print(line, flush=True)


def exit_code(result: ConformanceResult, *, everything: bool) -> int:
    return 1 if result.failed or not result.passed or (everything and result.not_run) else 0


def prepare_lab(lab: Lab, *, keep: bool) -> None:
    progress = TerminalProgress()
    if keep and lab.exists:
        push_images(lab, progress)  # they may have changed
        for machine in lab.inventory.all():
            forget_images(machine)
        return
    lab.down()
    lab.up(progress)
    with lab.exclusive():
        machines = [lab.inventory.add(name, DebianRelease.BOOKWORM, "site-1") for name in NODES]
    prepare_cluster(lab, machines, progress)


if __name__ == "__main__":
    sys.exit(main())
