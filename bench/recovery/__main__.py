"""Damages a managed node and measures the time until it has recovered; the last line is one JSON object.

Each fault is injected in turn on one machine; provider and API server are away for several machines at once. The
time ends when the Node is Ready, its kubelet has renewed its lease since the fault, and `verify` finds no difference;
for a killed job, when the job runs again, and for a power cut in an upgrade, when the Node is Ready. For an
unreachable provider or API server, and for a full disk, it starts when the cause is gone. `cpu` is the CPU time of
the daemon in the busiest minute of the fault, in percent of a core; `children` is that of the processes that it
starts and waits for, of which the sign-in to Entra ID is the largest.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from bench.figures import print_result
from bench.lab import added_machine, running_lab
from bench.options import LAB, Option, parse
from bench.recovery.absences import ABSENCES, measure
from bench.recovery.cpu_sampler import CpuSampler, Figure
from bench.recovery.faults import FAULTS, VERSIONS, FaultInjector
from tests.managed_node import ManagedLabNode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab

    Fault = Callable[[], float]
    Figures = dict[str, list[Figure]]  # by fault

EVERY = (*FAULTS, *ABSENCES)
OPTIONS = (
    Option("--rounds", 5, "times that each fault is injected"),
    Option("--away", 600.0, "seconds that provider and API server are away"),
    Option("--away-nodes", 5, "nodes for which they are away at the same time"),
    Option("--only", EVERY, "inject only these faults", EVERY),
    LAB,
)


def measured(lab: Lab, options: argparse.Namespace) -> Figures:
    figures: Figures = {}
    with ExitStack() as nodes:
        injectors = [FaultInjector(nodes.enter_context(joined_node(lab, 1)))]
        for number, name, fault in chosen(injectors[0], options):
            injectors[0].settle()
            with CpuSampler(injectors[0].node.machine) as sampler:
                seconds = fault()
            record(figures, f"round {number}", name, Figure.of(seconds, sampler))
        absences = [name for name in ABSENCES if name in options.only]
        if absences:
            others = range(2, options.away_nodes + 1)
            injectors += [FaultInjector(nodes.enter_context(joined_node(lab, number))) for number in others]
        for name in absences:
            for number, figure in enumerate(measure(lab, name, options.away, injectors), 1):
                record(figures, f"node {number}", name, figure)
    return figures


def record(figures: Figures, which: str, name: str, figure: Figure) -> None:
    figures.setdefault(name, []).append(figure)
    print(f"{which}, {name}: {figure.seconds:.1f} s, cpu {figure.cpu:.2f} %, {figure.children:.2f} %", flush=True)


@contextmanager
def joined_node(lab: Lab, number: int) -> Iterator[ManagedLabNode]:
    """Adds a machine that has joined; removes it at the end."""
    with added_machine(lab, f"recovery-{number}") as machine:
        node = ManagedLabNode.make(lab, machine, versions={"kubernetes": VERSIONS[0]})
        try:
            node.join()
            yield node
        finally:
            node.delete()


def chosen(injector: FaultInjector, options: argparse.Namespace) -> Iterator[tuple[int, str, Fault]]:
    for number in range(1, options.rounds + 1):
        faults = injector.faults()
        yield from ((number, name, fault) for name, fault in faults.items() if name in options.only)


def summary(found: list[Figure]) -> dict[str, float]:
    seconds = [each.seconds for each in found]
    return {
        "median": round(statistics.median(seconds), 1),
        "least": round(min(seconds), 1),
        "most": round(max(seconds), 1),
        "rounds": len(seconds),
        "cpu": round(max(each.cpu for each in found), 2),
        "children": round(max(each.children for each in found), 2),
    }


def table(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield f"{'fault':25}  {'median':>8}  {'worst':>8}  {'cpu':>7}  {'children':>8}"
    for name, one in found.items():
        times, use = (one["median"], one["most"]), (one["cpu"], one["children"])
        yield "{:25}  {:6.1f} s  {:6.1f} s  {:5.2f} %  {:6.2f} %".format(name, *times, *use)


def main() -> None:
    options = parse("recovery", __doc__, *OPTIONS)
    with running_lab(options.lab) as lab:
        found = {name: summary(figures) for name, figures in measured(lab, options).items()}
    print("\n".join(table(found)))
    print_result("recovery", away=options.away, faults=found)


if __name__ == "__main__":
    main()
