"""Tests of etags, the preconditions of a write, and of configVersion: seconds since 1970 that increase."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.service.rp.api.bodies import token

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running


def test_write_with_current_etag_succeeds(admin: Api, name: str) -> None:
    etag = admin.put(name).headers["etag"]

    assert admin.put(name, token(maxPods=9), if_match=etag).status == 200
    assert admin.delete(name, if_match=admin.get(name).headers["etag"]).status == 200


def test_write_with_stale_etag_is_refused(admin: Api, name: str) -> None:
    etag = admin.put(name).headers["etag"]
    current = admin.put(name, token(maxPods=9)).json

    admin.put(name, token(maxPods=8), if_match=etag).assert_refused(412, "PreconditionFailed")
    admin.delete(name, if_match=etag).assert_refused(412, "PreconditionFailed")
    assert admin.get(name).properties["nodeConfig"] == current["properties"]["nodeConfig"]


def test_if_match_is_refused_when_node_does_not_exist(admin: Api, name: str) -> None:
    admin.put(name, if_match="*").assert_refused(412, "PreconditionFailed")
    admin.put(name, if_match='"1"').assert_refused(412, "PreconditionFailed")
    admin.delete(name, if_match="*").assert_refused(412, "PreconditionFailed")
    assert admin.get(name).status == 404
    assert admin.delete(name).status == 204


def test_put_with_if_none_match_star_creates_node_only_once(admin: Api, name: str) -> None:
    assert admin.put(name, if_none_match="*").status == 201
    admin.put(name, if_none_match="*").assert_refused(412, "PreconditionFailed")


def test_get_with_current_etag_returns_304(admin: Api, name: str) -> None:
    etag = admin.put(name).headers["etag"]

    same = admin.get(name, if_none_match=etag)

    assert (same.status, same.content, same.headers["etag"]) == (304, b"", etag)
    assert admin.get(name, if_none_match='"1"').status == 200


def test_etag_changes_with_config_but_not_with_status(admin: Api, name: str) -> None:
    first = admin.put(name).headers["etag"]
    admin.report(name, {"conditions": [{"type": "Ready", "status": "True"}]})

    assert admin.get(name).headers["etag"] == first
    assert admin.put(name).headers["etag"] != first


def test_refused_write_does_not_replace_config_url(admin: Api, name: str) -> None:
    url = admin.url_of(name, token())

    admin.put(name, token(), url=True, if_none_match="*")
    admin.put(name, token(maxPods=0), url=True)

    assert admin.fetch(url).status == 200


AHEAD = 1_000_000  # seconds by which a clock is ahead


def version(api: Api, name: str) -> int:
    return int(api.get(name).properties["configVersion"])


def test_config_version_is_time_of_write(admin: Api, name: str) -> None:
    before = int(time.time())

    admin.put(name)

    assert before <= version(admin, name) <= time.time()


def test_config_versions_increase_when_clock_moves_backwards(service: Running, name: str) -> None:
    service.admin.put(name)
    ahead = int(time.time()) + AHEAD
    store = service.store
    node = service.node(name)
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
