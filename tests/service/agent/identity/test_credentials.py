"""Tests of each sign-in method with the real token process and Azure's libraries, and of each error."""

from __future__ import annotations

import base64
import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from aks_flex_lab.entra.directory import TENANT_ID, FederatedCredential
from aks_flex_node.agent.identity import azure_sign_in, cloud_endpoints
from aks_flex_node.agent.identity.cloud_endpoints import AKS_SERVER_APP_ID
from aks_flex_node.agent.preflight.identity_checks import check_identity
from aks_flex_node.errors import FlexError
from aks_flex_node.host import processes
from tests.service.agent.daemon.harness import PROGRAM
from tests.service.ports import free_port
from tests.unit.agent.config.builders import CLUSTER_ID, load_plain
from tests.unit.agent.preflight.builders import fit

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_node.settings.models import NodeConfig
    from tests.service.lab.cloud_harness import Cloud

HIMDS = Path(__file__).with_name("himds.py")
SCOPE = f"{AKS_SERVER_APP_ID}/.default"
ISSUER, SUBJECT = "https://issuer.example", "system:serviceaccount:edge:agent"


def bundle(cloud: Cloud, **azure: Any) -> str:
    ca = base64.b64encode(Path(cloud.ca).read_bytes()).decode()
    where = {"resourceManager": cloud.url, "caCertData": ca, "targetCluster": {"resourceId": CLUSTER_ID}}
    return json.dumps({"azure": {**where, "tenantId": TENANT_ID, **azure}})


def config(cloud: Cloud, **azure: Any) -> NodeConfig:
    return load_plain(bundle(cloud, **azure)).config


def claims(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


def refusal(of: NodeConfig) -> FlexError:
    with pytest.raises(FlexError) as caught:
        azure_sign_in.sign_in(of, SCOPE)
    assert "canary" not in f"{caught.value!r} {caught.value}"
    return caught.value


Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def made_certificate(key: Key, days: float = 1) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "edge")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(days=9)).not_valid_after(
        now + datetime.timedelta(days=days)
    )
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def in_pem(key: Key, password: bytes = b"") -> str:
    form = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form).decode()


@pytest.fixture
def principal(cloud: Cloud) -> EntraPrincipal:
    return cloud.directory.service_principal("edge", "right", groups=("group-1",))


def by_secret(cloud: Cloud, principal: EntraPrincipal, **more: str) -> NodeConfig:
    return config(cloud, servicePrincipal={"clientId": principal.client_id, "clientSecret": "right", **more})


def by_certificate(cloud: Cloud, principal: EntraPrincipal, key: Key, certificate: str) -> NodeConfig:
    return config(
        cloud, servicePrincipal={"clientId": principal.client_id, "clientCertificate": certificate + in_pem(key)}
    )


def test_authority_host_is_discovered_from_private_cloud(cloud: Cloud, principal: EntraPrincipal) -> None:
    """The configuration contains only its resource manager."""
    of = by_secret(cloud, principal)
    assert cloud_endpoints.authority_host(of) == cloud.url
    token = azure_sign_in.sign_in(of, SCOPE)
    told = claims(token.value)
    assert (told["aud"], told["oid"], told["groups"]) == (AKS_SERVER_APP_ID, principal.object_id, ["group-1"])
    assert token.expires > time.time() + 3000
    assert token.value not in repr(token)


@pytest.mark.parametrize("wrong", [True, False], ids=["nobody-there", "not-trusted"])
def test_cloud_without_metadata_is_reported_as_retryable(cloud: Cloud, wrong: bool) -> None:
    azure = {"resourceManager": f"https://localhost:{free_port()}"} if wrong else {"caCertData": None}
    with pytest.raises(FlexError) as caught:
        cloud_endpoints.authority_host(config(cloud, **azure))
    assert (caught.value.name, caught.value.retryable) == ("cloud-endpoints-missing", True)


def test_service_principal_signs_in_with_certificate(
    cloud: Cloud, principal: EntraPrincipal, key: rsa.RSAPrivateKey
) -> None:
    certificate = made_certificate(key)
    cloud.directory.change(principal, certificates=(certificate,), secret="")
    told = claims(azure_sign_in.sign_in(by_certificate(cloud, principal, key, certificate), SCOPE).value)
    assert (told["oid"], told["appid"]) == (principal.object_id, principal.client_id)


def test_unregistered_client_certificate_is_refused(
    cloud: Cloud, principal: EntraPrincipal, key: rsa.RSAPrivateKey
) -> None:
    error = refusal(by_certificate(cloud, principal, key, made_certificate(key)))
    assert "AADSTS700027" in error.message
    assert "correlation ID" in error.message
    assert "Add this certificate" in error.hint


def test_expired_client_certificate_is_refused(
    cloud: Cloud, principal: EntraPrincipal, key: rsa.RSAPrivateKey
) -> None:
    certificate = made_certificate(key, days=-1)
    cloud.directory.change(principal, certificates=(certificate,))
    assert "AADSTS700027" in refusal(by_certificate(cloud, principal, key, certificate)).message


def test_certificate_with_mismatched_key_is_refused(
    cloud: Cloud, principal: EntraPrincipal, key: rsa.RSAPrivateKey
) -> None:
    certificate = made_certificate(key)
    cloud.directory.change(principal, certificates=(certificate,))
    other = rsa.generate_private_key(65537, 2048)
    assert "AADSTS50027" in refusal(by_certificate(cloud, principal, other, certificate)).message


def test_unusable_client_certificate_is_reported(cloud: Cloud, principal: EntraPrincipal) -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    error = refusal(by_certificate(cloud, principal, curve, made_certificate(curve)))
    assert error.name == "client-certificate-invalid"
    assert "RSA" in error.message
    pem = "-----BEGIN CERTIFICATE-----\ncanary\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\ncanary\n"
    of = config(cloud, servicePrincipal={"clientId": "a", "clientCertificate": pem})
    assert refusal(of).name == "client-certificate-invalid"


def test_encrypted_private_key_is_reported(cloud: Cloud, principal: EntraPrincipal, key: rsa.RSAPrivateKey) -> None:
    pem = made_certificate(key) + in_pem(key, b"canary")
    of = config(cloud, servicePrincipal={"clientId": principal.client_id, "clientCertificate": pem})
    assert "encrypted" in refusal(of).message


@pytest.mark.parametrize(
    ("changes", "secret", "number", "remedy"),
    [
        ({}, "canary-wrong", "AADSTS7000215", "not its ID"),
        ({"secret_expires": 1.0}, "right", "AADSTS7000222", "az ad app credential reset"),
        ({"enabled": False}, "right", "AADSTS7000112", "Enterprise applications"),
    ],
)
def test_rejected_secret_is_reported_with_error_code_and_remedy(
    cloud: Cloud, principal: EntraPrincipal, changes: dict[str, Any], secret: str, number: str, remedy: str
) -> None:
    cloud.directory.change(principal, **changes)
    error = refusal(by_secret(cloud, principal, clientSecret=secret))
    assert error.name == "azure-sign-in-failed"
    assert number in error.message
    assert "correlation ID" in error.message
    assert remedy in error.hint


def test_unknown_application_or_tenant_is_reported(cloud: Cloud, principal: EntraPrincipal) -> None:
    unknown = by_secret(cloud, principal, clientId="00000000-0000-4000-8000-00000000000f")
    assert "AADSTS700016" in refusal(unknown).message
    lost = by_secret(cloud, principal, tenantId="00000000-0000-4000-8000-00000000000e")
    assert "AADSTS90002" in refusal(lost).message


def test_preflight_signs_in_with_the_configured_identity(cloud: Cloud, principal: EntraPrincipal) -> None:
    (found,) = check_identity(fit(config=by_secret(cloud, principal)))
    assert found.severity.value == "ok"
    (found,) = check_identity(fit(config=by_secret(cloud, principal, clientSecret="wrong")))
    assert (found.severity.value, "AADSTS7000215" in found.message) == ("error", True)
    assert found.remedy


def federated(key: rsa.RSAPrivateKey, **changes: Any) -> str:
    now = int(time.time())
    told = {"iss": ISSUER, "sub": SUBJECT, "aud": "api://AzureADTokenExchange", "iat": now, "exp": now + 600}
    return jwt.encode({**told, **changes}, key, "RS256")


@pytest.fixture
def workload(
    cloud: Cloud, principal: EntraPrincipal, key: rsa.RSAPrivateKey, tmp_path: Path
) -> Callable[..., NodeConfig]:
    """Returns a function that creates a configuration with a federated token."""
    trusted = FederatedCredential(ISSUER, SUBJECT, made_certificate(key))
    cloud.directory.change(principal, federations=(trusted,), secret="")

    def make(by: rsa.RSAPrivateKey = key, **changes: Any) -> NodeConfig:
        file = tmp_path / "token"
        file.write_text(federated(by, **changes))
        return config(cloud, workloadIdentity={"clientId": principal.client_id, "tokenFile": str(file)})

    return make


def test_federated_token_signs_in(workload: Callable[..., NodeConfig], principal: EntraPrincipal) -> None:
    assert claims(azure_sign_in.sign_in(workload(), SCOPE).value)["oid"] == principal.object_id


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"iss": "https://evil.example"}, "AADSTS700211"),
        ({"sub": "system:serviceaccount:edge:other"}, "AADSTS700213"),
        ({"exp": 1}, "AADSTS700024"),
        ({"aud": "somebody"}, "AADSTS50027"),
    ],
)
def test_federated_token_with_wrong_claim_is_refused(
    workload: Callable[..., NodeConfig], changes: dict[str, Any], number: str
) -> None:
    assert number in refusal(workload(**changes)).message


def test_federated_token_signed_by_another_key_is_refused(workload: Callable[..., NodeConfig]) -> None:
    assert "AADSTS50027" in refusal(workload(by=rsa.generate_private_key(65537, 2048))).message


INSIDE = 'ip link set lo up && mount -t tmpfs tmpfs /var/opt && exec "$@"'
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def by_arc(cloud: Cloud, manner: str, *before: str) -> dict[str, Any]:
    """Returns the output of the token process on a simulated Arc machine inside namespaces."""
    if os.geteuid() != 0:
        pytest.skip("only root can make namespaces")
    words = ("unshare", "--net", "--mount", "sh", "-c", INSIDE, "sh", sys.executable, str(HIMDS), manner, *before)
    text = bundle(cloud, arc={"enabled": True}).encode()
    answer = processes.run((*words, PROGRAM, "azure-token"), seconds=60, text=text)
    assert answer.out, answer.err
    told: dict[str, Any] = json.loads(answer.out)
    return told


def test_arc_identity_is_obtained_through_agent_challenge(cloud: Cloud) -> None:
    told = by_arc(cloud, "good")
    assert (told["token"], told["seconds"] > 3000) == (f"for {cloud.url}", True)


@pytest.mark.parametrize(
    ("manner", "before", "name", "words"),
    [
        ("away", (), "arc-agent-unavailable", "127.0.0.1:40342 (connection refused)"),
        ("good", AS_NOBODY, "arc-key-unreadable", "/var/opt/azcmagent/tokens/one.key"),
        ("elsewhere", (), "arc-identity-rejected", "passwd"),
        ("wrong", (), "arc-identity-rejected", "disconnected"),
    ],
)
def test_arc_identity_failure_is_reported_with_cause(
    cloud: Cloud, manner: str, before: tuple[str, ...], name: str, words: str
) -> None:
    error = by_arc(cloud, manner, *before)["error"]
    assert error["name"] == name
    assert words in error["message"]
    assert "the-key" not in json.dumps(error)
