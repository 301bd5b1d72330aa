"""The configured identity signs in before anything is installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.identity.cloud_endpoints import AKS_SERVER_APP_ID
from aks_flex_node.azure.arm import sign_in_failed_error
from tests.unit.agent.preflight.builders import config, fit, host, severities, told

if TYPE_CHECKING:
    from aks_flex_node.errors import FlexError
    from aks_flex_node.settings.models import NodeConfig

PRINCIPAL = {"servicePrincipal": {"tenantId": "t", "clientId": "c", "clientSecret": "s"}}
NO_TOKEN = {"bootstrapToken": None}
CLUSTER_SCOPE, AZURE_SCOPE = f"{AKS_SERVER_APP_ID}/.default", "https://management.azure.com/.default"
SETTLED = {"/var/lib/aks-flex-node/arc.json": '{"settled": "x"}'}


@dataclass
class FakeAuthority:
    failure: FlexError | None = None
    requests: list[tuple[str, bool]] = field(default_factory=list)

    def sign_in(self, _: NodeConfig, scope: str, operator: bool) -> None:
        self.requests.append((scope, operator))
        if self.failure:
            raise self.failure


@pytest.mark.parametrize(
    ("changes", "files", "requests"),
    [
        ({}, {}, []),
        ({"azure": PRINCIPAL}, {}, [(AZURE_SCOPE, False)]),
        ({"azure": {**PRINCIPAL, **NO_TOKEN}}, {}, [(CLUSTER_SCOPE, False)]),
        ({"azure": {"managedIdentity": {}, **NO_TOKEN}}, {}, [(CLUSTER_SCOPE, False)]),
        ({"azure": {"arc": {"enabled": True}, **NO_TOKEN}}, {}, []),
        ({"azure": {"arc": {"enabled": True}, **PRINCIPAL, **NO_TOKEN}}, {}, [(AZURE_SCOPE, True)]),
        ({"azure": {"arc": {"enabled": True}, **NO_TOKEN}}, SETTLED, [(CLUSTER_SCOPE, False)]),
    ],
    ids=["none", "token too", "principal", "managed identity", "arc", "arc, operator", "arc, registered"],
)
def test_every_configured_identity_signs_in(
    changes: dict[str, Any], files: dict[str, str], requests: list[tuple[str, bool]]
) -> None:
    authority = FakeAuthority()
    context = fit(config=config(changes), host=host(files), sign_in=authority.sign_in)
    assert severities(context, "identity") == ["ok"]
    assert authority.requests == requests


def test_refused_identity_is_an_error_with_its_remedy() -> None:
    authority = FakeAuthority(sign_in_failed_error("AADSTS7000222: The secret is expired."))
    said = told(fit(config=config({"azure": PRINCIPAL}), sign_in=authority.sign_in), "identity")
    assert said.startswith("error: Sign-in as the service principal failed: Entra ID issued no token: AADSTS7000222")
    assert "az ad app credential reset" in said
