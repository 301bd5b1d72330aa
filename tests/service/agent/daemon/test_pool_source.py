"""Tests of the AKS pool as a config source, with a small server in place of Azure Resource Manager."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.aks_pool.pool_ids import parse_pool_id
from aks_flex_node.agent.config_sources.pool_source import PoolSource, arm_client
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from tests.service.agent.daemon.harness import script
from tests.service.http_servers import Handler, listening
from tests.unit.agent.config.builders import CA, CLUSTER_ID, load_plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority, CertificatePair

POOL_PATH = f"{CLUSTER_ID}/agentPools/edge"
LIST_PATH = f"{POOL_PATH}/machines"
MACHINE_PATH = f"{LIST_PATH}/edge-1"
OBJECT_ID = "33333333-0000-4000-8000-000000000000"
Answer = tuple[int, bytes, dict[str, str]]


def machine(etag: str = "e-2", name: str = "edge-1", **profile: Any) -> Answer:
    kubernetes = {"orchestratorVersion": "1.34.4", "maxPods": 30, "nodeLabels": {"site": "b"}, **profile}
    return 200, json.dumps({"name": name, "properties": {"eTag": etag, "kubernetes": kubernetes}}).encode(), {}


def refusal(status: int, code: str, message: str = "In these words.", **headers: str) -> Answer:
    return status, json.dumps({"error": {"code": code, "message": message}}).encode(), headers


NEXT_QUERY = "api-version=2026-08-02-preview&%24skiptoken=2"
OTHERS: Answer = (200, json.dumps({"value": [{"name": "edge-2"}]}).encode(), {})
ITSELF: Answer = (200, json.dumps({"value": [{"name": "Edge-1"}]}).encode(), {})
PORTAL: Answer = (404, b"<html>Not found. Please sign in.</html>", {"content-type": "text/html"})
GONE = refusal(404, "NotFound")
FORBIDDEN = refusal(
    403,
    "AuthorizationFailed",
    f"The client 'x' with object id '{OBJECT_ID}' does not have authorization to perform action "
    f"'Microsoft.ContainerService/managedClusters/agentPools/machines/read' over scope '{MACHINE_PATH}'.",
)
OTHER_TENANT = refusal(401, "InvalidAuthenticationTokenTenant", "The access token is from the wrong issuer.")


@dataclass
class Azure:
    """A server with predefined responses by path."""

    answers: dict[str, Answer] = field(default_factory=lambda: {MACHINE_PATH: machine(), LIST_PATH: OTHERS})
    asked: list[str] = field(default_factory=list)

    @contextmanager
    def serve(self, pair: CertificatePair) -> Iterator[str]:
        azure = self

        class Serve(Handler):
            def do_GET(self) -> None:  # noqa: N802
                path, _, query = self.path.partition("?")
                azure.asked.append(path)
                assert query in {"api-version=2026-08-02-preview", NEXT_QUERY}
                path = f"{path}?{query}" if query == NEXT_QUERY else path
                assert self.headers["Authorization"] == "Bearer canary-token"
                status, body, headers = azure.answers.get(path, GONE)
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        with listening(Serve, pair) as url:
            yield url


@pytest.fixture
def azure() -> Azure:
    return Azure()


@pytest.fixture
def source(
    azure: Azure, pair: CertificatePair, authority: CertificateAuthority, tmp_path: Path
) -> Iterator[PoolSource]:
    with azure.serve(pair) as url:
        ca = base64.b64encode(authority.certificate.read_bytes()).decode()
        document = {
            "azure": {
                "targetCluster": {"resourceId": CLUSTER_ID},
                "targetAgentPoolName": "edge",
                "resourceManager": url,
                "caCertData": ca,
                "managedIdentity": {},
            },
            "node": {"labels": {"old": "1"}, "kubelet": {"serverURL": "https://c.example:443", "caCertData": CA}},
            "kubernetes": {"version": "1.33.13"},
        }
        config = load_plain(json.dumps({"config": document})).config
        tokens = ProviderTokens(
            script(tmp_path, """echo '{"token": "canary-token", "seconds": 3600}'"""), lambda: "{}"
        )
        client = arm_client(config, tokens)
        made = PoolSource(
            config,
            parse_pool_id(POOL_PATH),
            "edge-1",
            tokens,
            client,
            lambda: document,
            lambda *_: {"token": "t"},
            lambda: "1.35.6",
        )
        yield made
        made.close()


def test_changed_machine_gives_the_next_configuration(source: PoolSource, azure: Azure) -> None:
    azure.answers[MACHINE_PATH] = machine(nodeTaints=["edge=1:NoSchedule"], kubeletConfig={"podMaxPids": 99})
    result = source.poll("e-1", 0)
    assert (result.state, result.changed, result.version) == (ProviderState.CONNECTED, True, "e-2")
    node = result.config["node"]
    assert (node["labels"], node["taints"], node["maxPods"]) == ({"site": "b"}, ["edge=1:NoSchedule"], 30)
    assert (node["kubelet"]["podPidsLimit"], node["kubelet"]["serverURL"]) == (99, "https://c.example:443")
    assert (result.config["kubernetes"], result.config["azure"]["targetAgentPoolName"]) == (
        {"version": "1.34.4"},
        "edge",
    )


def test_unchanged_etag_is_no_news_and_one_request(source: PoolSource, azure: Azure) -> None:
    assert source.poll("e-2", 0) == PollResult(ProviderState.CONNECTED)
    assert azure.asked == [MACHINE_PATH]


@pytest.mark.parametrize(
    ("answers", "state", "words"),
    [
        ({MACHINE_PATH: GONE}, ProviderState.DELETED, "The Machine edge-1 does not exist"),
        ({MACHINE_PATH: GONE, LIST_PATH: GONE}, ProviderState.NO_CLUSTER, "NotFound"),
        ({MACHINE_PATH: GONE, LIST_PATH: PORTAL}, ProviderState.UNEXPECTED_RESPONSE, "sign-in page"),
        ({MACHINE_PATH: GONE, LIST_PATH: FORBIDDEN}, ProviderState.FORBIDDEN, "role"),
        ({MACHINE_PATH: GONE, LIST_PATH: ITSELF}, ProviderState.UNEXPECTED_RESPONSE, "not a Machine"),
        ({MACHINE_PATH: PORTAL}, ProviderState.UNEXPECTED_RESPONSE, "sign-in page"),
        ({MACHINE_PATH: (200, b"<html>Welcome</html>", {})}, ProviderState.UNEXPECTED_RESPONSE, "not a Machine"),
        ({MACHINE_PATH: machine(name="other")}, ProviderState.UNEXPECTED_RESPONSE, "not a Machine"),
        ({MACHINE_PATH: machine(etag="")}, ProviderState.UNEXPECTED_RESPONSE, "not a Machine"),
        ({MACHINE_PATH: refusal(500, "InternalServerError")}, ProviderState.FAILING, "InternalServerError"),
        ({MACHINE_PATH: OTHER_TENANT}, ProviderState.FORBIDDEN, "another tenant"),
        (
            {MACHINE_PATH: FORBIDDEN},
            ProviderState.FORBIDDEN,
            f"az role assignment create --assignee-object-id {OBJECT_ID} --assignee-principal-type ServicePrincipal "
            f'--role "Azure Kubernetes Service Flex Node Agent Role" --scope {POOL_PATH}`',
        ),
    ],
    ids=[
        *("machine", "pool", "pool by a portal", "pool forbidden", "still listed", "portal", "page", "other name"),
        *("no etag", "error", "other tenant", "forbidden"),
    ],
)
def test_only_azure_can_say_that_the_machine_is_deleted(
    source: PoolSource, azure: Azure, answers: dict[str, Answer], state: ProviderState, words: str
) -> None:
    azure.answers |= answers
    result = source.poll("e-1", 0)
    assert result.state is state, result
    assert words in result.message
    assert not result.changed


@pytest.mark.parametrize(
    ("path", "second", "state"),
    [
        (LIST_PATH, OTHERS, ProviderState.DELETED),
        (LIST_PATH, ITSELF, ProviderState.UNEXPECTED_RESPONSE),
        (LIST_PATH, GONE, ProviderState.NO_CLUSTER),
        ("/elsewhere", OTHERS, ProviderState.UNEXPECTED_RESPONSE),
    ],
    ids=["on no page", "on the second page", "second page missing", "second page elsewhere"],
)
def test_all_pages_must_show_that_the_machine_is_deleted(
    source: PoolSource, azure: Azure, path: str, second: Answer, state: ProviderState
) -> None:
    link = f"{source.client.endpoint.origin}{path}?{NEXT_QUERY}"
    first = json.dumps({"value": [{"name": "edge-2"}], "nextLink": link}).encode()
    pages = {LIST_PATH: (200, first, {}), f"{LIST_PATH}?{NEXT_QUERY}": second}
    azure.answers |= {MACHINE_PATH: GONE, **pages}
    assert source.poll("e-1", 0).state is state


@pytest.mark.parametrize(("desired", "version"), [("1.35", "1.35.6"), ("1.33", "1.33.13"), ("1.34", "")])
def test_minor_version_gets_a_patch_version_or_waits(
    source: PoolSource, azure: Azure, desired: str, version: str
) -> None:
    azure.answers[MACHINE_PATH] = machine(orchestratorVersion=desired)
    result = source.poll("e-1", 0)
    assert (result.state, result.changed) == (ProviderState.CONNECTED, bool(version))
    assert (result.config or {}).get("kubernetes") == ({"version": version} if version else None)


def test_retry_after_of_azure_is_respected(source: PoolSource, azure: Azure) -> None:
    azure.answers[MACHINE_PATH] = refusal(429, "TooManyRequests", Retry_After="77")
    result = source.poll("e-1", 0)
    assert (result.state, result.retry_after) == (ProviderState.THROTTLED, 77.0)


def test_bootstrap_token_of_the_pool_is_not_stored(source: PoolSource) -> None:
    grant = source.issue_bootstrap_token()
    assert (grant.settings, grant.is_stored) == ({"token": "t"}, False)
    assert "'t'" not in repr(grant)
