"""Runs all benchmarks, one after another, and writes their figures into the page `docs/measurements.md`.

The last line of every benchmark is one JSON object. All of them are stored in `results.json`, so that `--render` can
write the page again without measuring. If a benchmark fails, the page is not written; the earlier results are kept,
and `--only` measures the rest. `--quick` checks that all benchmarks work: its figures are not valid, and the page is
written to another directory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from aks_flex_lab.files import write_atomically
from bench.measurements.report import BENCHMARKS, Benchmark, page_with_figures

PAGE = Path(__file__).parents[2] / "docs/measurements.md"
RESULTS = Path(__file__).with_name("results.json")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.measurements", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[part.name for part in BENCHMARKS],
        help="run only these benchmarks; keep the results of the others",
    )
    parser.add_argument(
        "--quick",
        type=Path,
        metavar="DIR",
        help="check that all benchmarks work, and write the page into this directory",
    )
    parser.add_argument("--render", action="store_true", help="write the page from stored results")
    return parser.parse_args()


def machine() -> dict[str, str]:
    model = next(
        (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), ""
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "processor": model.partition(": ")[2] or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
    }


def _git(*arguments: str) -> str:
    return subprocess.run(
        ("git", *arguments), capture_output=True, text=True, check=True, cwd=PAGE.parent
    ).stdout.strip()


def measured(part: Benchmark, *, quick: bool) -> dict[str, Any]:
    """Runs a benchmark, shows its output, and returns its result."""
    command = part.command(quick=quick).split()[2:]
    print(f"\n== {part.title}: {part.command(quick=quick)}", flush=True)
    began, last = time.monotonic(), ""
    with subprocess.Popen((sys.executable, "-m", *command), stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            last = line
            print(f"   {line.rstrip()[:200]}", flush=True)
    if process.returncode:
        raise SystemExit(f"bench.{part.name} failed with exit code {process.returncode}. The page was not written.")
    seconds = round(time.monotonic() - began)
    return {
        "command": part.command(quick=quick),
        "seconds": seconds,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "day": time.strftime("%Y-%m-%d"),
        "found": json.loads(last),
    }


def main() -> None:
    options = arguments()
    page, results = PAGE, RESULTS
    if options.quick:
        options.quick.mkdir(parents=True, exist_ok=True)
        page, results = options.quick / PAGE.name, options.quick / RESULTS.name
    figures: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {"parts": {}}
    if not options.render:
        figures |= {"machine": machine(), "command": "make bench"}
        for part in [part for part in BENCHMARKS if not options.only or part.name in options.only]:
            figures["parts"][part.name] = measured(part, quick=bool(options.quick))
            write_atomically(results, json.dumps(figures, indent=1) + "\n", 0o644)
    page.write_text(page_with_figures(PAGE.read_text(), figures))
    print(f"\n{page} is written.")


if __name__ == "__main__":
    main()
