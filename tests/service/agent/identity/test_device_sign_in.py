"""An operator who is not signed in signs in with a device code, against the lab's Entra ID."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_node.agent.cli import device_prompt
from aks_flex_node.agent.identity import azure_sign_in
from aks_flex_node.agent.identity.cloud_endpoints import AKS_SERVER_APP_ID
from aks_flex_node.errors import FlexError
from tests.service.agent.identity.test_credentials import bundle, claims
from tests.service.lab.test_entra import ask
from tests.unit.agent.config.builders import load_plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_node.settings.models import NodeConfig
    from tests.service.lab.cloud_harness import Cloud

CLUSTER_SCOPE = f"{AKS_SERVER_APP_ID}/.default"


@dataclass
class FakeOperator:
    """A person with a browser, who enters the code."""

    cloud: Cloud
    name: str
    password: str = "pass word"
    accepts: bool = True
    answer: str = "sign-in"
    offers: list[str] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)

    def offer(self, reason: str) -> bool:
        self.offers.append(reason)
        return self.accepts

    def show(self, url: str, code: str, expires: datetime) -> None:  # noqa: ARG002
        threading.Thread(target=self._enter, args=(url, code)).start()

    def _enter(self, url: str, code: str) -> None:
        path = url.removeprefix(self.cloud.url)
        form = {"code": code.lower(), "username": self.name, "password": self.password, "answer": self.answer}
        page = ask(self.cloud, "POST", path, fields=form, encode_multipart=False)
        self.pages.append(page.data.decode())


@pytest.fixture
def ann(cloud: Cloud) -> EntraPrincipal:
    return cloud.directory.user(f"ann-{os.urandom(4).hex()}@flex.internal", "pass word")


@pytest.fixture
def config(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeConfig]:
    """A configuration without a service principal, on a machine without az."""
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    yield load_plain(bundle(cloud)).config
    azure_sign_in.enable_device_sign_in(None)


def test_operator_signs_in_once_with_a_device_code(cloud: Cloud, config: NodeConfig, ann: EntraPrincipal) -> None:
    operator = FakeOperator(cloud, ann.name)
    azure_sign_in.enable_device_sign_in(operator)

    first = azure_sign_in.sign_in(config, f"{cloud.url}/.default", operator=True)
    second = azure_sign_in.sign_in(config, CLUSTER_SCOPE, operator=True)

    assert [claims(token.value)["oid"] for token in (first, second)] == [ann.object_id] * 2
    assert (claims(first.value)["tid"], claims(second.value)["aud"]) == (TENANT_ID, AKS_SERVER_APP_ID)
    assert len(operator.offers) == len(operator.pages) == 1


def test_declined_offer_reports_the_first_error(cloud: Cloud, config: NodeConfig, ann: EntraPrincipal) -> None:
    azure_sign_in.enable_device_sign_in(FakeOperator(cloud, ann.name, accepts=False))
    with pytest.raises(FlexError) as caught:
        azure_sign_in.sign_in(config, CLUSTER_SCOPE, operator=True)
    assert caught.value.name in {"azure-cli-not-found", "azure-cli-not-signed-in"}


def test_cancelled_device_sign_in_is_reported(cloud: Cloud, config: NodeConfig, ann: EntraPrincipal) -> None:
    azure_sign_in.enable_device_sign_in(FakeOperator(cloud, ann.name, answer="cancel"))
    with pytest.raises(FlexError) as caught:
        azure_sign_in.sign_in(config, CLUSTER_SCOPE, operator=True)
    assert caught.value.name == "azure-sign-in-failed"
    assert "AADSTS70013" in caught.value.message


@pytest.mark.parametrize(
    ("no_input", "terminal", "offered"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_device_sign_in_is_offered_only_at_a_terminal_that_may_ask(
    monkeypatch: pytest.MonkeyPatch, config: NodeConfig, no_input: bool, terminal: bool, offered: bool
) -> None:
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    azure_sign_in.enable_device_sign_in(None)
    device_prompt.offer_device_sign_in(no_input=no_input)
    assert azure_sign_in.offers_device_sign_in() is offered
    if not offered:
        with pytest.raises(FlexError) as caught:
            azure_sign_in.sign_in(config, CLUSTER_SCOPE, operator=True)
        assert caught.value.name in {"azure-cli-not-found", "azure-cli-not-signed-in"}


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"device_code": "unknown", "client_id": "c"}, "bad_verification_code"),
        ({"client_id": "c"}, "bad_verification_code"),
    ],
)
def test_unknown_device_code_is_refused(cloud: Cloud, form: dict[str, Any], error: str) -> None:
    grant = {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", **form}
    response = ask(cloud, "POST", f"/{TENANT_ID}/oauth2/v2.0/token", fields=grant, encode_multipart=False)
    assert (response.status, response.json()["error"]) == (400, error)
