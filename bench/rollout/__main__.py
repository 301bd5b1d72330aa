"""Rolls revisions out to real machines of a lab in three waves; the last line is one JSON.

`ratio` compares the time of a whole roll-out with the sum of its waves, each from the first node that begins to the
last that is updated. `halt_s` is the time from the first report of a failure, as the provider shows it, until the
roll-out no longer starts nodes. `touched` are the nodes that got the bad revision.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network, node_agent
from aks_flex_lab.broken_release import broken_containerd
from bench.figures import print_result
from bench.lab import add_machine, running_lab
from bench.options import LAB, Option, parse
from tests.enrolled_node import Enrolments
from tests.providers import Provider
from tests.wait import until, until_named

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

PLAN = {"waves": ["1", "50%", "100%"], "maxUnavailable": "100%", "soakSeconds": 0, "onFailure": "halt"}
BAD = "2.99.99"


def joined(lab: Lab, pool: Enrolments, count: int) -> list[EdgeMachine]:
    machines = []
    for number in range(1, count + 1):
        machine = add_machine(lab, f"wave-{number}", network="factory")
        until_named(machine, network.PROVIDER_NAME)
        node_agent.install(machine)
        machines.append(machine)
    _, url = pool.create(maxUses=count)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda each: each.run("aks-flex-node", "agent", "--config-url", url, timeout=600), machines))
    for machine in machines:
        until(lambda name=machine.name: is_ready(pool, name), f"{machine.name} is Ready")  # type: ignore[misc]
    return machines


def is_ready(pool: Enrolments, name: str) -> bool:
    conditions = pool.provider.get(name)["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def good(pool: Enrolments) -> dict[str, float]:
    pool.put_pool(versions={"kubernetes": "1.36.3"})
    began = time.perf_counter()
    pool.ask("PUT", "rollouts", "good", body={"properties": PLAN})
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    while not (shown := pool.ask("GET", "rollouts", "good")["properties"]).get("endedAt"):
        now = time.perf_counter()
        for wave in shown["waveProgress"]:
            if wave["updating"] + wave["updated"]:
                first.setdefault(wave["wave"], now)
            if wave["updated"] == wave["nodes"]:
                last.setdefault(wave["wave"], now)
        time.sleep(0.1)
    whole = time.perf_counter() - began
    if shown["state"] != "Succeeded":
        raise SystemExit(f"The roll-out is {shown['state']}: {shown.get('reason')}")
    last.setdefault(max(first), time.perf_counter())
    waves = [last[wave] - first[wave] for wave in sorted(first)]
    return {"whole_s": round(whole, 1), "waves_s": round(sum(waves), 1), "ratio": round(whole / sum(waves), 2)}


def bad(lab: Lab, pool: Enrolments, names: list[str]) -> dict[str, Any]:
    before = {name: pool.provider.get(name)["configVersion"] for name in names}
    with broken_containerd(lab, BAD):
        pool.put_pool(versions={"kubernetes": "1.36.3", "containerd": BAD})
        pool.ask("PUT", "rollouts", "bad", body={"properties": PLAN})
        reported = halted = 0.0
        while not halted:
            if not reported and "failedConfigVersion" in pool.provider.get(names[0])["status"]:
                reported = time.perf_counter()
            if pool.ask("GET", "rollouts", "bad")["properties"]["state"] == "Halted":
                halted = time.perf_counter()
            time.sleep(0.05)
    touched = [name for name in names if pool.provider.get(name)["configVersion"] != before[name]]
    return {"halt_s": round(max(0.0, halted - (reported or halted)), 2), "touched": touched}


def main() -> None:
    options = parse("rollout", __doc__, LAB, Option("--machines", 6))
    with running_lab(options.lab) as lab:
        pool = Enrolments(Provider(lab), "waves")
        pool.put_pool(versions={"kubernetes": "1.35.4"})
        machines = joined(lab, pool, options.machines)
        found: dict[str, Any] = {"machines": options.machines, **good(pool)}
        found |= bad(lab, pool, [machine.name for machine in machines])
    print_result("rollout", **found)


if __name__ == "__main__":
    main()
