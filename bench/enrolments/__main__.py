"""Enrols machines at once with one URL in a lab, with its real provider and cluster; the last line is JSON.

First simulated agents, each with a key of its own: `p99` is the time of an answer in seconds. Then, with
`--machines`, real machines: `ratio` compares the time until all are Ready with the time of one. The machines of a lab
share its cores: `busy` is the part of all cores that was used meanwhile, and `cpu_ratio` compares the CPU time of a
machine among many with that of one.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network, node_agent
from aks_flex_node.timestamps import format_utc
from bench.figures import print_result
from bench.lab import add_machine, running_lab
from bench.options import LAB, Option, parse
from bench.rp_load.connections import percentile
from tests.providers import VERSION, Provider
from tests.service.rp.api.client import Connection
from tests.service.rp.api.enrolling_machine import EnrollingMachine
from tests.service.rp.api.traffic_recorder import Recording
from tests.wait import until_named

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

POOL = "bench"
OPTIONS = (
    LAB,
    Option("--agents", 50),
    Option("--rounds", 3),
    Option("--machines", 0, "real machines, besides a first one"),
)


class Pool:
    def __init__(self, lab: Lab) -> None:
        self.provider = Provider(lab)
        self.path = f"{self.provider.cluster}/flexNodePools/{POOL}"
        self.ask("PUT", body={"properties": {"template": {"continuousMonitoring": True}}})

    def ask(self, method: str, *below: str, body: Any = None) -> Any:
        answer = self.provider.ask(method, f"{'/'.join((self.path, *below))}?{VERSION}", body)
        if answer.status not in {200, 201, 204}:
            raise SystemExit(f"{method} {below}: {answer}")
        return answer.document

    def enrolment(self, uses: int, rule: str) -> tuple[str, str]:
        body = {"maxUses": uses, "expires": format_utc(time.time() + 3600), "nodeName": rule}
        made = self.ask("POST", "enrolments", body=body)
        return made["name"], made["properties"]["enrolmentUrl"]

    def remove_nodes(self, key: str) -> int:
        """Deletes the nodes of an enrolment. Returns their number."""
        machines = self.ask("POST", "enrolments", key, "listMachines")["value"]
        for each in machines:
            self.provider.delete(each["nodeName"])
        return len({each["nodeName"] for each in machines})


def simulate(pool: Pool, connection: Connection, agents: int, number: int) -> list[float]:
    """Returns the seconds of each answer. Ends the program if a name or a use was given twice."""
    key, url = pool.enrolment(agents, f"sim-{number}-{{number:03}}")
    url = url.replace(f"https://{network.PROVIDER_NAME}", connection.url)
    # The agents sign on machines of their own, so that is not measured here.
    machines = [EnrollingMachine(f"sim-{number}-{each}") for each in range(agents)]
    proofs = {machine.hostname: machine.key.url_proof(url) for machine in machines}

    def enrol(machine: EnrollingMachine) -> tuple[float, str]:
        begun = time.perf_counter()
        answer = machine.enrol(connection, url, proof=proofs[machine.hostname])
        if answer.status != 200:
            raise SystemExit(f"An agent was refused: {answer.text}")
        return time.perf_counter() - begun, answer.json["config"]["node"]["name"]

    with ThreadPoolExecutor(agents) as threads:
        found = list(threads.map(enrol, machines))
    uses = pool.ask("GET", "enrolments", key)["properties"]["uses"]
    if len({name for _, name in found}) != agents or uses != agents or pool.remove_nodes(key) != agents:
        raise SystemExit(f"{agents} agents got {len({name for _, name in found})} names and {uses} uses.")
    return [seconds for seconds, _ in found]


def busy_seconds() -> float:
    """Returns the CPU time of all processes of this host since it started."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def real(lab: Lab, pool: Pool, count: int, first: int) -> tuple[float, float]:
    """Returns the seconds from one URL until all machines are Ready, and the CPU time of the host meanwhile."""
    machines = []
    for number in range(first, first + count):
        machine = add_machine(lab, f"bench-{number}", network="factory")
        until_named(machine, network.PROVIDER_NAME)
        node_agent.install(machine)
        machines.append(machine)
    key, url = pool.enrolment(count, "{hostname}")

    def join(machine: EdgeMachine) -> None:
        machine.run("aks-flex-node", "agent", "--config-url", url, timeout=600)

    begun, busy = time.perf_counter(), busy_seconds()
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(join, machines))
    seconds, busy = time.perf_counter() - begun, busy_seconds() - busy
    pool.remove_nodes(key)
    for machine in machines:
        lab.inventory.remove(machine)
    return seconds, busy


def main() -> None:
    options = parse("enrolments", __doc__, *OPTIONS)
    with running_lab(options.lab) as lab:
        pool = Pool(lab)
        connection = Connection.to(pool.provider.origin, str(lab.provider.authority), Recording(), options.agents)
        taken: list[float] = []
        for number in range(1, options.rounds + 1):
            found = simulate(pool, connection, options.agents, number)
            taken += found
            print(f"round {number}:  slowest {max(found):.3f} s", flush=True)
        ordered = sorted(taken)
        result: dict[str, Any] = {"agents": options.agents, "rounds": options.rounds}
        result |= {f"p{percent}": round(percentile(ordered, percent), 3) for percent in (50, 99)}
        if options.machines:
            one, one_cpu = real(lab, pool, 1, 1)
            many, many_cpu = real(lab, pool, options.machines, 2)
            result |= {"machines": options.machines, "one": round(one, 1), "all": round(many, 1)}
            result["ratio"] = round(many / one, 2)
            cores = os.cpu_count() or 1
            result["busy"] = {"one": round(one_cpu / one / cores, 2), "all": round(many_cpu / many / cores, 2)}
            result["cpu_ratio"] = round(many_cpu / options.machines / one_cpu, 2)
        pool.ask("DELETE")
    print_result("enrolments", **result)


if __name__ == "__main__":
    main()
