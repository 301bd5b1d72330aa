"""`make conformance`: runs Kubernetes' conformance tests on two flex nodes of a lab, and prints the result."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from aks_flex_lab.cli.console import TerminalProgress
from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.machines.base_system import DebianRelease
from tests.conformance.suite import ConformanceResult, prepare_cluster, run_conformance

NODES = ("conformance-1", "conformance-2")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--lab", default="conformance", help="name of the lab")
    parser.add_argument("--focus", action="append", default=[], help="a part of the names of tests; repeatable")
    parser.add_argument("--processes", type=int, default=8, help="number of tests at the same time")
    parser.add_argument("--report", type=Path, default=Path("dist/conformance"), help="directory for log and report")
    parser.add_argument("--keep", action="store_true", help="keep the lab, and use it if it is running")
    options = parser.parse_args()
    lab, began = Lab(lab_layout(options.lab)), time.monotonic()
    try:
        prepare_lab(lab, keep=options.keep)
        print(f"Two nodes are ready after {time.monotonic() - began:.0f} s.", flush=True)
        result = run_conformance(lab, options.report.absolute(), options.processes, options.focus)
    finally:
        if not options.keep:
            lab.down()
    print_result(result, time.monotonic() - began, options.report)
    return 1 if result.failed or not result.passed else 0


def prepare_lab(lab: Lab, *, keep: bool) -> None:
    progress = TerminalProgress()
    if keep and lab.exists:
        return
    lab.down()
    lab.up(progress)
    with lab.exclusive():
        machines = [lab.inventory.add(name, DebianRelease.BOOKWORM, "site-1") for name in NODES]
    prepare_cluster(lab, machines, progress)


def print_result(result: ConformanceResult, seconds: float, report: Path) -> None:
    for name in result.failed:
        print(f"FAILED: {name}")
    for excluded in result.excluded:
        print(f"CANNOT RUN: {excluded.test}: {excluded.reason}")
    print(f"Conformance: {len(result.passed)} passed, {len(result.failed)} failed, ", end="")
    print(f"{result.runnable} runnable, {result.total} total ({seconds:.0f} s). Log: {report / 'log'}")


if __name__ == "__main__":
    sys.exit(main())
