"""Collects all sections of a snapshot and prints them as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aks_flex_lab.snapshots.collector.file_state import file_rows
from aks_flex_lab.snapshots.collector.kernel_state import (
    cgroup_rows,
    file_systems,
    parse_modules,
    parse_mounts,
    parse_swaps,
    split_sysctls,
    sysctl_rows,
)
from aks_flex_lab.snapshots.collector.network_state import (
    iptables_tables,
    parse_ipsets,
    parse_iptables,
    parse_links,
    parse_nft,
    parse_routes,
    parse_rules,
)
from aks_flex_lab.snapshots.collector.probe import read_text, run_program, wait_until_booted
from aks_flex_lab.snapshots.collector.service_state import (
    group_rows,
    lasting_processes,
    parse_sockets,
    parse_units,
    running_processes,
    user_rows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_lab.snapshots.collector.probe import Rows

FORMAT = 1

# The programs to run. If one is not installed, its section is empty, and the section `host` reports it.
COMMANDS = {
    "unit list": ("systemctl", "list-units", "--all", "--full", "--plain", "--no-legend", "--no-pager"),
    "unit files": ("systemctl", "list-unit-files", "--full", "--no-legend", "--no-pager"),
    "links": ("ip", "-json", "-details", "address", "show"),
    "routes": ("ip", "-json", "-4", "route", "show", "table", "all"),
    "routes 6": ("ip", "-json", "-6", "route", "show", "table", "all"),
    "rules": ("ip", "-json", "-4", "rule", "show"),
    "rules 6": ("ip", "-json", "-6", "rule", "show"),
    "sockets": ("ss", "-tulpnH"),
    "iptables": ("iptables-nft-save",),
    "iptables 6": ("ip6tables-nft-save",),
    "iptables legacy": ("iptables-legacy-save",),
    "iptables legacy 6": ("ip6tables-legacy-save",),
    "nft": ("nft", "--stateless", "list", "ruleset"),
    "ipset": ("ipset", "save"),
}


def main() -> None:
    start = time.monotonic()
    wait_until_booted()
    sections = collect()
    document = {"format": FORMAT, "seconds": round(time.monotonic() - start, 2), "sections": sections}
    json.dump(document, sys.stdout, separators=(",", ":"))


def collect() -> dict[str, Rows]:
    """Collects all sections: commands in parallel with files, and processes before and after."""
    before = running_processes()
    mountinfo = read_text("/proc/self/mountinfo")
    with ThreadPoolExecutor(len(COMMANDS)) as pool:
        replies = {name: pool.submit(run_program, *argv) for name, argv in COMMANDS.items()}
        found = file_rows("/", file_systems(mountinfo))
        answers = {name: reply.result() for name, reply in replies.items()}
    return {
        **program_sections(answers),
        **kernel_sections(mountinfo),
        "file": found,
        "user": user_rows(),
        "group": group_rows(),
        "process": lasting_processes(before, running_processes(), os.getpid()),
    }


def program_sections(answers: Mapping[str, str | None]) -> dict[str, Rows]:
    texts = {name: answer or "" for name, answer in answers.items()}
    answering = sorted({COMMANDS[name][0] for name, answer in answers.items() if answer is not None})
    return {
        "host": {"hostname": {"value": os.uname().nodename}, "programs asked": {"value": " ".join(answering)}},
        "unit": parse_units(texts["unit list"], texts["unit files"]),
        "link": parse_links(texts["links"]),
        "route": {**parse_routes(texts["routes"], "ip"), **parse_routes(texts["routes 6"], "ip6")},
        "rule": {**parse_rules(texts["rules"], "ip"), **parse_rules(texts["rules 6"], "ip6")},
        "socket": parse_sockets(texts["sockets"], read_text("/proc/sys/net/ipv4/ip_local_port_range")),
        "firewall": firewall_rows(texts),
        "ipset": parse_ipsets(texts["ipset"]),
    }


def firewall_rows(texts: Mapping[str, str]) -> Rows:
    iptables_names = iptables_tables(texts["iptables"], "ip") | iptables_tables(texts["iptables 6"], "ip6")
    return {
        **parse_iptables(texts["iptables"], "ip"),
        **parse_iptables(texts["iptables 6"], "ip6"),
        **parse_iptables(texts["iptables legacy"], "ip legacy"),
        **parse_iptables(texts["iptables legacy 6"], "ip6 legacy"),
        **parse_nft(texts["nft"], iptables_names),
    }


def kernel_sections(mountinfo: str) -> dict[str, Rows]:
    mounts = parse_mounts(mountinfo)
    own, shared = split_sysctls(sysctl_rows())
    return {
        "mount": mounts,
        "sysctl": own,
        "kernel": shared,
        "module": parse_modules(read_text("/proc/modules")),
        "swap": parse_swaps(read_text("/proc/swaps")),
        "cgroup": cgroup_rows(mounts),
    }
