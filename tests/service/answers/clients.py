"""Every client of the agent and of the resource provider, each with one call. The call returns how the client
describes the answer, or raises an error of the product.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx2

from aks_flex_node.agent.aks_pool.pool_ids import PoolId
from aks_flex_node.agent.artifacts import digest, download
from aks_flex_node.agent.artifacts.model import Artifact
from aks_flex_node.agent.cluster import client as cluster_client
from aks_flex_node.agent.cluster.client import ApiClient
from aks_flex_node.agent.cluster.node_watch import NodeWatch
from aks_flex_node.agent.config import remote
from aks_flex_node.agent.config_sources import machine_poll, pool_source
from aks_flex_node.agent.http import certificate_probe
from aks_flex_node.agent.http.client import HttpClient
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.agent.identity import azure_sign_in, cloud_endpoints
from aks_flex_node.agent.preflight import network
from aks_flex_node.agent.preflight.interfaces import ProbeRequest
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderClient, ProviderEndpoint
from aks_flex_node.agent.vpn import client_profile
from aks_flex_node.api import config_urls
from aks_flex_node.azure import managed_identity, transport
from aks_flex_node.azure.arm import ArmClient
from aks_flex_node.retry import Retrier, RetryBackoff
from aks_flex_rp import api_client, raw_database
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.auth import tenant_keys
from aks_flex_rp.auth.auth_errors import TenantUnreachable
from aks_flex_rp.auth.tenant_keys import TenantKeys
from aks_flex_rp.clusters import client as kube_client
from aks_flex_rp.clusters.client import FixedConnection, KubeClient
from aks_flex_rp.clusters.connections import DirectConnection
from aks_flex_rp.dashboard import sign_in
from aks_flex_rp.delivery import azure_blob
from aks_flex_rp.notify.notification_settings import WebhookSettings
from aks_flex_rp.notify.webhook_client import WebhookClient
from aks_flex_rp.store.postgres_address import parse_address
from tests.service.rp.notify.receivers import SECRET, write_secrets
from tests.unit.agent.builders import config_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from azure.core.credentials import TokenCredential

    from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
    from aks_flex_node.settings.models import NodeConfig

CANARY = "canary-of-the-answer-matrix"  # in every token, password and URL that a client has
SECONDS = 1.0  # the limits of time, for these tests
SHORT = 0.4  # for clients that try several times
BYTES = 1 << 20  # the limits of size
QUICK = RetryBackoff(first_delay=0.01, max_delay=0.02, max_retry_after=0.05)
TENANT = "11111111-1111-1111-1111-111111111111"
CLUSTER = ClusterId(TENANT, "group", "cluster")
PARSING = threading.Lock()  # msgspec's first use of a model is not safe in several threads
# Limits of the product that the tests replace: where, the name, and the value.
LIMITS: tuple[tuple[Any, str, Any], ...] = (
    (cluster_client, "API_LIMITS", DownloadOptions(parallel=1, connect_seconds=SECONDS, stall_seconds=SECONDS)),
    (cluster_client, "ANSWER_SECONDS", SECONDS),
    (cluster_client, "MAX_ANSWER_BYTES", BYTES),
    (cluster_client, "MAX_LINE_BYTES", BYTES),
    (remote, "BODY_SECONDS", SECONDS),
    (remote, "REPORT_SECONDS", SECONDS),
    (certificate_probe, "PROBE_SECONDS", SECONDS),
    (cloud_endpoints, "METADATA_SECONDS", SECONDS),
    (client_profile, "DOWNLOAD_SECONDS", SECONDS),
    (client_profile, "MAX_ARCHIVE_BYTES", BYTES),
    (network, "LOOKUP_SECONDS", SECONDS),
    (network, "READ_SECONDS", SECONDS / 2),
    (download, "MAX_ARTIFACT_BYTES", BYTES),
    (transport, "TOTAL_SECONDS", SHORT),
    (transport, "READ_SECONDS", SHORT),
    (transport, "MAX_RESPONSE_BYTES", BYTES),
    (managed_identity, "REACH_SECONDS", SECONDS),
    (tenant_keys, "FETCH_SECONDS", SECONDS),
    (kube_client, "REQUEST_SECONDS", SECONDS),
    (kube_client, "WATCH_TIMEOUT", httpx2.Timeout(SECONDS)),
    (kube_client, "MAX_ANSWER_BYTES", BYTES),
    (kube_client, "MAX_LINE_BYTES", BYTES),
    (api_client, "MAX_RETRY_AFTER_SECONDS", 0.1),
    (api_client, "TOTAL_SECONDS", SECONDS),
    (api_client, "MAX_RESPONSE_BYTES", BYTES),
    (raw_database, "CONNECT_SECONDS", SECONDS),
)


@dataclass(frozen=True)
class Place:
    """Where a client connects to, and a directory for its files."""

    port: int
    ca_file: Path
    room: Path

    @property
    def https(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ca(self) -> str:
        return base64.b64encode(self.ca_file.read_bytes()).decode()

    @property
    def options(self) -> DownloadOptions:
        return DownloadOptions(ca_file=str(self.ca_file), attempts=2, stall_seconds=SECONDS / 2)

    def config(self, **more: object) -> NodeConfig:
        azure = {"azure.resourceManager": self.https, "azure.authorityHost": self.https, "azure.caCertData": self.ca}
        with PARSING:
            return config_of({**azure, **more})

    def principal(self) -> NodeConfig:
        parts = {"tenantId": TENANT, "clientId": TENANT, "clientSecret": CANARY}
        return self.config(**{f"azure.servicePrincipal.{name}": value for name, value in parts.items()})


class Tokens:
    """Tokens of a node that has signed in."""

    def value(self, _audience: str = "") -> str:
        return CANARY

    def invalidate(self) -> None: ...


class SignedIn:
    def get_token(self, *_: str, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(token=CANARY, expires_on=2**40)


class Believed(str):
    """What a client took from a response. All other texts are failures."""

    __slots__ = ()


def provider(place: Place) -> ProviderClient:
    endpoint = ProviderEndpoint(place.https, "/node", place.ca_file.read_bytes())
    tokens = cast("ProviderTokens", Tokens())
    return ProviderClient(endpoint, place.config(), tokens, grace=SECONDS / 2, max_bytes=BYTES)


def polls(place: Place) -> str:
    result = provider(place).poll("1", 0)
    return Believed(result.message) if result.state is ProviderState.CONNECTED else result.message


def runs_action(place: Place) -> str:
    return Believed(repr(provider(place).post_action("reportStatus", {"conditions": []})))


def reads_machine(place: Place) -> str:
    found = pool_source.arm_client(place.config(), cast("ProviderTokens", Tokens()))
    found.grace, found.max_bytes = SECONDS / 2, BYTES
    pool, name = PoolId(TENANT, "group", "cluster", "flex"), "edge-1"
    status, headers, body = found.get(pool.machine_id(name))
    machine = machine_poll.read_machine(status, body, name)
    return Believed(repr(machine)) if machine else machine_poll.classify_failure(status, headers, body, pool).message


def fetches_config(place: Place) -> str:
    url = config_urls.parse(f"{place.https}/{CANARY}")
    return Believed(repr(remote.fetch_config(url, place.options, QUICK)))


def fetches_pinned_config(place: Place) -> str:
    url = config_urls.parse(f"{place.https}/{CANARY}#ca=sha256:{'0' * 64}")
    return Believed(repr(remote.fetch_config(url, place.options, QUICK)))


def reports_failed_join(place: Place) -> str:
    url = config_urls.parse(f"{place.https}/{CANARY}")
    is_accepted = remote.report_join_failure(url, place.options, "It failed.")
    return Believed("it was accepted") if is_accepted else "it was not accepted"


def reads_node(place: Place) -> str:
    return Believed(
        repr(ApiClient(place.https, str(place.ca_file), token=lambda: CANARY).get("/api/v1/nodes/edge-1"))
    )


def opens_stream(place: Place) -> str:
    stream = ApiClient(place.https, str(place.ca_file), token=lambda: CANARY).open_stream("/api/v1/nodes", SECONDS)
    return Believed(f"the lines {[line[:10] for line in stream.lines()]}")


def watches_node(place: Place) -> str:
    watch = NodeWatch(lambda: ApiClient(place.https, str(place.ca_file)), "edge-1", lambda _: None)
    delay = watch.watch_once()
    assert delay >= 1.0, f"asks again after {delay} s"
    return f"asks again after {delay} s"


def retrier() -> Retrier:
    return Retrier(2, QUICK, threading.Event())


def downloads(place: Place) -> str:
    artifact = Artifact("kubelet", "1.0.0", f"{place.https}/kubelet", ())
    wanted = digest.Digest.parse(f"sha256:{'0' * 64}")
    http, location = HttpClient(place.options), place.options.resolve(f"{artifact.url}?sig={CANARY}")
    progress = download.TransferProgress(artifact)
    return Believed(repr(download.Download(http, location, wanted, place.room / "file", progress).run(retrier())))


def reads_checksum(place: Place) -> str:
    location = place.options.resolve(f"{place.https}/kubelet.sha256?sig={CANARY}")
    found = digest.find_digest(download.fetch_text(HttpClient(place.options), location, retrier()), "kubelet")
    return Believed(repr(found)) if found else "it contains no checksum"


def discovers_cloud(place: Place) -> str:
    return Believed(cloud_endpoints._discover_authority(place.https, place.ca, place.options))


def downloads_profile(place: Place) -> str:
    found = client_profile.download_profile(place.config(), f"{place.https}/profile.zip?sig={CANARY}")
    return Believed(repr(client_profile.parse_profile(client_profile.unpack_profile(found))))


def probes(place: Place) -> str:
    request = ProbeRequest(f"{place.https}/version", place.ca_file.read_bytes())
    return Believed(repr(network.NetworkProbe(place.options).ask(request)))


def calls_arm(place: Place) -> str:
    credential = cast("TokenCredential", SignedIn())
    return Believed(
        repr(ArmClient(credential, place.https, ca_file=str(place.ca_file)).get("/subscriptions/1", "2024-01-01"))
    )


def signs_in(place: Place) -> str:
    return Believed(repr(azure_sign_in.sign_in(place.principal(), f"{place.https}/.default")))


def uses_imds(place: Place) -> str:
    with managed_identity._environment({"AZURE_POD_IDENTITY_AUTHORITY_HOST": place.http}):
        return Believed(repr(managed_identity.ImdsCredential().get_token("https://management.azure.com/.default")))


def uses_himds(place: Place) -> str:
    return Believed(
        repr(managed_identity.ArcCredential(place.http).get_token("https://management.azure.com/.default"))
    )


def kube(place: Place) -> KubeClient:
    return KubeClient(FixedConnection(DirectConnection(place.https, place.ca_file.read_text(), token=CANARY)))


def reads_cluster(place: Place) -> str:
    async def read() -> Any:
        async with kube(place) as client:
            return await client.find("/api/v1/nodes/edge-1")

    return Believed(repr(asyncio.run(read())))


def watches_cluster(place: Place) -> str:
    async def watch() -> list[Any]:
        async with kube(place) as client:
            return [event async for event in client.watch("/api/v1/nodes", "1")]

    return Believed(f"the events {asyncio.run(watch())}")


def reads_tenant_keys(place: Place) -> str:
    tenant: Any = SimpleNamespace(tenant_id=TENANT, metadata=f"{place.https}/metadata")

    async def read() -> Any:
        return await TenantKeys(tenant, tenant_keys.https_fetcher(str(place.ca_file)), lambda: 1.0).key("key")

    try:
        return Believed(repr(asyncio.run(read())))
    except TenantUnreachable as error:
        return str(error)


def signs_user_in(place: Place) -> str:
    settings: Any = SimpleNamespace(
        client_id=TENANT, tenant_id=TENANT, client_certificate_file=None, client_secret_file=None
    )
    found = object.__new__(sign_in.EntraSignIn)
    found._settings, found.authority, found._ca_file = settings, place.https, str(place.ca_file)
    return Believed(repr(found._application()))


def sends_webhook(place: Place) -> str:
    secrets = write_secrets(place.room / "secrets", SECRET)
    hook = WebhookSettings(url=f"{place.https}/{CANARY}", secret_file=secrets, ca_file=place.ca_file)
    result = WebhookClient(hook, SECONDS).send("id-1", "{}")
    text = f"the message is {result.status}: {result.why}"
    return Believed(text) if result.status == "sent" else text


def calls_service(place: Place) -> str:
    connection = api_client.ServiceConnection(place.https, CANARY, place.ca_file)
    return Believed(repr(api_client.Resource(api_client.ServiceClient(connection), CLUSTER.node("edge-1")).get()))


def uses_blobs(place: Place) -> str:
    key = base64.b64encode(CANARY.encode()).decode()
    file = place.room / "connection-string"
    file.touch(0o600)
    file.write_text(f"AccountName=account;AccountKey={key};BlobEndpoint={place.https}/account")
    limits = {"transport": transport.BoundedTransport(connection_verify=str(place.ca_file)), "retry_total": 0}
    service = azure_blob.by_connection_string(file, **limits)
    return Believed(repr(asyncio.run(azure_blob.AzureBlobDelivery(service).start())))


def opens_postgres(place: Place) -> str:
    async def read() -> Any:
        text = f"postgres://joe:{CANARY}@127.0.0.1:{place.port}/db?sslmode=disable"
        async with raw_database.open_postgres(parse_address(text, {}, insecure=True)) as database:
            return await database.fetch("SELECT 1")

    return Believed(repr(asyncio.run(read())))


@dataclass(frozen=True)
class Client:
    call: Callable[[Place], str]
    modules: tuple[str, ...]  # modules of the product whose connections the call opens
    tls: bool = True
    http: bool = True
    alone: bool = False  # changes the environment of the process
    believes: frozenset[str] = frozenset()  # behaviours whose responses this client cannot tell from right ones


# For a client to which only the status matters.
ANY_BODY = frozenset(
    (
        "a page with status 200",
        "an empty body",
        "5 MB of garbage",
        "a gzip bomb",
        "an endless body",
        "a slow body",
        "a slow body without a length",
    )
)
ANY_STATUS = frozenset(
    (
        "a page with status 404",
        "a redirect",
        "status 401",
        "status 429",
        "status 429 for an hour",
        "status 500",
        "status 503 for an hour",
    )
)
CLIENTS: dict[str, Client] = {
    "provider poll": Client(polls, ("aks_flex_node.agent.provider.provider_client",)),
    "provider action": Client(runs_action, ("aks_flex_node.agent.provider.provider_client",)),
    "Azure Resource Manager of the daemon": Client(reads_machine, ("aks_flex_node.agent.provider.provider_client",)),
    "configuration URL": Client(fetches_config, ("aks_flex_node.agent.config.remote",)),
    "pinned configuration URL": Client(fetches_pinned_config, ("aks_flex_node.agent.http.certificate_probe",)),
    "report of a failed join": Client(reports_failed_join, ("aks_flex_node.agent.config.remote",), believes=ANY_BODY),
    "API server": Client(reads_node, ("aks_flex_node.agent.cluster.client",)),
    "API server's stream": Client(  # its lines are checked by those who read them, as the Node watch
        opens_stream, ("aks_flex_node.agent.cluster.client",), believes=ANY_BODY
    ),
    "Node watch": Client(watches_node, ("aks_flex_node.agent.cluster.node_watch",)),
    "artifact": Client(downloads, ("aks_flex_node.agent.http.client",)),
    "checksum": Client(reads_checksum, ("aks_flex_node.agent.http.client",)),
    "cloud metadata": Client(discovers_cloud, ("aks_flex_node.agent.identity.cloud_endpoints",)),
    "VPN profile": Client(downloads_profile, ("aks_flex_node.agent.vpn.client_profile",)),
    "preflight": Client(  # the checks compare the status and the document
        probes, ("aks_flex_node.agent.preflight.network",), believes=ANY_BODY | ANY_STATUS
    ),
    "Azure Resource Manager": Client(calls_arm, ("aks_flex_node.azure.arm", "aks_flex_node.azure.transport")),
    "Entra ID": Client(signs_in, ("aks_flex_node.azure.credentials",)),
    "IMDS": Client(uses_imds, ("aks_flex_node.azure.managed_identity",), tls=False, alone=True),
    "HIMDS": Client(uses_himds, ("aks_flex_node.azure.managed_identity",), tls=False, alone=True),
    "cluster of the provider": Client(reads_cluster, ("aks_flex_rp.clusters.client",)),
    "watch of the provider": Client(  # without events, it ends and starts again
        watches_cluster, ("aks_flex_rp.clusters.client",), believes=frozenset(("an empty body",))
    ),
    "tenant keys": Client(reads_tenant_keys, ("aks_flex_rp.auth.tenant_keys",)),
    "dashboard's sign-in": Client(signs_user_in, ("aks_flex_rp.dashboard.sign_in",)),
    "webhook": Client(sends_webhook, ("aks_flex_rp.notify.webhook_client",), believes=ANY_BODY),
    "resource provider's commands": Client(calls_service, ("aks_flex_rp.api_client",)),
    "blob storage": Client(uses_blobs, ("aks_flex_rp.delivery.azure_blob",)),
    "PostgreSQL": Client(opens_postgres, ("aks_flex_rp.raw_database",), tls=False, http=False),
}


def cells(client: Client, behaviours: dict[str, Any]) -> Iterable[str]:
    """Yields the behaviours that mean something to a client."""
    for name, behaviour in behaviours.items():
        if (client.http or not behaviour.speaks_http) and (client.tls or behaviour.certificate == "good"):
            yield name
