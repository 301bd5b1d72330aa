"""A client of the API: one method for each operation, over TLS; all traffic is recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import urllib3

from aks_flex_node.api.node_keys import KEY_HEADER
from tests.node_key_client import HeldKey
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.traffic_recorder import Answer, Exchange, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.arm.ids import ClusterId
    from tests.service.rp.api.tenants import Tenant

API_VERSION = "2026-05-01-preview"
MACHINE_KEY = HeldKey()  # of a machine of which a test needs no more than that it has one


@dataclass(frozen=True)
class Connection:
    """The connection to one service, shared by all callers."""

    url: str
    pool: urllib3.PoolManager
    recording: Recording

    @classmethod
    def to(cls, url: str, ca: str, recording: Recording, connections: int = 30) -> Connection:
        pool = urllib3.PoolManager(ca_certs=ca, maxsize=connections, retries=False, timeout=urllib3.Timeout(60))
        return cls(url, pool, recording)

    def path_of(self, url: str) -> str:
        """Returns the path of a URL of this service, without the pin."""
        return url.partition("#")[0].removeprefix(self.url)

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Answer:
        answer = self.pool.request(method, self.url + path, headers=headers, body=body)
        shown = {name.lower(): value for name, value in answer.headers.items()}
        found = Answer(answer.status, shown, answer.data)
        self.recording.add(Exchange(method, self.url + path, headers, body, found))
        return found


@dataclass(frozen=True)
class Api:
    connection: Connection
    authorization: str = ""
    cluster: ClusterId = PLANT

    def at(self, cluster: ClusterId) -> Api:
        return replace(self, cluster=cluster)

    def as_somebody(self, authorization: str) -> Api:
        return replace(self, authorization=authorization)

    def by(self, tenant: Tenant, client_id: str) -> Api:
        """Returns the client of a service principal."""
        return self.as_somebody(tenant.application(client_id))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Sends a request. `query` None means the default api-version; a body of bytes is sent unchanged."""
        asked = {"api-version": API_VERSION} if query is None else query
        shown = {"Authorization": self.authorization} if self.authorization else {}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if content is not None and "content-type" not in (headers or {}):
            shown["Content-Type"] = "application/json"
        where = path + (f"?{urlencode(asked, safe='$/', quote_via=quote)}" if asked else "")
        return self.connection.ask(method, where, {**shown, **(headers or {})}, content)

    def path(self, name: str = "", action: str = "") -> str:
        return "/".join(filter(None, (f"{self.cluster}/flexNodeConfig", name, action)))

    def put(self, name: str, body: Any = None, *, url: bool | None = None, **headers: str) -> Answer:
        query = {"api-version": API_VERSION} | ({} if url is None else {"configUrl": str(url).lower()})
        return self.ask(
            "PUT",
            self.path(name),
            {"properties": {}} if body is None else body,
            query=query,
            headers=_dashed(headers),
        )

    def get(self, name: str, **headers: str) -> Answer:
        return self.ask("GET", self.path(name), headers=_dashed(headers))

    def list(self, **query: str) -> Answer:
        asked = {f"${name}": value for name, value in query.items()}
        return self.ask("GET", self.path(), query={"api-version": API_VERSION, **asked})

    def delete(self, name: str, **headers: str) -> Answer:
        return self.ask("DELETE", self.path(name), headers=_dashed(headers))

    def act(self, name: str, action: str, **body: Any) -> Answer:
        """Calls an action of a node, such as `revokeKey`."""
        return self.ask("POST", self.path(name, action), body)

    def url_of(self, name: str, body: Any = None) -> str:
        """Creates or changes a node, and returns its config URL."""
        return str(self.put(name, body, url=True).properties["configUrl"])

    def regenerate(self, name: str, **body: Any) -> Answer:
        return self.act(name, "regenerateToken", **body)

    def new_url(self, name: str, **body: Any) -> str:
        return str(self.regenerate(name, **body).json["configUrl"])

    def list_url(self, name: str) -> Answer:
        return self.ask("POST", self.path(name, "listConfigUrl"))

    def report(self, name: str, body: Any) -> Answer:
        return self.ask("POST", self.path(name, "reportStatus"), body)

    def credentials(self, name: str) -> Answer:
        return self.ask("POST", self.path(name, "listCredentials"))

    def pool(
        self, method: str, pool: str = "", *below: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Sends a request to the pools of the cluster, one of them, or what is below it."""
        path = "/".join(filter(None, (f"{self.cluster}/flexNodePools", pool, *below)))
        return self.ask(method, path, body, headers=headers)

    def put_pool(self, pool: str, template: dict[str, Any]) -> Answer:
        return self.pool("PUT", pool, body={"properties": {"template": template}})

    def pages(self, first: Answer) -> Iterator[Answer]:
        """Yields all pages of a list."""
        answer = first
        while True:
            yield answer
            if "nextLink" not in answer.json:
                return
            link = urlsplit(answer.json["nextLink"])
            assert f"{link.scheme}://{link.netloc}" == self.connection.url
            answer = self.ask("GET", f"{link.path}?{link.query}", query={})

    def audit(self, name: str = "", **query: str) -> Answer:
        resource = self.cluster.node(name) if name else str(self.cluster)
        return self.ask("GET", "/audit", query={"resource": resource, **query})

    def events(self, name: str = "", what: str = "") -> Any:
        """Returns the events of a node or of the cluster, all or those of a kind, the newest first."""
        return self.audit(name, what=what).json["value"]

    def status(self, name: str) -> Any:
        return self.get(name).properties["status"]

    def condition(self, name: str, kind: str) -> Any:
        """Returns the condition of this type of a node; None if it has none."""
        return next((each for each in self.status(name)["conditions"] if each["type"] == kind), None)

    def fetch(self, url: str, method: str = "GET", key: HeldKey = MACHINE_KEY) -> Answer:
        """Requests a config URL without a token, as a machine with this key does."""
        return self.connection.ask(method, self.connection.path_of(url), {KEY_HEADER: key.url_proof(url)})


def secret_of(url: str) -> str:
    """Returns the part of a config URL that nobody else may know."""
    return url.partition("#")[0].rpartition("/")[2]


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    """Replaces underscores: `if_match` means If-Match."""
    return {name.replace("_", "-"): value for name, value in headers.items()}
