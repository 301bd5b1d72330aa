"""Tests of secrets: write-only, except for the node that uses them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import SECRET, principal, token
from tests.service.rp.api.client import secret_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.store.servers import PostgresServer

OTHER = "a0000000-0000-4000-8000-000000000001"


def stored(service: Running, postgres: PostgresServer) -> bytes:
    """Returns all bytes that the service has stored, without its encryption keys."""
    keys = {service.service.settings.keys.name, "admin.key"}
    files = b"".join(file.read_bytes() for file in _files(service.room) if file.name not in keys)
    if not service.service.settings.database:
        return files
    postgres.query("CHECKPOINT")
    return files + b"".join(file.read_bytes() for file in _files(postgres.log.parent / "data"))


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and os.access(file, os.R_OK)]


def test_secrets_are_in_no_response_log_metric_or_stored_byte(
    service: Running, postgres: PostgresServer, tenant: Tenant, name: str
) -> None:
    admin = service.admin
    url = admin.url_of(name, principal())
    secret_part = secret_of(url)
    bundle = admin.fetch(url).json["config"]["azure"]
    bootstrap = bundle["bootstrapToken"]["token"].partition(".")[2]
    assert bundle["servicePrincipal"]["clientSecret"] == SECRET
    for path in (f"/configs/{secret_part}/", f"//configs/{secret_part}", f"/configs/x/{secret_part}"):
        assert admin.ask("GET", path, query={}).status == 404
    admin.connection.ask("HEAD", f"/configs/{secret_part}", {})
    wrong = principal()
    wrong["properties"]["azureAuth"]["servicePrincipal"] |= {"clientId": SECRET, "clientSecret": [SECRET]}
    answers = [admin.put(name, wrong), admin.put(name, principal(nodeConfig={"maxPods": 9})), admin.get(name)]
    answers += [admin.list(), admin.audit(name), admin.ask("GET", "/metrics"), admin.delete(name), admin.audit(name)]

    seen = b"".join(answer.content + repr(answer.headers).encode() for answer in answers)
    on_disk = stored(service, postgres)

    assert name.encode() in on_disk, "this looks in the right place"
    for secret in (SECRET, secret_part, bootstrap, admin.authorization.partition(" ")[2]):
        assert secret.encode() not in seen
        assert secret not in service.log
        assert secret.encode() not in on_disk


def test_put_without_secret_keeps_stored_secret(admin: Api, name: str) -> None:
    admin.put(name, principal())

    updated = admin.put(name, principal(secret=None, nodeConfig={"maxPods": 9}))

    assert updated.status == 200
    assert admin.credentials(name).json["servicePrincipal"]["clientSecret"] == SECRET
    url = admin.new_url(name)
    assert admin.fetch(url).json["config"]["azure"]["servicePrincipal"]["clientSecret"] == SECRET


def test_stored_secret_is_not_reused_for_another_service_principal(admin: Api, name: str) -> None:
    admin.put(name, principal())

    admin.put(name, principal(OTHER, secret=None)).assert_refused(
        400, "InvalidRequestContent", "properties.azureAuth.servicePrincipal.clientSecret"
    )
    assert admin.put(name, principal(callers.NODE.upper(), secret=None)).status == 200


@pytest.mark.parametrize("unused", [True, False])
def test_secret_is_deleted_when_unused_and_with_its_node(admin: Api, name: str, unused: bool) -> None:
    admin.put(name, principal())
    if unused:
        admin.put(name, token())
    else:
        admin.delete(name)

    admin.put(name, principal(secret=None)).assert_refused(400, "InvalidRequestContent")


def test_node_can_list_its_credentials(admin: Api, tenant: Tenant, name: str) -> None:
    version = admin.put(name, principal()).properties["configVersion"]
    node = admin.by(tenant, callers.NODE)

    listed = node.credentials(name)

    assert listed.status == 200
    assert listed.headers["cache-control"] == "no-store"
    who = {"clientId": callers.NODE, "clientSecret": SECRET}
    assert listed.json["configVersion"] == version
    assert listed.json["method"] == "servicePrincipal"
    assert {key: listed.json["servicePrincipal"][key] for key in who} == who
    assert listed.json["servicePrincipal"]["clientTenant"]


def test_credentials_of_node_without_secret_contain_no_secret(admin: Api, name: str) -> None:
    admin.put(name, {"properties": {"azureAuth": {"method": "managedIdentity"}}})

    assert admin.credentials(name).json.keys() == {"configVersion", "method"}
