"""The lab's Azure for tests that follow remedies: configurations of a node, and the az of an owner."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.identity import azure_sign_in
from aks_flex_node.agent.identity.cloud_endpoints import AKS_SERVER_APP_ID
from aks_flex_node.errors import FlexError
from tests.az_extension.warm_az import warmed
from tests.azure_cli import Az
from tests.service.agent.identity.test_credentials import bundle
from tests.service.lab.cloud_harness import CLUSTER, OWNER, running_cloud, running_provider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_node.settings.models import NodeConfig
    from tests.az_extension.warm_az import WarmAz
    from tests.service.lab.cloud_harness import Cloud

SCOPE = f"{AKS_SERVER_APP_ID}/.default"
GROUP_ID = CLUSTER.partition("/providers/")[0]


@contextmanager
def running_azure(room: Path) -> Iterator[tuple[Cloud, CertificateAuthority]]:
    """Runs the lab's Azure with its own CA."""
    authority = CertificateAuthority(room / "pki")
    authority.ensure()
    pair = authority.issue("localhost", "localhost", names=("localhost",))
    with running_provider(pair) as provider, running_cloud(authority, room, provider) as cloud:
        yield cloud, authority


@contextmanager
def owners_az(cloud: Cloud, folder: Path) -> Iterator[WarmAz]:
    """Starts the real az, signed in as an owner of the resource group."""
    with warmed(Az.signed_in(cloud, folder, OWNER, GROUP_ID)) as warm:
        yield warm


def config_of(cloud: Cloud, more: dict[str, Any] | None = None, /, **azure: Any) -> NodeConfig:
    document = json.loads(bundle(cloud, **azure))
    return load_text(json.dumps({**document, **(more or {})}), "test", {}, {}).config


def by_secret(principal: EntraPrincipal, secret: str = "") -> dict[str, str]:
    return {"clientId": principal.client_id, "clientSecret": secret or "right"}


def signs_in(config: NodeConfig) -> None:
    assert azure_sign_in.sign_in(config, SCOPE).value


def error_of(act: Callable[[], object]) -> FlexError:
    with pytest.raises(FlexError) as caught:
        act()
    return caught.value
