"""Tests of configVersion: seconds since 1970 that strictly increase."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.service.rp.api.bodies import token
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running

AHEAD = 1_000_000  # seconds by which a clock is ahead


def version(api: Api, name: str) -> int:
    return int(api.get(name).properties["configVersion"])


def test_config_version_is_time_of_write(admin: Api, name: str) -> None:
    before = int(time.time())

    admin.put(name)

    assert before <= version(admin, name) <= time.time()


def test_config_versions_increase_within_a_second_and_across_deletion(admin: Api, name: str) -> None:
    seen = []
    for _ in range(3):
        seen += [int(admin.put(name).properties["configVersion"]) for _ in range(3)]
        seen.append(int(admin.regenerate(name).json["configVersion"]))
        admin.delete(name)

    assert seen == sorted(set(seen))


def test_config_versions_increase_when_clock_moves_backwards(service: Running, name: str) -> None:
    service.admin.put(name)
    ahead = int(time.time()) + AHEAD
    store = service.service.store
    node = service.call(store.node(PLANT.key, name))
    assert node
    service.call(store.put_node(replace(node, version=ahead, etag=f'"{ahead}"'), node.etag))

    assert int(service.admin.put(name).properties["configVersion"]) == ahead + 1
    service.admin.delete(name)
    assert int(service.admin.put(name).properties["configVersion"]) == ahead + 2


def test_concurrent_writes_get_distinct_config_versions(admin: Api, name: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: admin.put(name, token(maxPods=number)), range(1, 25)))

    done = [answer for answer in answers if answer.status in {200, 201}]
    assert {answer.status for answer in answers} <= {200, 201, 409}
    assert sum(answer.status == 201 for answer in answers) == 1
    versions = {answer.properties["configVersion"]: answer.properties["nodeConfig"] for answer in done}
    assert len(versions) == len(done)
    newest = max(versions, key=int)
    assert admin.get(name).properties["configVersion"] == newest
    assert admin.get(name).properties["nodeConfig"] == versions[newest]
    for answer in answers:
        if answer.status == 409:
            assert answer.headers["retry-after"] == "1"
