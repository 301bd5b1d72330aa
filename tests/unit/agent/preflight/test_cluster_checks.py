"""Tests of the checks of name servers, API server and publishers."""

from __future__ import annotations

import json
import ssl
import time

import pytest
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.exceptions import SSLError as HTTPSSLError

from aks_flex_node.agent.preflight import artifact_checks
from aks_flex_node.agent.preflight.artifact_checks import missing_artifacts
from aks_flex_node.agent.preflight.interfaces import ProbeFailed, ProbeFailure, ProbeRequest, ProbeResponse
from aks_flex_node.agent.preflight.network import explain_probe_failure, probe_tls_context
from tests.client_certificates import client_pem
from tests.unit.agent.config.builders import CLUSTER_ID, PEM, TOKEN, Settings
from tests.unit.agent.preflight.builders import (
    ANSWERS,
    NOW,
    REVIEWS,
    SERVER,
    answering,
    config,
    findings,
    fit,
    host,
    requests_of,
    severities,
    told,
)
from tests.unit.agent.preflight.fakes import RecordedNetworkProbe

NODE = frozenset({"kubelet.service"})
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
SILENT = ProbeFailed(ProbeFailure.SILENCE, "api.example refused the connection")
UNTRUSTED = ProbeFailed(ProbeFailure.UNTRUSTED, "unable to get local issuer certificate")
MIRROR = "https://mirror.example/flex"


def test_preflight_reports_an_unresolvable_name() -> None:
    situation = fit(network=RecordedNetworkProbe({"github.com": ("192.0.2.1",)}, ANSWERS))

    assert severities(situation, "dns") == ["error", "error"]
    assert "The name api.example cannot be resolved" in told(situation, "dns")


def test_preflight_accepts_artifacts_that_a_slow_machine_could_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowNetworkProbe(RecordedNetworkProbe):
        def ask(self, request: ProbeRequest) -> ProbeResponse:
            time.sleep(1)
            return super().ask(request)

    monkeypatch.setattr(artifact_checks, "REACH_SECONDS", 0.05)
    situation = fit(network=SlowNetworkProbe())

    assert set(severities(situation, "artifacts")) == {"warning"}
    assert "could not be checked within 0.05 s. The download is tried nevertheless." in told(situation, "artifacts")


def test_preflight_resolves_only_the_proxy_name_for_proxied_hosts() -> None:
    settings = config({"proxy": {"https": "http://user:secret@proxy.example:3128", "noProxy": ["api.example"]}})
    network = RecordedNetworkProbe({"api.example": ("192.0.2.1",)}, ANSWERS)

    (found,) = findings(fit(config=settings, network=network), "dns")
    assert "The name proxy.example cannot be resolved" in found.message
    assert "secret" not in repr(found)


def test_preflight_needs_no_dns_for_ip_addresses() -> None:
    settings = config(
        {"node": {"kubelet": {"serverURL": "https://192.0.2.9:443"}}, "artifacts": {"bundle": "/b.tar"}}
    )

    assert severities(fit(config=settings, network=RecordedNetworkProbe()), "dns") == ["ok"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (UNTRUSTED, "The certificate of api.example is not signed by the CA of the cluster"),
        (
            ProbeFailed(ProbeFailure.UNTRUSTED, "Hostname mismatch, certificate is not valid for 'x'"),
            "is for another name",
        ),
        (ProbeFailed(ProbeFailure.UNTRUSTED, "certificate has expired"), "Check the clock"),
        (SILENT, "cannot be reached: api.example refused the connection"),
        (
            ProbeFailed(ProbeFailure.NAME, "the name api.example cannot be looked up"),
            "See the result of the check dns",
        ),
        (ProbeResponse(503), "status 503"),
        (ProbeResponse(404), "is not a Kubernetes API server"),
        (ProbeResponse(200, document={"hello": "world"}), "is not a Kubernetes API server"),
    ],
)
def test_preflight_reports_why_the_api_server_is_unusable(answer: ProbeResponse | ProbeFailed, words: str) -> None:
    situation = answering({f"{SERVER}/version": answer})

    assert severities(situation, "api-server") == ["error"]
    assert words in told(situation, "api-server")


def test_preflight_accepts_api_server_that_refuses_anonymous_requests() -> None:
    assert severities(answering({f"{SERVER}/version": ProbeResponse(401)}), "api-server") == ["ok"]


def test_preflight_warns_when_no_api_server_is_configured() -> None:
    nothing = fit(config=config({"node": {"kubelet": {}}}))

    assert severities(nothing, "api-server") == ["warning"]
    assert severities(nothing, "token") == ["warning"]


@pytest.mark.parametrize(
    ("server", "expected"),
    [("v1.33.9", ["ok", "error"]), ("v1.38.0", ["ok", "warning"]), ("v1.37.0", ["ok"]), ("odd", ["ok"])],
)
def test_preflight_reports_kubelet_version_skew(server: str, expected: list[str]) -> None:
    answer = {f"{SERVER}/version": ProbeResponse(200, NOW, {"gitVersion": server})}

    assert severities(answering(answer), "api-server") == expected


@pytest.mark.parametrize(
    ("skew", "severity"), [(0, "ok"), (-29, "ok"), (45, "warning"), (-400, "error"), (4e6, "error")]
)
def test_preflight_compares_the_clock_with_the_server(skew: float, severity: str) -> None:
    assert severities(fit(now=lambda: NOW + skew), "clock") == [severity]


def test_preflight_accepts_a_clock_it_cannot_compare() -> None:
    assert severities(answering({f"{SERVER}/healthz": SILENT}), "clock") == ["ok"]


@pytest.mark.parametrize(
    ("answer", "severity", "words"),
    [
        (ProbeResponse(401), "error", "rejects the bootstrap token"),
        (ProbeResponse(201, document={"status": {"allowed": False}}), "error", "system:node-bootstrapper"),
        (ProbeResponse(403), "warning", "status 403"),
        (SILENT, "warning", "could not be reached"),
        (UNTRUSTED, "warning", "could not be reached"),
    ],
)
def test_preflight_tries_the_bootstrap_token(answer: ProbeResponse | ProbeFailed, severity: str, words: str) -> None:
    situation = answering({REVIEWS: answer})

    assert severities(situation, "token") == [severity]
    assert words in told(situation, "token")


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ({}, "`az aks nodepool get-bootstrap-data --subscription sub-1 --resource-group group-1 --cluster-name"),
        ({"managedIdentity": {}}, "Run the same command again. It requests a new token from the pool."),
    ],
)
def test_rejected_token_of_a_pool_names_the_way_to_a_new_one(identity: Settings, words: str) -> None:
    azure = {"targetCluster": {"resourceId": CLUSTER_ID}, "targetAgentPoolName": "edge", **identity}
    situation = answering({REVIEWS: ProbeResponse(401)}, config=config({"azure": azure}))
    assert words in told(situation, "token")


def test_preflight_sends_the_token_only_to_the_server_verified_by_the_ca() -> None:
    (request,) = requests_of(fit(), "token")
    assert request.authority is not None
    assert request.url == REVIEWS
    assert TOKEN not in repr(request)


def test_preflight_needs_no_token_for_joined_node_or_azure_identity() -> None:
    node = host({CERTIFICATE: client_pem()})
    assert severities(answering({REVIEWS: ProbeResponse(401)}, owned_services=NODE, host=node), "token") == ["ok"]
    identity = config({"azure": {"managedIdentity": {}, "bootstrapToken": None}})
    assert severities(fit(config=identity), "token") == ["ok"]
    assert severities(fit(config=config({"azure": {"bootstrapToken": None}})), "token") == ["error"]


def test_preflight_names_a_missing_token_file() -> None:
    situation = fit(config=config({"azure": {"bootstrapToken": {"token": None, "tokenFile": "/etc/token"}}}))
    assert severities(situation, "token") == ["error"]
    assert "tokenFile is /etc/token, which does not exist" in told(situation, "token")


@pytest.mark.parametrize("check", ["dns", "api-server", "clock", "token", "artifacts"])
def test_preflight_of_a_joined_node_passes_when_the_network_is_down(check: str) -> None:
    changes = {"network": RecordedNetworkProbe(), "owned_services": NODE, "now": lambda: 0.0}

    assert "error" not in severities(fit(host=host({CERTIFICATE: client_pem()}), **changes), check)
    if check != "token":  # the token check cannot run
        assert "error" in severities(fit(**changes), check)
    assert severities(
        fit(host=host({CERTIFICATE: client_pem()}), **{**changes, "owned_services": frozenset()}), check
    )


def test_preflight_reports_refused_token_of_node_without_certificate() -> None:
    assert severities(answering({REVIEWS: ProbeResponse(401)}, owned_services=NODE), "token") == ["error"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ProbeResponse(404), "was not found"),
        (ProbeResponse(403), "rejected with status 403"),
        (SILENT, "artifacts.baseURL"),
        (UNTRUSTED, "artifacts.caFile"),
    ],
)
def test_preflight_reports_an_artifact_that_cannot_be_downloaded(
    answer: ProbeResponse | ProbeFailed, words: str
) -> None:
    first = missing_artifacts(fit())[0]
    situation = answering({first.url: answer})

    assert severities(situation, "artifacts") == ["error"]
    assert words in told(situation, "artifacts")


@pytest.mark.parametrize("stumble", [ProbeResponse(503), ProbeResponse(429), SILENT])
def test_preflight_retries_a_request_that_fails_once(stumble: ProbeResponse | ProbeFailed) -> None:
    first = missing_artifacts(fit())[0]
    stumbles = dict.fromkeys((first.url, f"{SERVER}/version", REVIEWS), stumble)

    for check in ("artifacts", "api-server", "token"):
        assert severities(answering(stumbles, once=True), check) == ["ok"]


def test_preflight_warns_when_a_publisher_is_busy() -> None:
    first = missing_artifacts(fit())[0]

    assert severities(answering({first.url: ProbeResponse(503)}), "artifacts") == ["warning"]
    assert severities(answering({first.checksums[0]: ProbeResponse(503)}), "artifacts") == ["ok"]


def test_preflight_does_not_retry_an_untrusted_certificate() -> None:
    assert len(requests_of(answering({f"{SERVER}/version": UNTRUSTED}), "api-server")) == 1


def test_preflight_reports_an_unreachable_host_once() -> None:
    silence = ProbeFailed(ProbeFailure.NAME, "the name dl.k8s.io cannot be looked up")
    away = {each.url: silence for each in missing_artifacts(fit()) if "dl.k8s.io" in each.url}

    assert len(away) == 3
    assert severities(answering(away), "artifacts") == ["error"]


def test_preflight_reports_missing_checksum_unless_the_digest_is_pinned() -> None:
    first = missing_artifacts(fit())[0]
    lost = dict.fromkeys(first.checksums, ProbeResponse(404))
    pinned = config({"runc": {"sha256": {first.name: "0" * 64}}})

    assert "No trusted checksum was found for" in told(answering(lost), "artifacts")
    assert severities(answering(lost, config=pinned), "artifacts") == ["ok"]


def test_public_mirror_of_document_5_needs_the_publisher_or_a_pin() -> None:
    """Document 5 sets the URL template of a public mirror that has no checksum files."""
    template = "https://acs-mirror.azureedge.net/kubernetes/v%s/binaries/kubernetes-node-linux-%s.tar.gz"
    given = {"kubernetes": {"urlTemplate": template}}
    mirror = next(each for each in missing_artifacts(fit(config=config(given))) if each.component == "kubernetes")
    published = "https://dl.k8s.io/v1.34.4/kubernetes-node-linux-amd64.tar.gz.sha256"
    none = dict.fromkeys(mirror.checksums, ProbeResponse(404))

    assert severities(answering({**none, published: ProbeResponse(206)}, config=config(given)), "artifacts") == ["ok"]

    (refused,) = findings(answering(none, config=config(given)), "artifacts")
    assert f"`kubernetes: {{sha256: {{{mirror.name}: HASH}}}}`" in refused.remedy
    pinned = config({"kubernetes": {**given["kubernetes"], "sha256": {mirror.name: "0" * 64}}})
    assert severities(answering(none, config=pinned), "artifacts") == ["ok"]


def test_preflight_with_a_mirror_sends_requests_only_to_the_mirror() -> None:
    situation = fit(config=config({"artifacts": {"baseURL": MIRROR}}))
    assert all(request.url.startswith(f"{MIRROR}/") for request in requests_of(situation, "artifacts"))
    assert "Downloads from mirror.example fail" in told(situation, "artifacts")


def test_preflight_skips_installed_and_downloaded_artifacts() -> None:
    runc = missing_artifacts(fit())[0]
    folder = f"/var/lib/aks-flex-node/artifacts/sha256-{'0' * 64}"
    fetched = {f"{folder}/{runc.name}": "x", f"{folder}/.origin.json": json.dumps({"publishedAs": [runc.url]})}
    homes = ("kubernetes", "kubernetes-tools")
    installed = {f"/opt/aks-flex-node/{home}/1.34.4/.manifest.json": "{}" for home in homes}

    left = [artifact.component for artifact in missing_artifacts(fit(host=host({**fetched, **installed})))]
    assert left == ["containerd", "cni", "npd"]
    partial = {f"{folder}/{runc.name}.partial": "x", f"{folder}/.origin.json": fetched[f"{folder}/.origin.json"]}
    assert runc in missing_artifacts(fit(host=host(partial)))


def test_preflight_checks_a_shared_tarball_once() -> None:
    template = "https://dl.k8s.io/v%s/kubernetes-node-linux-%s.tar.gz"
    needed = missing_artifacts(fit(config=config({"kubernetes": {"urlTemplate": template}})))
    assert [each.component for each in needed] == ["runc", "containerd", "kubernetes", "cni", "npd"]


def test_preflight_checks_bundle_contents_without_network() -> None:
    needed = missing_artifacts(fit())
    entries = [
        {"component": "", "version": "", "url": each.url, "digest": "", "file": f"x/{each.name}", "size": 1}
        for each in needed
    ]
    manifest = json.dumps({"format": 1, "arch": "amd64", "artifacts": entries})
    whole = {"/bundle/manifest.json": manifest, **{f"/bundle/x/{each.name}": "x" for each in needed}}
    settings = config({"artifacts": {"bundle": "/bundle"}})

    assert severities(fit(config=settings, host=host(whole)), "artifacts") == ["ok"]
    lacking = fit(config=settings, host=host(whole, without=(f"/bundle/x/{needed[0].name}",)))
    assert f"does not contain {needed[0].name}" in told(lacking, "artifacts")
    for nonsense in ("{", "[]", "[" * 100_000):
        spoiled = fit(config=settings, host=host({"/bundle/manifest.json": nonsense}))
        assert "missing or invalid" in told(spoiled, "artifacts")
    assert "was not found" in told(fit(config=settings), "artifacts")
    assert severities(fit(config=settings, host=host({"/bundle": "tar"})), "artifacts") == ["ok"]


def test_unreadable_ca_certificate_is_reported() -> None:
    assert probe_tls_context(PEM.encode(), None).get_ca_certs()
    with pytest.raises(ProbeFailed) as caught:
        probe_tls_context(b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n", None)
    assert "node.kubelet.caCertData cannot be read" in caught.value.reason


def test_probe_failure_is_explained_with_its_cause() -> None:
    refused = NewConnectionError(HTTPConnection("api.example", 443), "failed")
    refused.__cause__ = ConnectionRefusedError(111, "Connection refused")
    late = ConnectTimeoutError(HTTPConnection("api.example", 443), "late")
    untrusted = ssl.SSLCertVerificationError(1, "certificate verify failed")
    untrusted.verify_message = "self-signed certificate"

    assert explain_probe_failure(refused, SERVER, None).reason == "api.example:443 refused the connection"
    assert (
        explain_probe_failure(late, SERVER, None).reason
        == "api.example:443 does not respond: no connection within 3 s"
    )
    assert (
        "the proxy p.example:3128" in explain_probe_failure(late, SERVER, "http://user:secret@p.example:3128").reason
    )
    assert explain_probe_failure(HTTPSSLError(untrusted), SERVER, None).cause is ProbeFailure.UNTRUSTED
