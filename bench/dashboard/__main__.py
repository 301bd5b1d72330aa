"""Requests the fleet page with all filters and sort orders, with few and many nodes; the last line is one JSON.

One browser at a time, over TLS and one connection. The time is from the first byte of the request to the last byte of
the response, which is more than the server's own time. Views and sizes alternate, so that other load of the machine
affects all equally. `weight` is the uncompressed size of a first visit: page, style sheet, script and icon.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import urllib3

from aks_flex_rp.join_state import JoinState
from aks_flex_rp.store.model import PoolMembership
from bench.figures import print_result
from bench.options import Option, parse
from bench.rp_load.connections import percentile
from bench.rp_load.fleet import VERSION, fill, node
from bench.rp_load.service_process import (
    OPERATOR_LIMITS,
    RunningService,
    running_service,
    sqlite,
    temporary_tenant,
)

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from aks_flex_rp.store.model import Node
    from tests.service.rp.api.tenants import Tenant

OPTIONS = (
    Option("--rounds", 20, "number of requests for every view and size"),
    Option("--sizes", (100, 100_000)),
)
POOLS = 50
VIEWS = {
    "first": "",
    "newest": "sort=seen&order=desc",
    "by state": "sort=state",
    "by version": "sort=version&order=desc",
    "not ready": "state=NotReady",
    "behind": "behind=yes",
    "search name": "search=edge-00004",
    "search label": "search=site%3Dhall-17",
    "search nothing": "search=nobody",
    "last page": "page=2000",
    "pool": "pool=pool7",
    "pool, label": "pool=pool7&search=site%3Dhall-17",
}


def member(number: int) -> Node:
    """Returns a node of a fleet: most are ready, some are not, some are outdated, some are joining."""
    made = node(number)
    labels = {"site": f"hall-{number % 300}", "line": str(number % 7), "kind": "press"}
    properties = {**made.properties, "nodeConfig": {"labels": labels}, "poolName": f"pool{number % POOLS}"}
    made = replace(made, pool=PoolMembership(f"pool{number % POOLS}", 1, properties))
    if number % 50 == 0:
        return replace(made, properties=properties, join=JoinState.from_document({"state": "Created"}))
    ready = "False" if number % 20 == 0 else "True"
    condition = {"type": "Ready", "status": ready, "reason": "Because", "message": "The runtime does not answer."}
    status = {
        "conditions": [condition],
        "kubeletVersion": ("v1.34.4", "v1.34.3", "v1.33.7")[number % 3],
        "appliedConfigVersion": str(VERSION - (number % 30 == 0)),
    }
    return replace(made, properties=properties, status=status)


@dataclass
class Browser:
    """A minimal browser that can sign in."""

    pool: urllib3.HTTPSConnectionPool
    cookie: str = ""

    @classmethod
    def at(cls, service: RunningService) -> Browser:
        server = service.server
        browser = cls(urllib3.HTTPSConnectionPool(server.host, server.port, ca_certs=server.ca))
        form = browser.get("/ui/sign-in")
        token = re.search(r'name="token" value="([^"]+)"', form.data.decode())
        if token is None:
            raise SystemExit("The page has no sign-in form.")
        browser.cookie = form.headers["set-cookie"].partition(";")[0]
        fields = urlencode({"token": token[1], "next": "/", "key": service.admin})
        done = browser.request("POST", "/ui/sign-in/key", fields)
        cookies = [value for name, value in done.headers.items() if name.lower() == "set-cookie"]
        browser.cookie = next(part for each in cookies for part in each.split(", ") if "__Host-aks-flex=" in part)
        browser.cookie = browser.cookie.partition(";")[0]
        return browser

    def get(self, path: str) -> urllib3.BaseHTTPResponse:
        return self.request("GET", path)

    def request(self, method: str, path: str, body: str = "") -> urllib3.BaseHTTPResponse:
        headers = {"Cookie": self.cookie, "Content-Type": "application/x-www-form-urlencoded"}
        return self.pool.request(method, path, body=body or None, headers=headers, redirect=False, retries=False)

    def weight(self) -> dict[str, int]:
        """Returns the size of the first page and of its resources."""
        page = self.get("/")
        named = sorted(set(re.findall(r'(?:href|src)="(/ui/assets/[^"]+)"', page.data.decode())))
        sizes = {path.rpartition("/")[2]: len(self.get(path).data) for path in named}
        return {"page": len(page.data), **sizes, "all": len(page.data) + sum(sizes.values())}


def response_seconds(browser: Browser, view: str) -> float:
    began = time.perf_counter()
    answer = browser.get(f"/?{VIEWS[view]}")
    took = time.perf_counter() - began
    if answer.status != 200 or b"Readiness of" not in answer.data:
        raise SystemExit(f"The page returned HTTP {answer.status}.")
    return 1000 * took


def measured(options: argparse.Namespace, directory: Path, tenant: Tenant) -> dict[str, Any]:
    times: dict[tuple[int, str], list[float]] = {(size, view): [] for size in options.sizes for view in VIEWS}
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        browsers = {}
        for size in options.sizes:
            began = time.perf_counter()
            store = sqlite(directory / f"state-{size}")
            asyncio.run(fill(store, range(size), make=member, heard=lambda number: time.time() - number % 90))
            print(f"{size} nodes written in {time.perf_counter() - began:.0f} s", flush=True)
            browsers[size] = Browser.at(
                stack.enter_context(running_service(directory / f"state-{size}", tenant, limits=OPERATOR_LIMITS))
            )
            found[str(size)] = {"weight": browsers[size].weight()}
        for _ in range(options.rounds):
            for (size, view), taken in times.items():
                taken.append(response_seconds(browsers[size], view))
        for size in options.sizes:
            all_of_it = sorted(value for view in VIEWS for value in times[size, view])
            by_view = {view: _spread(sorted(times[size, view])) for view in VIEWS}
            found[str(size)] |= {"ways": by_view, "every way": _spread(all_of_it)}
            _print_figures(size, found[str(size)])
    return found


def _spread(ordered: list[float]) -> dict[str, float]:
    return {f"p{percent}_ms": round(percentile(ordered, percent), 2) for percent in (50, 95)}


def _print_figures(size: int, found: dict[str, Any]) -> None:
    for view, spread in {**found["ways"], "every way": found["every way"]}.items():
        print(
            f"{size:>7} nodes  {view:<15} p50 {spread['p50_ms']:7.2f} ms  p95 {spread['p95_ms']:7.2f} ms", flush=True
        )


def main() -> None:
    options = parse("dashboard", __doc__, *OPTIONS)
    with temporary_tenant() as (directory, tenant):
        found = measured(options, directory, tenant)
    print_result("dashboard", rounds=options.rounds, **found)


if __name__ == "__main__":
    main()
