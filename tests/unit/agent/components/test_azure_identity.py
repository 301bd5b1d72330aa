"""Kubelets that show tokens of the node's Azure identity: for good, or until they have a certificate."""

from __future__ import annotations

import json
import stat
from pathlib import Path  # noqa: TC003 - pytest looks at it

import pytest

from aks_flex_node.agent.components import credentials, kubelet
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.config.resolved import kubelet_auth, kubelet_credential_file
from aks_flex_node.agent.reconcile.resources import File, FileLine
from tests.unit.agent.builders import MACHINE, config_of, files_of, text_of

TOKEN = ("azure.bootstrapToken.token",)
PRINCIPAL: dict[str, object] = {
    "azure.tenantId": "f1e0f1e0-0000-4000-8000-000000000001",
    "azure.servicePrincipal.clientId": "11111111-0000-4000-8000-000000000000",
    "azure.servicePrincipal.clientSecret": "canary-of-a-secret",
}
FOLDER = "/var/lib/kubelet"


@pytest.mark.parametrize(
    ("values", "without", "auth"),
    [
        ({}, (), "bootstrapToken"),
        (PRINCIPAL, (), "bootstrapToken"),
        (PRINCIPAL, TOKEN, "exec"),
        ({"azure.managedIdentity.clientId": "x"}, TOKEN, "exec"),
        ({"azure.arc.enabled": True}, TOKEN, "exec"),
        ({"azure.arc.autoRegister": True}, TOKEN, "exec"),
        ({}, TOKEN, "bootstrapToken"),
        ({**PRINCIPAL, "continuousMonitoring": True}, TOKEN, "bootstrapToken"),
        ({**PRINCIPAL, "provider.url": "https://rp.example"}, TOKEN, "bootstrapToken"),
        ({**PRINCIPAL, "continuousMonitoring": True, "node.kubelet.auth": "exec"}, TOKEN, "exec"),
        ({**PRINCIPAL, "node.kubelet.auth": "certificate"}, TOKEN, "certificate"),
    ],
)
def test_a_kubelet_shows_what_the_configuration_has(
    values: dict[str, object], without: tuple[str, ...], auth: str
) -> None:
    assert kubelet_auth(config_of(values, without=without)) == auth


def test_by_exec_the_kubelet_calls_the_script_at_every_start_and_asks_for_no_certificate() -> None:
    config = config_of(PRINCIPAL, without=TOKEN)
    spec = kubelet.desired(config, MACHINE)
    user = json.loads(text_of(spec, f"{FOLDER}/kubeconfig"))["users"][0]["user"]
    assert user["exec"]["command"] == f"{FOLDER}/token.sh"
    assert user["exec"]["apiVersion"] == "client.authentication.k8s.io/v1"
    assert "rotateCertificates: false" in text_of(spec, f"{FOLDER}/config.yaml")
    assert "bootstrap-kubeconfig" not in text_of(spec, f"{kubelet.DROPINS}/10-kubeadm.conf")
    assert f"{FOLDER}/bootstrap-kubeconfig" not in files_of(credentials.desired(config, MACHINE))
    assert kubelet_credential_file(config) == f"{FOLDER}/kubeconfig"


def test_for_a_certificate_the_script_is_called_once() -> None:
    config = config_of({**PRINCIPAL, "node.kubelet.auth": "certificate"}, without=TOKEN)
    first = json.loads(text_of(credentials.desired(config, MACHINE), f"{FOLDER}/bootstrap-kubeconfig"))
    assert first["users"][0]["user"]["exec"]["command"] == f"{FOLDER}/token.sh"
    spec = kubelet.desired(config, MACHINE)
    assert any(isinstance(one, FileLine) and one.path == f"{FOLDER}/kubeconfig" for one in spec.resources)
    assert "rotateCertificates: true" in text_of(spec, f"{FOLDER}/config.yaml")
    assert "--bootstrap-kubeconfig" in text_of(spec, f"{kubelet.DROPINS}/10-kubeadm.conf")
    assert kubelet_credential_file(config).endswith("kubelet-client-current.pem")


def test_the_secret_is_in_one_file_of_roots_and_neither_in_the_script_nor_in_a_kubeconfig() -> None:
    config = config_of(PRINCIPAL, without=TOKEN)
    specs = (credentials.desired(config, MACHINE), kubelet.desired(config, MACHINE))
    holding = [one for spec in specs for one in files_of(spec).values() if b"canary" in one.content]
    assert [(one.path, one.mode, one.secret) for one in holding] == [(f"{FOLDER}/identity.json", 0o600, True)]
    script = files_of(specs[0])[f"{FOLDER}/token.sh"]
    assert not script.mode & (stat.S_IRWXG | stat.S_IRWXO)


def test_the_identity_that_is_kept_loads_to_the_same_identity() -> None:
    values = {
        **PRINCIPAL,
        "azure.cloud": "AzureChinaCloud",
        "proxy.https": "http://user:canary-of-a-proxy@proxy.example:3128",
        "proxy.noProxy": ["cluster.example"],
    }
    config = config_of(values, without=TOKEN)
    text = text_of(credentials.desired(config, MACHINE), f"{FOLDER}/identity.json")
    again = load_text(text, "identity", {}, {}).config
    assert again.azure.service_principal == config.azure.service_principal
    assert (again.azure.tenant_id, again.azure.cloud, again.proxy) == (
        config.azure.tenant_id,
        config.azure.cloud,
        config.proxy,
    )
    assert again.node.kubelet.server_url is None


def test_what_an_operator_signs_in_with_is_not_the_nodes() -> None:
    config = config_of({**PRINCIPAL, "azure.arc.enabled": True}, without=TOKEN)
    text = text_of(credentials.desired(config, MACHINE), f"{FOLDER}/identity.json")
    assert json.loads(text)["config"]["azure"]["arc"] == {"enabled": True}
    assert "canary" not in text
    assert "servicePrincipal" not in text


def test_a_secret_that_is_in_a_file_stays_there_and_is_noticed_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("canary-of-a-secret")
    file.chmod(0o600)
    values = {key: value for key, value in PRINCIPAL.items() if not key.endswith("Secret")}
    config = config_of({**values, "azure.servicePrincipal.clientSecretFile": str(file)}, without=TOKEN)
    text = text_of(credentials.desired(config, MACHINE), f"{FOLDER}/identity.json")
    assert "canary" not in text
    assert load_text(text, "identity", {}, {}).config.azure.service_principal == config.azure.service_principal


def test_a_node_by_token_has_none_of_it() -> None:
    config = config_of(PRINCIPAL)
    assert not [one for one in files_of(credentials.desired(config, MACHINE)) if "identity" in one or "token" in one]


def test_another_secret_changes_the_identity_and_restarts_nobody() -> None:
    specs = [
        kubelet.desired(
            config_of({**PRINCIPAL, "azure.servicePrincipal.clientSecret": secret}, without=TOKEN), MACHINE
        )
        for secret in ("one-secret", "another-secret")
    ]
    assert specs[0].fingerprints == specs[1].fingerprints
    assert isinstance(kubelet.own_kubeconfig(config_of(PRINCIPAL, without=TOKEN)), File)
