"""What one poll and one PUT cost, in counts that do not depend on the machine: speed must not be lost unseen.

A bound is about 15 % above the count. If a change needs more, measure it with `bench.rp_polls` and `bench.rp_writes`,
and raise the bound in the same commit.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.contract import API_VERSION
from aks_flex_rp.server import JsonFormatter
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant

pytestmark = pytest.mark.full
NAME = "edge-cost"
SAMPLES = 5  # the lowest of them counts: the service's periodic tasks run in the same loop
POLL_CALLS = 30
PUT_CALLS = 815

Calls = Counter[tuple[str, str]]  # by file and function


@pytest.fixture(scope="module")
def provider(run_service: Callable[..., AbstractContextManager[Running]]) -> Iterator[Running]:
    with run_service() as running:
        running.admin.put(NAME, principal())
        yield running


async def requested(app: Any, method: str, headers: dict[str, str], body: bytes) -> tuple[Calls, int]:
    """Sends a request to the application. Returns the calls of functions that it made, and the status."""
    calls: Calls = Counter()
    messages: list[dict[str, Any]] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_name
        if event == "call" and not name.startswith("<"):  # Python 3.12 does not call comprehensions any more
            calls[Path(frame.f_code.co_filename).name, name] += 1

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "method": method,
        "scheme": "https",
        "path": PLANT.node(NAME),
        "query_string": f"api-version={API_VERSION}".encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 50000),
    }
    sys.setprofile(count)
    try:
        await app(scope, receive, send)
    finally:
        sys.setprofile(None)
    return calls, messages[0]["status"]


def lowest(provider: Running, method: str, headers: dict[str, str], status: int, *bodies: Any) -> Calls:
    """Returns the calls of the request that made the fewest."""
    contents = [json.dumps(each).encode() if each else b"" for each in bodies]
    found = [provider.call(requested(provider.service.app, method, headers, each)) for each in contents]
    assert {answer for _, answer in found} == {status}
    return min((calls for calls, _ in found), key=Counter.total)


def changed(number: int) -> dict[str, Any]:
    return principal(secret=None, nodeConfig={"labels": {"example.com/number": str(number)}})


def put(provider: Running) -> Calls:
    headers = {"authorization": provider.admin.authorization, "content-type": "application/json"}
    return lowest(provider, "PUT", headers, 200, *map(changed, range(SAMPLES)))


def test_poll_of_an_unchanged_node_calls_few_functions(provider: Running, tenant: Tenant) -> None:
    node = provider.admin.as_somebody(tenant.application(callers.NODE))
    headers = {"authorization": node.authorization, "if-none-match": node.get(NAME).headers["etag"]}
    node.get(NAME, if_none_match=headers["if-none-match"])
    calls = lowest(provider, "GET", headers, 304, *[None] * SAMPLES)

    assert calls.total() <= POLL_CALLS, calls.most_common(20)
    assert not calls["token_verifier.py", "_verify"], "a token that was verified is verified again"
    assert not calls["sqlite.py", "_read"], "a node that did not change is read again"


def test_put_does_each_piece_of_work_once(provider: Running) -> None:
    calls = put(provider)

    assert calls.total() <= PUT_CALLS, calls.most_common(40)
    assert calls["validation.py", "parse_body"] == calls["properties.py", "read_properties"] == 1
    assert calls["record_codes.py", "_code"] == 2, "the node that was read is verified, and the written one signed"
    assert calls["rows.py", "to_json"] == 5, "four documents of the node and one of its audit event"
    assert calls["rows.py", "from_json"] == 4
    logs = sum(isinstance(each.formatter, JsonFormatter) for each in logging.getLogger("aks_flex_rp").handlers)
    assert calls["encoder.py", "encode"] == 1 + logs, "the response, and a line of each log that a service has opened"


def test_put_is_one_read_and_one_transaction(provider: Running) -> None:
    statements: list[str] = []
    store = provider.service.store
    assert isinstance(store, SqliteStore)
    for connection in store._opened:
        connection.set_trace_callback(statements.append)
    try:
        calls = put(provider)
    finally:
        for connection in store._opened:
            connection.set_trace_callback(None)

    assert calls["sqlite.py", "_writing"] == 1
    counted = ("FROM nodes n", "UPDATE nodes", "INTO fleet", "INTO rollout_signals", "FROM deliveries", "INTO audit")
    assert {text: sum(text in each for each in statements) for text in counted} == dict.fromkeys(counted, SAMPLES)
