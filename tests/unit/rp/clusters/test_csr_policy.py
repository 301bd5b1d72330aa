"""Tests of the approval and denial of certificate signing requests."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from aks_flex_rp.clusters.bootstrap_tokens import TOKEN_GROUP
from aks_flex_rp.clusters.csr_policy import BootstrapExpectation, CsrVerdict, check_csr
from tests.unit.rp.clusters.builders import request_for

TOKEN = "abc123"


def sent(document: dict[str, Any], user: str, *groups: str) -> dict[str, Any]:
    """Returns a request as the API server stores it."""
    document["metadata"] = {"name": "csr-1", "uid": "uid-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    document["spec"] |= {"username": user, "groups": [*groups, "system:authenticated"]}
    return document


def joining(user: str = f"system:bootstrap:{TOKEN}", **odd: Any) -> CsrVerdict:
    document = sent(request_for("edge-1", **odd), user, TOKEN_GROUP, "system:bootstrappers")
    return check_csr(document, BootstrapExpectation("edge-1", TOKEN, TOKEN_GROUP))


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
    assert joining(key=key) == CsrVerdict(True)
    assert joining(key=key, usages=("key encipherment", "digital signature", "client auth")).allowed


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

    assert not result.allowed
    assert words in result.why
    assert result.why[0].isupper()
    assert result.why.endswith(".")


@pytest.mark.parametrize("user", ["system:bootstrap:abc124", "system:node:edge-1", "admin", ""])
def test_bootstrap_csr_from_other_user_is_refused(user: str) -> None:
    assert "not the bootstrap token of node edge-1" in joining(user=user).why


def test_bootstrap_csr_from_user_outside_token_group_is_refused() -> None:
    document = sent(request_for("edge-1"), f"system:bootstrap:{TOKEN}", "system:bootstrappers:other")

    assert "is not in group" in check_csr(document, BootstrapExpectation("edge-1", TOKEN, TOKEN_GROUP)).why


@pytest.mark.parametrize("text", ["", "?", base64.b64encode(b"no PEM").decode()])
def test_unreadable_csr_is_refused(text: str) -> None:
    document = sent(request_for("edge-1"), f"system:bootstrap:{TOKEN}", TOKEN_GROUP)
    document["spec"]["request"] = text

    assert check_csr(document, BootstrapExpectation("edge-1", TOKEN, TOKEN_GROUP)).why.startswith(
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

    assert check_csr(document, BootstrapExpectation("edge-1", TOKEN, TOKEN_GROUP)).why.startswith(
        "It is not a valid request"
    )
