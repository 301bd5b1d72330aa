"""Tests of the whole service with delivery by a real Azurite."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
import urllib3

from aks_flex_node.api import config_urls, sealed_bundles
from aks_flex_node.api.node_keys import AUDIENCE_HEADER, KEY_HEADER
from tests.node_key_client import HeldKey
from tests.service.rp.api.bodies import SECRET, principal, token
from tests.service.rp.api.fake_clusters import PLANT, FakeClusters, known_clusters
from tests.service.rp.api.service_harness import Running, running, settings
from tests.service.rp.api.traffic_recorder import Recording
from tests.service.rp.delivery.azurite import Azurite, azurite_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite_server(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture
def service(azurite: Azurite, authority: CertificateAuthority, tmp_path: Path) -> Iterator[Running]:
    file = tmp_path / "connection-string"
    file.touch(0o600)
    file.write_text(azurite.connection_string)
    delivery = {"method": "azureBlob", "azure_blob": {"connection_string_file": file}}
    told = settings(tmp_path / "state", delivery=delivery, azure={"ca_file": azurite.authority})
    ca = base64.b64encode(authority.certificate.read_bytes()).decode()
    with running(told, FakeClusters.of(known_clusters(ca)), Recording()) as made:
        yield made


def status_of(url: str, azurite: Azurite) -> tuple[int, bytes]:
    """Returns the status, and the opened bundle."""
    parsed = config_urls.parse(url)
    with urllib3.PoolManager(ca_certs=str(azurite.authority), retries=False) as pool:
        answer = pool.request("GET", parsed.address)
    assert SECRET.encode() not in answer.data
    return answer.status, sealed_bundles.unseal(answer.data, parsed.key) if answer.status == 200 else b""


def test_config_urls_are_served_and_revoked_by_blob_storage(service: Running, azurite: Azurite) -> None:
    admin = service.admin.at(PLANT)
    first = admin.url_of("edge-1", token())
    assert first.startswith(azurite.url)
    status, bundle = status_of(first, azurite)
    assert status == 200
    assert json.loads(bundle)["config"]["azure"]["bootstrapToken"]["token"]

    second = admin.new_url("edge-1")
    assert [status_of(url, azurite)[0] for url in (first, second)] == [404, 200]

    admin.put("edge-1", token(maxPods=20))  # without requesting a URL
    assert status_of(second, azurite)[0] == 404

    third = admin.url_of("edge-1", principal())
    sealed = status_of(third, azurite)[1].decode()
    assert SECRET not in sealed  # also not for the owner of the URL: it is only at the service
    own, key = json.loads(sealed)["keyUrl"], HeldKey()
    path = own.partition("#")[0].removeprefix(admin.connection.url)
    complete = admin.connection.ask("GET", path, {KEY_HEADER: key.url_proof(own)})
    assert complete.json["config"]["azure"]["servicePrincipal"]["clientSecret"] == SECRET
    assert complete.headers[AUDIENCE_HEADER.lower()]
    thief = admin.connection.ask("GET", path, {KEY_HEADER: HeldKey().url_proof(own)})
    assert thief.error["code"] == "ConfigUrlTaken"
    assert admin.delete("edge-1").json["cleanup"]["configUrlRevoked"] is True
    assert status_of(third, azurite)[0] == 404
    assert admin.connection.ask("GET", path, {KEY_HEADER: key.url_proof(own)}).status == 404


def test_blob_url_is_revoked_on_first_use_of_its_bootstrap_token(service: Running, azurite: Azurite) -> None:
    admin = service.admin.at(PLANT)
    url = admin.url_of("edge-2", token())
    [(used, _)] = [(each, node) for each, (node, _) in service.clusters.tokens.items() if node == "edge-2"]

    assert service.call(service.tracker.on_token_csr(PLANT.key, "edge-2", used, "csr-1"))

    assert status_of(url, azurite)[0] == 404
