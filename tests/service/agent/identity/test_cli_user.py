"""Tests of sign-in with the az of the user who ran sudo: a script that prints its user, and the real az."""

from __future__ import annotations

import os
import pwd
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import jwt
import pytest

from aks_flex_lab.arm.managed_clusters import SUBSCRIPTION_ID
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_node.agent.identity import azure_sign_in
from aks_flex_node.azure.cli_user import CliCredential, CliUser
from aks_flex_node.azure.credentials import TokenAuthority
from tests.azure_cli import Az
from tests.service.agent.identity.test_credentials import bundle, in_pem, made_certificate
from tests.service.lab.cloud_harness import running_metadata
from tests.unit.agent.config.builders import load_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cryptography.hazmat.primitives.asymmetric import rsa

    from tests.service.lab.cloud_harness import Cloud

DAEMON = pwd.getpwnam("daemon")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
TELLS = f"""#!/bin/sh
id -un >"$AZURE_CONFIG_DIR/who"
echo "$@" >"$AZURE_CONFIG_DIR/words"
env >"$AZURE_CONFIG_DIR/env"
[ -z "$REQUESTS_CA_BUNDLE" ] || cat "$REQUESTS_CA_BUNDLE" >"$AZURE_CONFIG_DIR/ca"
pwd >"$AZURE_CONFIG_DIR/where"
echo '{{"accessToken": "of az", "expires_on": {int(time.time()) + 3000}}}'
"""


@pytest.fixture
def room() -> Iterator[Path]:
    """Yields a home directory of the user who ran sudo, which all users may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "azure").mkdir()
        if os.geteuid() == 0:
            os.chown(Path(name) / "azure", DAEMON.pw_uid, DAEMON.pw_gid)
        yield Path(name)


@pytest.fixture
def typed(room: Path) -> Callable[..., dict[str, str]]:
    """Returns the environment of a command run with sudo, where az is this script."""

    def make(script: str = TELLS) -> dict[str, str]:
        (room / "az").write_text(script)
        (room / "az").chmod(0o755)
        return {"SUDO_USER": "daemon", "PATH": f"{room}:/usr/bin:/bin", "AZURE_CONFIG_DIR": str(room / "azure")}

    return make


def cli(environment: dict[str, str], authority: str = "https://login.example", ca: bytes = b"") -> CliCredential:
    return CliCredential(CliUser.at(environment), TokenAuthority(authority), "tenant-1", ca)


@ROOT
def test_az_behind_sudo_runs_as_calling_user(room: Path, typed: Callable[..., dict[str, str]]) -> None:
    token = cli(typed(), ca=b"certificates").get_token("https://x/.default")
    told = {path.name: path.read_text().strip() for path in (room / "azure").iterdir()}
    assert (token.token, token.expires_on > time.time()) == ("of az", True)
    assert (told["who"], told["where"], told["ca"]) == ("daemon", DAEMON.pw_dir, "certificates")
    assert told["words"] == ("account get-access-token --scope https://x/.default --output json --tenant tenant-1")
    assert f"HOME={DAEMON.pw_dir}" in told["env"].splitlines()
    assert "AZURE_CORE_INSTANCE_DISCOVERY=false" in told["env"].splitlines()
    assert {path.stat().st_uid for path in (room / "azure").iterdir()} == {DAEMON.pw_uid}


@ROOT
def test_configured_service_principal_precedes_az_login(cloud: Cloud, typed: Callable[..., dict[str, str]]) -> None:
    principal = cloud.directory.service_principal("operator", "right")
    given = {"clientId": principal.client_id, "clientSecret": "right"}
    with_one = load_plain(bundle(cloud, servicePrincipal=given, arc={"enabled": True})).config
    without = load_plain(bundle(cloud, arc={"enabled": True})).config
    with azure_sign_in.ca_bundle(with_one) as file:
        token = azure_sign_in.operator_credential(with_one, file, typed()).get_token("https://x/.default").token
        by_az = azure_sign_in.operator_credential(without, file, typed()).get_token("https://x/.default").token
    assert jwt.decode(token, options={"verify_signature": False})["oid"] == principal.object_id
    assert by_az == "of az"


@pytest.fixture
def az(cloud: Cloud, room: Path) -> Az:
    return Az.at(cloud, room / "azure")


def test_az_signs_in_with_certificate(cloud: Cloud, az: Az, room: Path, key: rsa.RSAPrivateKey) -> None:
    principal = cloud.directory.service_principal("az", "")
    certificate = made_certificate(key)
    cloud.directory.change(principal, certificates=(certificate,))
    pem = room / "both.pem"
    pem.write_text(certificate + in_pem(key))
    words = (
        "--service-principal",
        "--username",
        principal.client_id,
        "--certificate",
        str(pem),
        "--tenant",
        TENANT_ID,
    )
    assert SUBSCRIPTION_ID in az("login", *words, "--query", "[].id")
    token = az("account", "get-access-token", "--query", "accessToken")
    assert jwt.decode(token, options={"verify_signature": False})["oid"] == principal.object_id


def test_az_signs_in_with_managed_identity(
    cloud: Cloud, az: Az, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = cloud.directory.managed_identity("edge", "/subscriptions/s/virtualMachines/edge")
    with running_metadata(cloud, tmp_path, identity) as url:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)
        assert SUBSCRIPTION_ID in az("login", "--identity", "--query", "[].id")
        token = az("account", "get-access-token", "--query", "accessToken")
    assert jwt.decode(token, options={"verify_signature": False})["xms_mirid"] == identity.resource_id
