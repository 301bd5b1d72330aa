"""The operator of a service: requests with the admin key, and the metrics of the service."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import urllib3

from aks_flex_node.api.contract import API_VERSION

if TYPE_CHECKING:
    from bench.rp_load.service_process import RunningService


class OperatorClient:
    """Keeps one connection for each of a number of threads."""

    def __init__(self, service: RunningService, threads: int = 1) -> None:
        server = service.server
        self._pool = urllib3.HTTPSConnectionPool(
            server.host, server.port, ca_certs=server.ca, timeout=600, maxsize=threads
        )
        self._headers = {"Authorization": f"Bearer {service.admin}", "Content-Type": "application/json"}

    def request(self, method: str, path: str, body: Any = None, query: str = "") -> Any:
        content = None if body is None else json.dumps(body)
        url = f"{path}?api-version={API_VERSION}{query}"
        answer = self._pool.request(method, url, body=content, headers=self._headers)
        if answer.status not in {200, 201}:
            raise SystemExit(f"{method} {path} returned HTTP {answer.status}: {answer.data[:500]!r}")
        return answer.json()

    def metric(self, name: str) -> float:
        text = self._pool.request("GET", "/metrics").data.decode()
        found = re.search(rf"^{name} (\S+)", text, re.MULTILINE)
        return float(found[1]) if found else 0.0
