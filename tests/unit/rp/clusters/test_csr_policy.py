"""Tests of the approval and denial of certificate signing requests."""

from __future__ import annotations

import base64
import ipaddress
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from aks_flex_rp.clusters.bootstrap_tokens import TOKEN_GROUP
from aks_flex_rp.clusters.csr_policy import (
    SERVING_SIGNER,
    BootstrapExpectation,
    CertificateRequest,
    ClusterNames,
    CsrExpectation,
    ServingExpectation,
    check_csr,
    read_cluster_names,
)
from aks_flex_rp.clusters.facts import KUBERNETES
from aks_flex_rp.clusters.node_controller import NODES
from tests.unit.rp.clusters.builders import request_for
from tests.unit.rp.clusters.fakes import FakeApi
from tests.unit.rp.clusters.harness import FACTS

TOKEN = "abc123"


def sent(document: dict[str, Any], user: str, *groups: str) -> dict[str, Any]:
    """Returns a request as the API server stores it."""
    document["metadata"] = {"name": "csr-1", "uid": "uid-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    document["spec"] |= {"username": user, "groups": [*groups, "system:authenticated"]}
    return document


def objection(document: dict[str, Any], expectation: CsrExpectation) -> str:
    return check_csr(CertificateRequest.read(document), expectation)


def joining(user: str = f"system:bootstrap:{TOKEN}", **odd: Any) -> str:
    document = sent(request_for("edge-1", **odd), user, TOKEN_GROUP, "system:bootstrappers")
    return objection(document, BootstrapExpectation("edge-1", TOKEN, TOKEN_GROUP))


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["ec", "ed25519", "rsa"],
)
def test_valid_bootstrap_csr_is_approved(key: Any) -> None:
    assert joining(key=key) == ""
    assert joining(key=key, usages=("key encipherment", "digital signature", "client auth")) == ""


EXTRA = (x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "more"),)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"as_user": "system:node:edge-2"}, "It requests the name 'system:node:edge-2'"),
        ({"as_user": "system:node:edge-1 "}, "only system:node:edge-1 is allowed."),
        ({"as_user": "system:node:EDGE-1"}, "only system:node:edge-1 is allowed."),
        ({"groups": ()}, "It requests the group nothing"),
        ({"groups": ("system:masters",)}, "It requests the group 'system:masters'"),
        ({"groups": ("system:nodes", "system:masters")}, "only system:nodes is allowed"),
        ({"groups": ("system:nodes", "system:nodes")}, "only system:nodes is allowed"),
        ({"more": EXTRA}, "more than a name and a group"),
        ({"names": (x509.DNSName("edge-1"),)}, "alternative names"),
        ({"names": (x509.UniformResourceIdentifier("spiffe://x"),)}, "alternative names"),
        ({"extensions": (x509.BasicConstraints(True, None),)}, "the extension 2.5.29.19"),
        ({"usages": ("digital signature",)}, "Its usages are 'digital signature'"),
        (
            {"usages": ("digital signature", "client auth", "cert sign")},
            "must be digital signature and client auth",
        ),
        ({"signer": "kubernetes.io/kube-apiserver-client"}, "It requests signer"),
        ({"key": rsa.generate_private_key(65537, 1024)}, "RSA key has 1024 bits"),  # noqa: S505
        ({"key": ec.generate_private_key(ec.SECP256K1())}, "the curve secp256k1"),
        ({"key": dsa.generate_private_key(2048)}, "key type is not allowed for nodes"),
    ],
)
def test_bootstrap_csr_beyond_token_scope_is_refused_with_reason(odd: dict[str, Any], words: str) -> None:
    result = joining(**odd)

    assert words in result
    assert result[0].isupper()
    assert result.endswith(".")


@pytest.mark.parametrize("user", ["system:bootstrap:abc124", "system:node:edge-1", "admin", ""])
def test_bootstrap_csr_from_other_user_is_refused(user: str) -> None:
    assert "not the bootstrap token of node edge-1" in joining(user=user)


def test_bootstrap_csr_from_user_outside_token_group_is_refused() -> None:
    document = sent(request_for("edge-1"), f"system:bootstrap:{TOKEN}", "system:bootstrappers:other")

    assert "is not in group" in objection(document, BootstrapExpectation("edge-1", TOKEN, TOKEN_GROUP))


@pytest.mark.parametrize("text", ["", "?", base64.b64encode(b"no PEM").decode()])
def test_unreadable_csr_is_refused(text: str) -> None:
    document = sent(request_for("edge-1"), f"system:bootstrap:{TOKEN}", TOKEN_GROUP)
    document["spec"]["request"] = text

    assert objection(document, BootstrapExpectation("edge-1", TOKEN, TOKEN_GROUP)).startswith(
        "It is not a valid request"
    )


def test_csr_with_invalid_signature_is_refused() -> None:
    """Otherwise a client could get a certificate for another owner's key."""
    document = sent(
        request_for("edge-1", key=ed25519.Ed25519PrivateKey.generate()), f"system:bootstrap:{TOKEN}", TOKEN_GROUP
    )
    parsed = x509.load_pem_x509_csr(base64.b64decode(document["spec"]["request"]))
    whole = parsed.public_bytes(serialization.Encoding.DER)
    forged = whole[: -len(parsed.signature)] + bytes(len(parsed.signature))
    text = b"-----BEGIN CERTIFICATE REQUEST-----\n%s-----END CERTIFICATE REQUEST-----\n" % base64.encodebytes(forged)
    document["spec"]["request"] = base64.b64encode(text).decode()

    assert objection(document, BootstrapExpectation("edge-1", TOKEN, TOKEN_GROUP)).startswith(
        "It is not a valid request"
    )


SERVES: dict[str, Any] = {"signer": SERVING_SIGNER, "usages": ("digital signature", "server auth")}
SAID = (
    *("192.0.2.1", "2001:DB8::1", "127.0.0.1", "::1", "169.254.1.1", "fe80::1", "0.0.0.0", "224.0.0.1"),  # noqa: S104
    *("192.0.2.2", "10.0.0.1", "10.0.0.10", "::ffff:127.0.0.1", "::ffff:192.0.2.2", "192.0.2.0/24"),
)
NAMED = (
    *("edge-1", "EDGE-1.example", "edge-2", "edge-10", "api.example.com", "edge-1.api.example.com", "edge-1.*"),
    *("edge-1.default.svc", "edge-1.cluster.local", "kubernetes", "edge-1.example.", "*.edge-1"),
)
NODE = {
    "metadata": {"name": "edge-1"},
    "status": {
        "addresses": [
            *({"type": "InternalIP", "address": one} for one in SAID),
            *({"type": "Hostname", "address": one} for one in NAMED),
            {"type": "InternalDNS", "address": "edge-1.inside"},
            {"type": "ExternalDNS", "address": "edge-1.outside"},
        ]
    },
}
AROUND = ClusterNames(
    frozenset({"api.example.com", "edge-1.api.example.com", "kubernetes"}),
    "cluster.local",
    {
        ipaddress.ip_address("192.0.2.2"): "node edge-2",
        ipaddress.ip_address("10.0.0.1"): "the API server",
        ipaddress.ip_address("10.0.0.10"): "the cluster's DNS service",
    },
)


def serving(*names: str | x509.GeneralName, user: str = "system:node:edge-1", **odd: Any) -> str:
    general = [general_name(one) if isinstance(one, str) else one for one in names]
    document = sent(request_for("edge-1", names=general, **(SERVES | odd)), user, "system:nodes")
    return objection(document, ServingExpectation.of(NODE, AROUND))


def general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_network(text) if "/" in text else ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def test_serving_certificate_may_contain_all_names_of_node() -> None:
    own = ("edge-1", "Edge-1", "edge-1.example", "edge-1.inside", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1")

    assert serving(*own) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("edge-2", "'edge-2' is not a name of node edge-1, or is not listed on its Node."),
        ("edge-10", "'edge-10' is not a name of node edge-1"),
        ("edge-1.elsewhere", "'edge-1.elsewhere' is not a name of node edge-1"),
        ("edge-1.outside", "'edge-1.outside' is not a name of node edge-1"),
        ("*.edge-1", "'*.edge-1' is not a plain host name."),
        ("edge-1.*", "'edge-1.*' is not a plain host name."),
        ("edge-1.example.", "'edge-1.example.' is not a plain host name."),
        (x509.DNSName("192.0.2.1"), "'192.0.2.1' is not a name of node edge-1"),
        ("API.example.com", "'API.example.com' is a name of the API server."),
        ("edge-1.api.example.com", "'edge-1.api.example.com' is a name of the API server."),
        ("kubernetes", "'kubernetes' is a name of the API server."),
        ("edge-1.default.svc", "'edge-1.default.svc' is in the cluster's service domain .svc"),
        ("edge-1.cluster.local", "'edge-1.cluster.local' is in the cluster's service domain .cluster.local"),
        ("192.0.2.9", "Address 192.0.2.9 is not an address of node edge-1."),
        ("127.0.0.1", "127.0.0.1 is loopback and cannot belong to a node."),
        ("::1", "::1 is loopback"),
        ("::ffff:127.0.0.1", "is loopback"),
        ("169.254.1.1", "169.254.1.1 is link-local"),
        ("fe80::1", "Address fe80::1 is link-local"),
        ("0.0.0.0", "0.0.0.0 is unspecified"),  # noqa: S104
        ("224.0.0.1", "224.0.0.1 is multicast"),
        ("192.0.2.0/24", "Address 192.0.2.0/24 is not the address of one host."),
        ("192.0.2.2", "Address 192.0.2.2 belongs to node edge-2."),
        ("::ffff:192.0.2.2", "belongs to node edge-2."),
        ("10.0.0.1", "Address 10.0.0.1 belongs to the API server."),
        ("10.0.0.10", "Address 10.0.0.10 belongs to the cluster's DNS service."),
        (x509.RFC822Name("a@example.com"), "It requests a RFC822Name"),
        (x509.UniformResourceIdentifier("spiffe://x"), "It requests a UniformResourceIdentifier"),
    ],
)
def test_serving_certificate_with_foreign_name_is_refused(name: str | x509.GeneralName, words: str) -> None:
    result = serving("edge-1", name)

    assert words in result


def test_serving_csr_must_match_requesting_node_and_usage() -> None:
    assert "no DNS name and no IP address" in serving()
    assert "not node edge-1" in serving("edge-1", user="system:node:edge-2")
    assert "usages" in serving("edge-1", usages=("digital signature", "client auth"))
    assert "signer" in serving("edge-1", signer="example.com/other")
    assert "only system:node:edge-1 is allowed" in serving("edge-1", as_user="system:node:edge-2")


def test_serving_csr_for_api_server_name_is_refused() -> None:
    document = sent(
        request_for("kubernetes", names=(x509.DNSName("kubernetes"),), **SERVES), "system:node:kubernetes"
    )
    document["spec"]["groups"] = ["system:nodes"]

    result = objection(document, ServingExpectation.of({"metadata": {"name": "kubernetes"}}, AROUND))

    assert result == "'kubernetes' is a name of the API server."


async def test_names_of_api_server_and_other_nodes_are_read_from_cluster() -> None:
    api = FakeApi()
    api.put(KUBERNETES, {"spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]}})
    for name, at in (("edge-1", "192.0.2.1"), ("cloud-1", "192.0.2.2"), ("cloud-2", "no address")):
        api.put(f"{NODES}/{name}", {"status": {"addresses": [{"type": "ExternalIP", "address": at}]}})
    async with api.client() as client:
        found = await read_cluster_names(client, FACTS, "edge-1")
        alone = await read_cluster_names(client, FACTS, "edge-2")

    assert {str(at): whose for at, whose in alone.addresses.items() if whose.startswith("node")} == {
        "192.0.2.1": "node edge-1",
        "192.0.2.2": "node cloud-1",
    }
    assert found.servers >= {"api.example.com", "nodes.example.com", "kubernetes", "kubernetes.default"}
    assert found.domain == "cluster.local"
    assert {str(at): whose for at, whose in found.addresses.items()} == {
        "192.0.2.2": "node cloud-1",
        "10.0.0.1": "the API server",
        "fd00::1": "the API server",
        "10.0.0.10": "the cluster's DNS service",
    }
