"""The machine's network: links with their addresses, routes and rules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.snapshots.inside.ignored import ADDRESSES, matcher
from aks_flex_node.lab.snapshots.inside.rows import another, counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.lab.snapshots.inside.rows import Row, Rows

# Whether the other end is there changes on its own.
FLEETING_FLAGS = ("LOWER_UP", "NO-CARRIER", "M-DOWN", "linkdown", "dead")
# These make a route the one it is; the rest is what it does.
ROUTE_NAME = ("type", "dst", "from", "tos", "table", "dev", "metric")
# Numbers that the kernel deals out anew, and times that run down.
ROUTE_FLEETING = {"expires", "nhid", "cache", "used", "age"}
RULE_FLEETING = {"protocol"}


def parse_links(text: str) -> Rows:
    """`ip -json -details address show`, without indexes and hardware addresses, which are dealt anew."""
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
    """`ip -json route show table all`."""
    ignored = matcher(ADDRESSES)
    rows: Rows = {}
    for route in json.loads(text or "[]"):
        if not ignored(route.get("dst", "")) and "cache" not in route.get("flags", ()):
            name = " ".join(route_name(route, family))
            rest = {one: flat(value) for one, value in route.items() if one not in {*ROUTE_NAME, *ROUTE_FLEETING}}
            rows[another(name, rows)] = {one: value for one, value in rest.items() if value}
    return rows


def route_name(route: dict[str, Any], family: str) -> Iterator[str]:
    yield family
    for one in ROUTE_NAME:
        if one in route:
            yield str(route[one]) if one in {"type", "dst"} else f"{one} {route[one]}"


def parse_rules(text: str, family: str) -> Rows:
    """`ip -json rule show`: which routing table is asked when."""
    names = []
    for rule in json.loads(text or "[]"):
        words = [f"{name} {flat(value)}".strip() for name, value in sorted(rule.items()) if name not in RULE_FLEETING]
        names.append(f"{family} {', '.join(words)}")
    return counted(names)


def flat(value: Any) -> str:
    """What iproute2 nests, as one word or a few."""
    if isinstance(value, list):
        return " ".join(filter(None, (flat(one) for one in value if one not in FLEETING_FLAGS)))
    if isinstance(value, dict):
        return " ".join(f"{name} {flat(one)}" for name, one in sorted(value.items()) if one)
    return "" if value is None else str(value)
