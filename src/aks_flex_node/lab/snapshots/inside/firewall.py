"""Firewall rules: what iptables made, what nft made, and sets of addresses. Counters are left out."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from aks_flex_node.lab.snapshots.inside.rows import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.lab.snapshots.inside.rows import Rows

CHAIN = re.compile(r":(\S+) (\S+)(?: \[\d+:\d+\])?")
COUNTERS = re.compile(r"^\[\d+:\d+\] ")
EXPIRES = re.compile(r" expires \S+?(?=[ ,}]|$)")
# A set's seed is random; a member's time runs down.
IPSET_FLEETING = {"create": re.compile(r" initval \S+"), "add": re.compile(r" (timeout|packets|bytes) \d+")}
OPENING = re.compile(r"(table|chain|set|map|flowtable|counter|quota|limit|ct \w+|synproxy|secmark) .*\{$")


def parse_iptables(text: str, family: str) -> Rows:
    """`iptables-save`. A chain tells how many rules it has and in which order, so that a moved rule shows.

    A built-in chain that accepts and is empty is what the kernel does without it: merely listing a table makes one.
    """
    rules: dict[tuple[str, str], list[str]] = {}
    policies: dict[tuple[str, str], str] = {}
    table = ""
    for line in text.splitlines():
        chain = CHAIN.fullmatch(line)
        if line.startswith("*"):
            table = line[1:]
        elif chain:
            policies[table, chain.group(1)] = chain.group(2)
        elif line.startswith(("-A ", "[")):
            rule = COUNTERS.sub("", line)
            rules.setdefault((table, rule.split()[1]), []).append(rule)
    rows = counted(f"{family} {place[0]} {rule}" for place, found in rules.items() for rule in found)
    for place, policy in policies.items():
        if policy != "ACCEPT" or place in rules:
            rows[f"{family} {place[0]} chain {place[1]}"] = {"policy": policy, "rules": order(rules.get(place, []))}
    return rows


def order(rules: list[str]) -> str:
    if not rules:
        return "none"
    return f"{len(rules)} (order {hashlib.sha256('|'.join(rules).encode(errors='replace')).hexdigest()[:8]})"


def iptables_tables(text: str, family: str) -> set[str]:
    """The tables that iptables-save told of, as nft names them."""
    return {f"{family} {line[1:]}" for line in text.splitlines() if line.startswith("*")}


def parse_nft(text: str, told: set[str]) -> Rows:
    """`nft --stateless list ruleset`, but for the tables that iptables-save has told already, and told better."""
    rules: dict[tuple[str, ...], list[str]] = {}
    for place, rule in statements(text):
        if place[0][len("table ") :] not in told:
            rules.setdefault(place, []).extend([rule] if rule else [])
    names = (f"nft {' '.join(place)}: {rule}" for place, found in rules.items() for rule in found)
    return {**counted(names), **{f"nft {' '.join(place)}": {"rules": order(found)} for place, found in rules.items()}}


def statements(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each block with no statement, then each statement in it; a list of elements may go over several lines."""
    place: list[str] = []
    pending = ""
    for line in text.splitlines():
        pending = f"{pending} {line.strip()}".strip()
        if pending.startswith("#") or not pending:
            pending = ""
        elif OPENING.match(pending):
            place.append(pending[:-1].strip())
            yield tuple(place), ""
            pending = ""
        elif pending == "}":
            place.pop()
            pending = ""
        elif pending.count("{") <= pending.count("}"):
            yield tuple(place), EXPIRES.sub("", pending)
            pending = ""


def parse_ipsets(text: str) -> Rows:
    """`ipset save`: one line for a set, one for each of its members."""
    found = (line.partition(" ") for line in text.splitlines())
    return counted(
        f"{verb} {IPSET_FLEETING[verb].sub('', rest)}" for verb, _, rest in found if verb in IPSET_FLEETING
    )
