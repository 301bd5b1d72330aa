"""Runs random operations and faults on three machines, then checks the result. The last line is JSON.

A seed, which is printed, determines the operations (changes of labels, taints, versions and secrets; changes by hand;
power cuts; pauses; deletion and re-creation) and faults (provider killed, API server unreachable or slow, mirror slow
or failing). Exit code 1 means that the observed state differs from the desired state at the end.
"""

from __future__ import annotations

import json
import random
import secrets
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.lab import add_machine, running_lab
from bench.options import LAB, Option, parse
from bench.soak.memory_sampler import MemorySampler
from bench.soak.operations import FAULTS, LONGEST_FAULT, any_operation, join_all, leftovers
from tests.chaos.invariants import settle, wrong

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from aks_flex_lab.lab import Lab
    from bench.soak.operations import SoakFault
    from tests.chaos.attempts import Tried

LONGEST_PAUSE = 6.0  # maximum seconds between two operations; on average half of it
LONGEST_PEACE = 30.0  # maximum seconds between two faults
OPTIONS = (
    Option("--minutes", 60.0, "duration of operations and faults"),
    Option("--seed", None, "the printed seed of an earlier run, to repeat it", kind=int),
    Option("--machines", 3),
    replace(LAB, default="soak"),
    Option("--json", None, "file for the result", kind=Path),
)
QUIET_SECONDS = 420.0  # a failed job is retried after one, two and four minutes


class Soak:
    def __init__(self, lab: Lab, nodes: Sequence[Tried], seed: int) -> None:
        self.lab, self.nodes, self.seed = lab, nodes, seed
        self.counted: Counter[str] = Counter()
        self.troubles: list[str] = []
        self._began = time.monotonic()
        self._over = threading.Event()

    def run(self, seconds: float) -> None:
        with ThreadPoolExecutor(1) as pool:
            weather = pool.submit(self._weather)
            try:
                running = self._operations(seconds)
            finally:
                self._over.set()
        if error := weather.exception():
            self.troubles.append(f"a fault could not be injected or removed: {error!r}")
        for each in running:
            if error := each.exception():
                self.troubles.append(f"an operation failed: {error}")
        self._quiesce()

    def _operations(self, seconds: float) -> list[Future[object]]:
        chance = random.Random(self.seed)  # noqa: S311 - not for secrecy
        running: list[Future[object]] = []
        while time.monotonic() - self._began < seconds:
            node, operation = chance.choice(self.nodes), any_operation(chance)
            if sum(not each.done() for each in running) < 3 * len(
                self.nodes
            ):  # waiting operations would add no information
                self._say(f"{node.name}: {operation.sentence}")
                self.counted[_kind(operation.sentence)] += 1
                running.append(node.lane.submit(operation.do, node))
            time.sleep(chance.uniform(0, LONGEST_PAUSE))
        return running

    def _weather(self) -> None:
        """Injects one fault at a time, so that a failure can be attributed to it."""
        chance = random.Random(self.seed + 1)  # noqa: S311 - not for secrecy
        waiting: list[SoakFault] = []
        while not self._over.wait(chance.uniform(0, LONGEST_PEACE)):
            waiting = waiting or chance.sample(FAULTS, len(FAULTS))  # every fault occurs once before one is repeated
            fault, lasting = waiting.pop(), chance.uniform(1, LONGEST_FAULT)
            self._say(f"for {lasting:.0f} s, {fault.sentence}")
            self.counted[fault.sentence] += 1
            with fault.lasts(self.lab):
                self._over.wait(lasting)

    def _quiesce(self) -> None:
        """Resumes updates and changes each node once more, because a new change retries failed ones."""
        self._say("operations are finished; waiting until all nodes are reconciled")
        last = {"chaos.example/last": f"seed-{self.seed}"}
        for each in [node.lane.submit(node.want, labels=last, paused=False) for node in self.nodes]:
            if error := each.exception():
                self.troubles.append(f"the last change was not accepted: {error}")
        try:
            settle(self.nodes, QUIET_SECONDS)
        except AssertionError as error:
            self._say(str(error))
        self.troubles += [f"{node.name}: {each}" for node in self.nodes for each in wrong(node)]
        self.troubles += [each for node in self.nodes for each in leftovers(node)]
        self._say(
            "the observed state matches the desired state"
            if not self.troubles
            else "the observed state differs from the desired state"
        )

    def result(self, memory: MemorySampler) -> dict[str, Any]:
        return {
            "bench": "soak",
            "seed": self.seed,
            "machines": len(self.nodes),
            "seconds": round(time.monotonic() - self._began),
            "happened": dict(sorted(self.counted.items())),
            "memory": memory.summary(),
            "troubles": self.troubles,
        }

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)


def _kind(sentence: str) -> str:
    """Returns a text without its names and numbers, to count texts of one kind."""
    return " ".join(word for word in sentence.split() if not any(mark.isdigit() or mark == "/" for mark in word))


def print_result(result: dict[str, Any]) -> None:
    print(f"\n{'happened':<52} times")
    for what, times in result["happened"].items():
        print(f"{what:<52} {times:5}")
    print(f"\n{'memory in MiB':<24} {'first':>8} {'most':>8} {'last':>8} {'growth':>8} {'processes':>10}")
    for name, of in result["memory"].items():
        figures = (of["first_mib"], of["most_mib"], of["last_mib"], of["growth_mib"])
        print(f"{name:<24} {' '.join(f'{each:8.1f}' for each in figures)} {of['processes']:10}")
    print(f"\nseed {result['seed']}, {result['seconds']} s: " + ("sound" if not result["troubles"] else "NOT SOUND"))
    for trouble in result["troubles"]:
        print(f"  {trouble}")


def main() -> int:
    options = parse("soak", __doc__, *OPTIONS)
    seed = options.seed if options.seed is not None else secrets.randbelow(10**6)
    print(f"seed {seed}; repeat with: python -m bench.soak --minutes {options.minutes:g} --seed {seed}", flush=True)
    with running_lab(options.lab) as lab:
        numbers = range(1, options.machines + 1)
        nodes = join_all(lab, [add_machine(lab, f"soak-{number}", network="site-1") for number in numbers])
        with MemorySampler(lab, nodes) as memory:
            soak = Soak(lab, nodes, seed)
            soak.run(60 * options.minutes)
        result = soak.result(memory)
    print_result(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 1 if result["troubles"] else 0


if __name__ == "__main__":
    sys.exit(main())
