"""Tests of kubeconfig validation and its errors."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.clusters.client import client_ssl_context
from aks_flex_rp.clusters.connections import (
    ArmConnection,
    DirectConnection,
    from_bytes,
    load_kubeconfig,
    parse_kubeconfig,
    to_bytes,
)

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "canary-5f1e"
PEM = f"-----BEGIN CERTIFICATE-----\n{CANARY}\n-----END CERTIFICATE-----\n"
KEY = f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


CLUSTER = {"server": "https://api.example.com:6443/", "certificate-authority-data": encoded(PEM)}
USER = {"client-certificate-data": encoded(PEM), "client-key-data": encoded(KEY)}


def kubeconfig(
    cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, context: str = "mine", **top: Any
) -> str:
    document = {
        "current-context": context,
        "contexts": [
            {"name": "other", "context": {"cluster": "nowhere", "user": "nobody"}},
            {"name": "mine", "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": CLUSTER if cluster is None else cluster}],
        "users": [{"name": "u", "user": USER if user is None else user}],
    }
    return json.dumps(document | top)


def test_kubeconfig_current_context_is_used() -> None:
    found = parse_kubeconfig(kubeconfig())

    assert found == DirectConnection("https://api.example.com:6443", PEM, certificate=PEM, key=KEY)


def test_kubeconfig_supports_token_and_tls_server_name() -> None:
    found = parse_kubeconfig(kubeconfig(CLUSTER | {"tls-server-name": "api"}, {"token": CANARY}))

    assert (found.token, found.server_name, found.certificate) == (CANARY, "api", "")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "not a YAML mapping"),
        ("[]", "not a YAML mapping"),
        (kubeconfig(context=""), "current-context is missing"),
        (kubeconfig(context="third"), "contexts has no entry 'third'"),
        (kubeconfig(clusters=None), "clusters has no entry 'c'"),
        (kubeconfig(users=[]), "users has no entry 'u'"),
        (kubeconfig(CLUSTER | {"server": "http://api"}), "cluster.server is not an https:// URL"),
        (kubeconfig(CLUSTER | {"insecure-skip-tls-verify": True}), "cluster.insecure-skip-tls-verify is set"),
        (kubeconfig({"server": "https://api"}), "cluster.certificate-authority-data is missing"),
        (kubeconfig(CLUSTER | {"certificate-authority-data": CANARY}), "is not a PEM text in base64"),
        (kubeconfig(CLUSTER | {"certificate-authority-data": encoded(CANARY)}), "contains no PEM text"),
        (kubeconfig(user={"exec": {"command": CANARY}}), "user.exec runs a program"),
        (kubeconfig(user={"auth-provider": {"name": CANARY}}), "user.auth-provider runs a program"),
        (kubeconfig(user=USER | {"as": CANARY}), "user.as is set"),
        (kubeconfig(user=USER | {"as-groups": [CANARY]}), "user.as-groups is set"),
        (kubeconfig(user={"client-certificate-data": encoded(PEM)}), "user.client-key-data is missing"),
        (kubeconfig(user={"client-key-data": encoded(KEY)}), "user has neither"),
        (kubeconfig(user={"username": "me", "password": CANARY}), "user has neither"),
        (kubeconfig(user={"client-certificate": "cert.pem"}), "user.client-certificate refers to a file"),
    ],
)
def test_invalid_kubeconfig_error_names_field_without_secrets(text: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_kubeconfig(text, "admin.conf")

    assert caught.value.message.startswith("admin.conf")
    assert field in caught.value.message
    assert caught.value.hint
    assert CANARY not in str(caught.value)


def test_kubeconfig_file_paths_are_relative_to_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(PEM)
    (tmp_path / "token").write_text(f"{CANARY}\n")
    cluster = {"server": "https://api", "certificate-authority": "ca.pem"}
    (tmp_path / "config").write_text(kubeconfig(cluster, {"tokenFile": "token"}))

    assert load_kubeconfig(tmp_path / "config") == DirectConnection("https://api", PEM, token=CANARY)
    (tmp_path / "token").unlink()
    with pytest.raises(ConfigError, match=r"Cannot read .*token: No such file"):
        load_kubeconfig(tmp_path / "config")


@pytest.mark.parametrize(
    "connection", [parse_kubeconfig(kubeconfig()), ArmConnection("/subscriptions/x")], ids=["direct", "arm"]
)
def test_connection_survives_serialization(connection: DirectConnection | ArmConnection) -> None:
    assert from_bytes(to_bytes(connection)) == connection


def test_connection_repr_hides_secrets() -> None:
    connection = DirectConnection("https://api", "", proxy=CANARY, certificate=CANARY, key=CANARY, token=CANARY)

    assert CANARY not in repr(connection)


def test_unusable_certificate_error_hides_key_material() -> None:
    with pytest.raises(ConfigError) as caught:
        client_ssl_context(parse_kubeconfig(kubeconfig()))

    assert "https://api.example.com:6443 are invalid" in caught.value.message
    assert CANARY not in str(caught.value)
