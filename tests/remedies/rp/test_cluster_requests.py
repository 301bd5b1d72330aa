"""The remedies of errors in the requests of the service to its clusters, with an API server on loopback."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_rp.cluster_registry import ClusterRegistry
from aks_flex_rp.clusters.admission_policies import CLUSTER_ROLES
from aks_flex_rp.clusters.controller import ClusterController
from aks_flex_rp.delivery.config_url import FetchedBundle
from aks_flex_rp.join_state import AccessMethod, ClusterAccess
from aks_flex_rp.nodes.context import ATTEMPTS
from aks_flex_rp.nodes.machine_claims import FetchingClient
from aks_flex_rp.service import open_sealer, open_store
from tests.remedies.catalogue import advice, command
from tests.remedies.rp.harness import api_server, fails, our_command
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.cli.cli_harness import Person
from tests.unit.rp.clusters.builders import Heard
from tests.unit.rp.clusters.fakes import FakeApi, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import httpx2

    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_rp.clusters.connections import ClusterConnection
    from aks_flex_rp.settings import ServiceSettings
    from aks_flex_rp.store.model import Cluster, Node
    from tests.remedies.rp.harness import ApiServer
    from tests.service.rp.api.service_harness import Running

ID, KEY = str(PLANT), PLANT.key
MANIFESTS = Path(__file__).parents[3] / "packaging" / "kubernetes"
ACCESS = ClusterAccess("11111111-2222-3333-4444-555555555555", AccessMethod.EXEC)


class UnwatchedController(ClusterController):
    """The requests to a cluster, without its watches."""

    async def start(self) -> None: ...


@asynccontextmanager
async def connected(made: ServiceSettings) -> AsyncIterator[ClusterRegistry]:
    """Yields the clusters of a running service."""

    def watch(cluster: Cluster, connection: ClusterConnection) -> ClusterController:
        return UnwatchedController(cluster.key, connection, Heard())

    store = open_store(made)
    await store.start()
    clusters = ClusterRegistry(store, open_sealer(made), watch, lambda _: None)
    await clusters.start()
    try:
        yield clusters
    finally:
        await clusters.stop()
        await store.stop()


async def does(made: ServiceSettings, *words: str) -> None:
    """Runs a command of a user while the service is running."""
    await asyncio.to_thread(Person(made.state_dir).does, *words)


async def mint(clusters: ClusterRegistry, node: str = "edge-1") -> object:
    return await clusters.mint(KEY, node, time.time() + 3600)


async def eventually(holds: Callable[[], bool]) -> None:
    """Waits until the service has read its clusters again."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "the service did not read its clusters"
        await asyncio.sleep(0.05)


@pytest.mark.remedy("cluster-not-connected")
async def test_cluster_is_connected_when_it_is_added_again(made: ServiceSettings, kubernetes: ApiServer) -> None:
    add = kubernetes.add()
    await does(made, *add)
    await asyncio.to_thread(made.keys.unlink)  # the stored connection cannot be decrypted any more
    await does(made, "keys", "add")
    listed = await asyncio.to_thread(Person(made.state_dir).does, "records", "list", "--json")
    await does(made, "records", "accept", "--all", "--digest", listed.json["digest"])
    async with connected(made) as clusters:
        with pytest.raises(ClusterError) as caught:
            await mint(clusters)
        assert caught.value.name == "cluster-not-connected"

        words = our_command("cluster-not-connected", "cluster add")
        await does(made, *words, *add[2:])
        advice("cluster-not-connected", "Retry after some seconds.")
        await eventually(lambda: KEY in clusters._watches)
        assert await mint(clusters)


async def test_closed_connection_is_replaced_after_some_seconds(made: ServiceSettings, kubernetes: ApiServer) -> None:
    add = kubernetes.add()
    await does(made, *add)
    async with connected(made) as clusters:
        client = clusters._controller(KEY).client  # that a request of the service uses
        await does(made, *add)
        await eventually(lambda: KEY in clusters._watches and clusters._controller(KEY).client is not client)
        with pytest.raises(ClusterError) as caught:
            await client.get("/version")
        assert caught.value.name == "cluster-connection-closed"

        assert await mint(clusters)


async def test_cluster_that_was_removed_and_added_is_served(made: ServiceSettings, kubernetes: ApiServer) -> None:
    """A running service refuses a record that is older than the one it has read, and a new cluster is not older."""
    add = kubernetes.add()
    for _ in range(2):
        await does(made, *add)
    async with connected(made) as clusters:
        assert await mint(clusters)
        await does(made, "cluster", "remove", ID)
        await does(made, *add)
        assert await clusters._store.cluster(KEY)
        assert [each.key for each in await clusters._store.clusters()] == [KEY]


@dataclass
class AuthorizedApi:
    """An API server that allows the requests of the applied roles alone, as RBAC does."""

    api: FakeApi
    roles: tuple[dict[str, Any], ...] = ()

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        parts = request.url.path.strip("/").split("/")
        group, rest = (parts[1], parts[3:]) if parts[0] == "apis" else ("", parts[2:])
        namespace, rest = (rest[1], rest[2:]) if rest[:1] == ["namespaces"] else ("", rest)
        verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
        verb = verbs.get(request.method) or ("get" if rest[1:] else "list")
        if (
            parts[0] == "version"
            or group.startswith("auth")
            or not rest
            or self._allows(verb, group, namespace, rest)
        ):
            return FakeApi.handle(self.api, request)
        return refusal(403, "Forbidden", f"cannot {verb} resource {rest[0]}")

    def _allows(self, verb: str, group: str, namespace: str, rest: list[str]) -> bool:
        rules = [
            rule
            for role in self.roles
            if role["metadata"].get("namespace", namespace) == namespace
            for rule in role["rules"]
        ]
        return any(
            verb in rule["verbs"]
            and group in rule["apiGroups"]
            and rest[0] in rule["resources"]
            and {*rest[1:2]} <= {*rule.get("resourceNames", rest[1:2])}
            for rule in rules
        )


def roles_of(file: Path) -> tuple[dict[str, Any], ...]:
    return tuple(each for each in yaml.safe_load_all(file.read_text()) if each["kind"].endswith("Role"))


@pytest.mark.remedy("cluster-forbidden")
def test_requests_are_allowed_when_permissions_are_applied(
    made: ServiceSettings, authority: CertificateAuthority, tmp_path: Path
) -> None:
    with api_server(authority, tmp_path) as kubernetes:
        authorized = AuthorizedApi(kubernetes.api)
        kubernetes.api.handle = authorized.handle  # type: ignore[method-assign]
        person, add = Person(made.state_dir), kubernetes.add()
        fails(person, "cluster-forbidden", *add)

        assert command("cluster-forbidden", "kubectl") == ["kubectl", "apply", "-f"]
        [file] = command("cluster-forbidden", "20-rbac.yaml")
        authorized.roles = roles_of(MANIFESTS / file)
        for role in authorized.roles:  # the manifest also contains the role of exec nodes, which the service reads
            if "namespace" not in role["metadata"]:
                kubernetes.api.put(f"{CLUSTER_ROLES}/{role['metadata']['name']}", role)
        person.does(*add)

        authorized.roles = tuple(role for role in roles_of(MANIFESTS / file) if "namespace" in role["metadata"])
        asyncio.run(grant_without_cluster_role(made, authorized, MANIFESTS / file))


async def grant_without_cluster_role(made: ServiceSettings, authorized: AuthorizedApi, file: Path) -> None:
    """An upgrade can need more than was applied: here, the cluster role is missing."""
    async with connected(made) as clusters:
        with pytest.raises(ClusterError) as caught:
            await clusters.grant(KEY, "edge-1", ACCESS)
        assert caught.value.name == "cluster-forbidden"
        advice("cluster-forbidden", "Do so after each upgrade of the service.")
        authorized.roles = roles_of(file)
        await clusters.grant(KEY, "edge-1", ACCESS)
        assert await mint(clusters)


@pytest.mark.remedy("cluster-forbidden")
def test_cluster_with_rejected_credentials_gets_a_new_kubeconfig(somebody: Person, kubernetes: ApiServer) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        expired = request.headers["Authorization"] == "Bearer expired"
        return refusal(401, "Unauthorized", "Unauthorized") if expired else FakeApi.handle(kubernetes.api, request)

    kubernetes.api.handle = answer  # type: ignore[method-assign]
    add = ("cluster", "add", ID, "--kubeconfig")
    assert (
        "Unauthorized" in fails(somebody, "cluster-forbidden", *add, str(kubernetes.kubeconfig(token="expired"))).err
    )

    advice("cluster-forbidden", "add the cluster again with a new kubeconfig")
    somebody.does(*add, str(kubernetes.kubeconfig()))


@dataclass
class ContendedStore:
    """A store in which another writer changes the node before each write of the service."""

    store: Any
    changes: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def put_node(self, node: Node, etag: str | None, *more: Any) -> None:
        if self.changes:
            self.changes -= 1
            found = await self.store.node(node.cluster, node.key)
            await self.store.put_node(replace(found, status={"n": self.changes}), found.etag)
        await self.store.put_node(node, etag, *more)


@pytest.mark.remedy("node-operation-in-progress")
def test_event_is_recorded_when_other_changes_are_complete(shared: Running, name: str) -> None:
    api = shared.admin.at(PLANT)
    assert api.put(name, url=True).status == 201
    tracker = shared.service.join_tracker
    node = shared.call(tracker.context.store.node(PLANT.key, name))
    store: Any = ContendedStore(tracker.context.store, ATTEMPTS)
    contended = replace(tracker, context=replace(tracker.context, store=store))
    assert node
    bundle = FetchedBundle(PLANT.key, name, b"", node.join.url_expires or 0.0)
    client = FetchingClient(None, "thumbprint", "10.0.0.1", "request-1")
    with pytest.raises(FlexError) as caught:
        shared.call(contended.on_config_fetched(bundle, client))
    assert caught.value.name == "node-operation-in-progress"

    advice("node-operation-in-progress", "Wait until the other changes are complete.")
    shared.call(contended.on_config_fetched(bundle, client))
