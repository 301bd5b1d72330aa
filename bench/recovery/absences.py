"""Measures how long several nodes take to recover after the provider or the API server was away.

All nodes wait for the same end of one absence, so that five nodes give five figures. The time ends when the kubelet
has renewed its lease, the Node is Ready and the provider has heard of the daemon; only then is each node verified,
because that costs CPU time which would delay the others.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from aks_flex_lab.cli.console import TerminalProgress
from aks_flex_node.timestamps import parse_timestamp
from bench.recovery.cpu_sampler import CpuSampler, Figure
from bench.recovery.faults import RECOVERY_SECONDS, FaultInjector
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_lab.lab import Lab

PROVIDER = "provider away"
API_SERVER = "API server away"
ABSENCES = (PROVIDER, API_SERVER)


def measure(lab: Lab, name: str, seconds: float, injectors: Sequence[FaultInjector]) -> list[Figure]:
    """Returns the figures of each node."""
    for injector in injectors:
        injector.settle()
    with ExitStack() as running:
        samplers = [running.enter_context(CpuSampler(each.node.machine)) for each in injectors]
        with _absent(lab, name):
            time.sleep(seconds)
        recovered = _recovery_seconds(injectors)
        for injector in injectors:
            injector.settle()
    return [Figure.of(took, sampler) for took, sampler in zip(recovered, samplers, strict=True)]


@contextmanager
def _absent(lab: Lab, name: str) -> Iterator[None]:
    if name == API_SERVER:
        lab.fault_proxy.set_enabled("api", on=False)
        try:
            yield
        finally:
            lab.fault_proxy.set_enabled("api", on=True)
        return
    process = lab.supervisor.process("provider")
    if process:
        process.kill()
    try:
        yield
    finally:
        lab.up(TerminalProgress())


def _recovery_seconds(injectors: Sequence[FaultInjector]) -> list[float]:
    began, start = time.time(), time.monotonic()
    found: dict[int, float] = {}

    def all_recovered() -> bool:
        for number, injector in enumerate(injectors):
            if number not in found and _is_back(injector, began):
                found[number] = time.monotonic() - start
        return len(found) == len(injectors)

    until(all_recovered, "all nodes have recovered", RECOVERY_SECONDS)
    return [found[number] for number in range(len(injectors))]


def _is_back(injector: FaultInjector, began: float) -> bool:
    seen = str(injector.node.provider.get(injector.node.name).get("lastSeen", ""))
    return (
        bool(seen)
        and parse_timestamp(seen).timestamp() > began
        and injector.renewed() > began
        and injector.is_ready()
    )
