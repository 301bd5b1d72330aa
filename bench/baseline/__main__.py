"""Joins new machines with the baseline script and prints the time of each phase; the last line is one JSON object."""

from __future__ import annotations

from aks_flex_lab.baseline.join import BaselineSettings, join
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.versions import NodeVersions
from bench.figures import print_result, print_round, spreads
from bench.lab import added_machine, running_lab
from bench.options import LAB, SYSTEM, Option, parse

OPTIONS = (
    Option("--rounds", 5, "number of machines, one after another"),
    LAB,
    SYSTEM,
    Option("--containerd", NodeVersions.containerd),
    Option("--kubernetes", NodeVersions.kubernetes),
    Option("--no-node-ip", False, "let the kubelet resolve its own name"),
    Option("--cgroupfs", False, "the cgroupfs driver instead of systemd's"),
)


def main() -> None:
    options = parse("baseline", __doc__, *OPTIONS)
    settings = BaselineSettings(
        NodeVersions(kubernetes=options.kubernetes, containerd=options.containerd),
        node_ip=not options.no_node_ip,
        systemd_cgroup=not options.cgroupfs,
    )
    rounds: list[dict[str, float]] = []
    with running_lab(options.lab) as lab:
        for number in range(1, options.rounds + 1):
            with added_machine(lab, f"baseline-{number}", DebianRelease(options.os)) as machine:
                joined = join(lab, machine, settings)
            rounds.append({**joined.phases, "to_ready": joined.ready})
            print_round(f"round {number}", rounds[-1])
    print_result("baseline", rounds=len(rounds), os=options.os, seconds=spreads(rounds, 3))


if __name__ == "__main__":
    main()
