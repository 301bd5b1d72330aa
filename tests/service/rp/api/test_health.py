"""Tests of the endpoints for operators: health, metrics, OpenAPI; and of the request log."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.service.rp.api.bodies import token

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running, RunService
    from tests.service.rp.store.servers import PostgresServer

SWAGGER = Path(__file__).parents[4] / "api" / "swagger" / "flexnode.json"
OWN = ("/healthz", "/readyz", "/metrics", "/openapi.json", "/audit")


def look(api: Api, path: str, method: str = "GET") -> tuple[int, str]:
    answer = api.as_somebody("").ask(method, path, query={})
    return answer.status, answer.text


def test_running_service_is_healthy_and_ready(admin: Api) -> None:
    assert look(admin, "/healthz") == (200, "ok\n")
    assert look(admin, "/readyz") == (200, "ready\n")


@pytest.mark.parametrize("path", OWN)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH"])
def test_service_endpoints_accept_only_get(admin: Api, path: str, method: str) -> None:
    refused = admin.ask(method, path, query={})

    assert (refused.status, refused.headers["allow"]) == (405, "GET")


def test_service_is_alive_but_not_ready_when_store_is_down(run_service: RunService, postgres: PostgresServer) -> None:
    with run_service(database=postgres.new_database()) as service:
        postgres.stop()
        try:
            assert look(service.admin, "/healthz") == (200, "ok\n")
            assert look(service.admin, "/readyz") == (503, "not ready: the store does not respond\n")
            balanced = service.admin.as_somebody("").ask("GET", "/readyz", query={"exclude": "store"})
            assert (balanced.status, balanced.text) == (200, "ready\n")
            assert "aks_flex_rp_store_up 0.0" in look(service.admin, "/metrics")[1]
        finally:
            postgres.start()
        assert service.admin.put("edge").status == 201
        assert look(service.admin, "/readyz") == (200, "ready\n")


def test_metrics_count_requests_without_node_names(admin: Api, name: str) -> None:
    def count(text: str, line: str) -> float:
        found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    lines = (
        'aks_flex_rp_requests_total{operation="write",status="201"}',
        'aks_flex_rp_requests_total{operation="poll",status="304"}',
        'aks_flex_rp_requests_total{operation="read",status="404"}',
        'aks_flex_rp_config_bundles_total{outcome="fetched"}',
        'aks_flex_rp_config_bundles_total{outcome="refused"}',
        'aks_flex_rp_request_seconds_count{operation="write"}',
    )
    before = look(admin, "/metrics")[1]
    admin.get(name)
    made = admin.put(name, token(), url=True)
    admin.get(name, if_none_match=made.headers["etag"])
    admin.fetch(made.properties["configUrl"])
    admin.connection.ask("GET", "/configs/guess", {})

    after = look(admin, "/metrics")[1]

    assert [count(after, line) - count(before, line) for line in lines] == [1] * len(lines)
    assert "aks_flex_rp_held_polls 0.0" in after
    assert name not in after


def test_served_openapi_matches_compiled_contract(admin: Api) -> None:
    served = json.loads(look(admin, "/openapi.json")[1])
    compiled = json.loads(SWAGGER.read_text())

    assert served["paths"].keys() == compiled["paths"].keys()
    assert served["definitions"] == compiled["definitions"]
    assert f"https://{served['host']}" == admin.connection.url


def test_request_log_contains_request_id_and_caller(service: Running, name: str) -> None:
    request = service.admin.put(name).headers["x-ms-request-id"]

    [line] = [json.loads(each) for each in service.log.splitlines() if request in each]
    assert (line["operation"], line["status"], line["caller"]) == ("write", 201, "local admin key")
    assert line["path"].endswith(name)
    assert line["source"] == "127.0.0.1"


def test_metrics_need_the_token_of_the_file(run_service: RunService, tmp_path: Path) -> None:
    """Attack: a client without credentials reads the number of nodes, their states and the load."""
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text("of-prometheus\n")
    with run_service(metricsTokenFile=str(file)) as service:
        ask = service.connection.ask
        for authorization in ("", "Bearer", "Bearer wrong", "Basic of-prometheus", service.admin.authorization):
            refused = ask("GET", "/metrics", {"Authorization": authorization} if authorization else {})
            refused.assert_refused(401, "AuthenticationFailed")
            assert "aks_flex_rp" not in refused.text
        assert "aks_flex_rp_nodes" in ask("GET", "/metrics", {"Authorization": "Bearer of-prometheus"}).text
        file.write_text("")
        assert ask("GET", "/metrics", {"Authorization": "Bearer "}).status == 401
