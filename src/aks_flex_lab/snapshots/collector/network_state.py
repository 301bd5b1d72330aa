"""Collects network state: links, addresses, routes, rules, and firewall rules of iptables, nftables and ipset."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from aks_flex_lab.snapshots.collector.exclusions import ADDRESSES, matcher
from aks_flex_lab.snapshots.collector.probe import count_rows, unused_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.snapshots.collector.probe import Row, Rows


CHAIN = re.compile(r":(\S+) (\S+)(?: \[\d+:\d+\])?")
COUNTERS = re.compile(r"^\[\d+:\d+\] ")
EXPIRES = re.compile(r" expires \S+?(?=[ ,}]|$)")
# The seed of a set is random, and the timeouts of its members count down.
IPSET_FLEETING = {"create": re.compile(r" initval \S+"), "add": re.compile(r" (timeout|packets|bytes) \d+")}
OPENING = re.compile(r"(table|chain|set|map|flowtable|counter|quota|limit|ct \w+|synproxy|secmark) .*\{$")


def parse_iptables(text: str, family: str) -> Rows:
    """Parses `iptables-save`. A chain has the number and order of its rules, so that a moved rule is a difference.

    An empty built-in chain with the policy ACCEPT is omitted: listing a table creates it, and it has no effect.
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
    rows = count_rows(f"{family} {table_chain[0]} {rule}" for table_chain, found in rules.items() for rule in found)
    for table_chain, policy in policies.items():
        if policy != "ACCEPT" or table_chain in rules:
            rows[f"{family} {table_chain[0]} chain {table_chain[1]}"] = {
                "policy": policy,
                "rules": rules_order(rules.get(table_chain, [])),
            }
    return rows


def rules_order(rules: list[str]) -> str:
    if not rules:
        return "none"
    return f"{len(rules)} (order {hashlib.sha256('|'.join(rules).encode(errors='replace')).hexdigest()[:8]})"


def iptables_tables(text: str, family: str) -> set[str]:
    """Returns the tables in the output of iptables-save, by their names in nft."""
    return {f"{family} {line[1:]}" for line in text.splitlines() if line.startswith("*")}


def parse_nft(text: str, known_tables: set[str]) -> Rows:
    """Parses `nft --stateless list ruleset`, without the tables that iptables-save covers in more detail."""
    rules: dict[tuple[str, ...], list[str]] = {}
    for path, rule in nft_statements(text):
        if path[0][len("table ") :] not in known_tables:
            rules.setdefault(path, []).extend([rule] if rule else [])
    names = (f"nft {' '.join(path)}: {rule}" for path, found in rules.items() for rule in found)
    return {
        **count_rows(names),
        **{f"nft {' '.join(path)}": {"rules": rules_order(found)} for path, found in rules.items()},
    }


def nft_statements(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields each block without a statement, then each statement in it. Lists of elements can span lines."""
    path: list[str] = []
    pending = ""
    for line in text.splitlines():
        pending = f"{pending} {line.strip()}".strip()
        if pending.startswith("#") or not pending:
            pending = ""
        elif OPENING.match(pending):
            path.append(pending[:-1].strip())
            yield tuple(path), ""
            pending = ""
        elif pending == "}":
            path.pop()
            pending = ""
        elif pending.count("{") <= pending.count("}"):
            yield tuple(path), EXPIRES.sub("", pending)
            pending = ""


def parse_ipsets(text: str) -> Rows:
    """Parses `ipset save`: one line for a set, and one for each member."""
    found = (line.partition(" ") for line in text.splitlines())
    return count_rows(
        f"{verb} {IPSET_FLEETING[verb].sub('', rest)}" for verb, _, rest in found if verb in IPSET_FLEETING
    )


# The state of the other end changes independently.
FLEETING_FLAGS = ("LOWER_UP", "NO-CARRIER", "M-DOWN", "linkdown", "dead")
# These fields identify a route; the others are its attributes.
ROUTE_NAME = ("type", "dst", "from", "tos", "table", "dev", "metric")
# Numbers that the kernel assigns, and timers.
ROUTE_FLEETING = {"expires", "nhid", "cache", "used", "age"}
RULE_FLEETING = {"protocol"}


def parse_links(text: str) -> Rows:
    """Parses `ip -json -details address show`, without indexes and MAC addresses, which change."""
    return {link["ifname"]: parse_link(link) for link in json.loads(text or "[]") if link}


def parse_link(link: dict[str, Any]) -> Row:
    ignored = matcher(ADDRESSES)
    flags = sorted(set(link.get("flags", ())) - {*FLEETING_FLAGS, "UP"})
    addresses = sorted(f"{one.get('local')}/{one.get('prefixlen')}" for one in link.get("addr_info", ()) if one)
    row = {
        "kind": link.get("linkinfo", {}).get("info_kind") or link.get("link_type", ""),
        "state": "up" if "UP" in link.get("flags", ()) else "down",
        "mtu": str(link.get("mtu", "")),
        "flags": " ".join(flags),
        "addresses": " ".join(one for one in addresses if not ignored(one)),
        "master": link.get("master", ""),
    }
    return {name: value for name, value in row.items() if value}


def parse_routes(text: str, family: str) -> Rows:
    """Parses `ip -json route show table all`."""
    ignored = matcher(ADDRESSES)
    rows: Rows = {}
    for route in json.loads(text or "[]"):
        if not ignored(route.get("dst", "")) and "cache" not in route.get("flags", ()):
            name = " ".join(route_name(route, family))
            rest = {one: flatten(value) for one, value in route.items() if one not in {*ROUTE_NAME, *ROUTE_FLEETING}}
            rows[unused_name(name, rows)] = {one: value for one, value in rest.items() if value}
    return rows


def route_name(route: dict[str, Any], family: str) -> Iterator[str]:
    yield family
    for one in ROUTE_NAME:
        if one in route:
            yield str(route[one]) if one in {"type", "dst"} else f"{one} {route[one]}"


def parse_rules(text: str, family: str) -> Rows:
    """Parses `ip -json rule show`: the rules that select routing tables."""
    names = []
    for rule in json.loads(text or "[]"):
        parts = [
            f"{name} {flatten(value)}".strip() for name, value in sorted(rule.items()) if name not in RULE_FLEETING
        ]
        names.append(f"{family} {', '.join(parts)}")
    return count_rows(names)


def flatten(value: Any) -> str:
    """Returns a nested value of iproute2 as text."""
    if isinstance(value, list):
        return " ".join(filter(None, (flatten(one) for one in value if one not in FLEETING_FLAGS)))
    if isinstance(value, dict):
        return " ".join(f"{name} {flatten(one)}" for name, one in sorted(value.items()) if one)
    return "" if value is None else str(value)
