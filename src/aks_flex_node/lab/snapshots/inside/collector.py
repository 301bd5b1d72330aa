"""The whole look at a machine, from its processes to its last file, printed as one JSON document."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aks_flex_node.lab.snapshots.inside.asking import ask, read, settle
from aks_flex_node.lab.snapshots.inside.files import files
from aks_flex_node.lab.snapshots.inside.firewall import iptables_tables, parse_ipsets, parse_iptables, parse_nft
from aks_flex_node.lab.snapshots.inside.kernel import (
    cgroups,
    file_systems,
    own_and_shared,
    parse_modules,
    parse_mounts,
    parse_swaps,
    sysctls,
)
from aks_flex_node.lab.snapshots.inside.network import parse_links, parse_routes, parse_rules
from aks_flex_node.lab.snapshots.inside.services import groups, lasting, parse_sockets, parse_units, running, users

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.lab.snapshots.inside.rows import Rows

FORMAT = 1

# The programs that are asked. One that is not installed leaves its part empty, and the section `host` says so.
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
    settle()
    sections = look()
    document = {"format": FORMAT, "seconds": round(time.monotonic() - start, 2), "sections": sections}
    json.dump(document, sys.stdout, separators=(",", ":"))


def look() -> dict[str, Rows]:
    """Look at everything, the commands beside the files; at processes before and after."""
    before = running()
    mountinfo = read("/proc/self/mountinfo")
    with ThreadPoolExecutor(len(COMMANDS)) as pool:
        replies = {name: pool.submit(ask, *argv) for name, argv in COMMANDS.items()}
        found = files("/", file_systems(mountinfo))
        answers = {name: reply.result() for name, reply in replies.items()}
    return {
        **told_by_programs(answers),
        **told_by_kernel(mountinfo),
        "file": found,
        "user": users(),
        "group": groups(),
        "process": lasting(before, running(), os.getpid()),
    }


def told_by_programs(answers: Mapping[str, str | None]) -> dict[str, Rows]:
    texts = {name: answer or "" for name, answer in answers.items()}
    answering = sorted({COMMANDS[name][0] for name, answer in answers.items() if answer is not None})
    return {
        "host": {"hostname": {"value": os.uname().nodename}, "programs asked": {"value": " ".join(answering)}},
        "unit": parse_units(texts["unit list"], texts["unit files"]),
        "link": parse_links(texts["links"]),
        "route": {**parse_routes(texts["routes"], "ip"), **parse_routes(texts["routes 6"], "ip6")},
        "rule": {**parse_rules(texts["rules"], "ip"), **parse_rules(texts["rules 6"], "ip6")},
        "socket": parse_sockets(texts["sockets"], read("/proc/sys/net/ipv4/ip_local_port_range")),
        "firewall": firewall(texts),
        "ipset": parse_ipsets(texts["ipset"]),
    }


def firewall(texts: Mapping[str, str]) -> Rows:
    told = iptables_tables(texts["iptables"], "ip") | iptables_tables(texts["iptables 6"], "ip6")
    return {
        **parse_iptables(texts["iptables"], "ip"),
        **parse_iptables(texts["iptables 6"], "ip6"),
        **parse_iptables(texts["iptables legacy"], "ip legacy"),
        **parse_iptables(texts["iptables legacy 6"], "ip6 legacy"),
        **parse_nft(texts["nft"], told),
    }


def told_by_kernel(mountinfo: str) -> dict[str, Rows]:
    mounts = parse_mounts(mountinfo)
    own, shared = own_and_shared(sysctls())
    return {
        "mount": mounts,
        "sysctl": own,
        "kernel": shared,
        "module": parse_modules(read("/proc/modules")),
        "swap": parse_swaps(read("/proc/swaps")),
        "cgroup": cgroups(mounts),
    }
