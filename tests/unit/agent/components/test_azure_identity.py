"""Tests of kubelets that authenticate with tokens of the node's Azure identity, permanently or until they have a
certificate.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path  # noqa: TC003 - pytest looks at it

import pytest

from aks_flex_node.agent.components import credentials, kubelet
from aks_flex_node.agent.config.resolved import kubelet_auth, kubelet_credential_file
from aks_flex_node.agent.reconcile.resources import File, FileLine
from tests.unit.agent.builders import MACHINE, config_of, files_of, text_of
from tests.unit.agent.config.builders import Settings, load_plain

TOKEN = ("azure.bootstrapToken.token",)
PRINCIPAL: Settings = {
    "azure.tenantId": "f1e0f1e0-0000-4000-8000-000000000001",
    "azure.servicePrincipal.clientId": "11111111-0000-4000-8000-000000000000",
    "azure.servicePrincipal.clientSecret": "canary-of-a-secret",
}
EXEC = {**PRINCIPAL, "node.kubelet.auth": "exec"}
FOLDER = "/var/lib/kubelet"


@pytest.mark.parametrize(
    ("values", "without", "auth"),
    [
        ({}, (), "bootstrapToken"),
        (PRINCIPAL, (), "bootstrapToken"),
        (PRINCIPAL, TOKEN, "certificate"),
        ({"azure.managedIdentity.clientId": "x"}, TOKEN, "certificate"),
        ({"azure.arc.enabled": True}, TOKEN, "certificate"),
        ({"azure.arc.autoRegister": True}, TOKEN, "certificate"),
        ({}, TOKEN, "bootstrapToken"),
        ({**PRINCIPAL, "continuousMonitoring": True}, TOKEN, "bootstrapToken"),
        ({**PRINCIPAL, "provider.url": "https://rp.example"}, TOKEN, "bootstrapToken"),
        ({**PRINCIPAL, "continuousMonitoring": True, "node.kubelet.auth": "exec"}, TOKEN, "exec"),
        ({**PRINCIPAL, "node.kubelet.auth": "certificate"}, TOKEN, "certificate"),
    ],
)
def test_kubelet_auth_is_derived_from_the_config(values: Settings, without: tuple[str, ...], auth: str) -> None:
    assert kubelet_auth(config_of(values, without=without)) == auth


def test_exec_auth_kubelet_uses_token_script_and_no_certificate() -> None:
    config = config_of(EXEC, without=TOKEN)
    spec = kubelet.desired(config, MACHINE)
    user = json.loads(text_of(spec, f"{FOLDER}/kubeconfig"))["users"][0]["user"]
    assert user["exec"]["command"] == f"{FOLDER}/token.sh"
    assert user["exec"]["apiVersion"] == "client.authentication.k8s.io/v1"
    assert '"rotateCertificates": false' in text_of(spec, f"{FOLDER}/config.yaml")
    assert "bootstrap-kubeconfig" not in text_of(spec, f"{kubelet.DROPINS}/10-kubeadm.conf")
    assert f"{FOLDER}/bootstrap-kubeconfig" not in files_of(credentials.desired(config, MACHINE))
    assert kubelet_credential_file(config) == f"{FOLDER}/kubeconfig"


def test_certificate_auth_uses_the_token_script_only_for_bootstrap() -> None:
    config = config_of({**PRINCIPAL, "node.kubelet.auth": "certificate"}, without=TOKEN)
    first = json.loads(text_of(credentials.desired(config, MACHINE), f"{FOLDER}/bootstrap-kubeconfig"))
    assert first["users"][0]["user"]["exec"]["command"] == f"{FOLDER}/token.sh"
    spec = kubelet.desired(config, MACHINE)
    assert any(isinstance(one, FileLine) and one.path == f"{FOLDER}/kubeconfig" for one in spec.resources)
    assert '"rotateCertificates": true' in text_of(spec, f"{FOLDER}/config.yaml")
    assert "--bootstrap-kubeconfig" in text_of(spec, f"{kubelet.DROPINS}/10-kubeadm.conf")
    assert kubelet_credential_file(config).endswith("kubelet-client-current.pem")


def test_client_secret_is_only_in_the_root_owned_identity_file() -> None:
    config = config_of(PRINCIPAL, without=TOKEN)
    specs = (credentials.desired(config, MACHINE), kubelet.desired(config, MACHINE))
    holding = [one for spec in specs for one in files_of(spec).values() if b"canary" in one.content]
    assert [(one.path, one.mode, one.secret) for one in holding] == [(f"{FOLDER}/identity.json", 0o600, True)]
    script = files_of(specs[0])[f"{FOLDER}/token.sh"]
    assert not script.mode & (stat.S_IRWXG | stat.S_IRWXO)


def test_stored_identity_loads_as_the_same_identity() -> None:
    values = {
        **PRINCIPAL,
        "azure.cloud": "AzureChinaCloud",
        "proxy.https": "http://user:canary-of-a-proxy@proxy.example:3128",
        "proxy.noProxy": ["cluster.example"],
    }
    config = config_of(values, without=TOKEN)
    text = text_of(credentials.desired(config, MACHINE), f"{FOLDER}/identity.json")
    again = load_plain(text).config
    assert again.azure.service_principal == config.azure.service_principal
    assert (again.azure.tenant_id, again.azure.cloud, again.proxy) == (
        config.azure.tenant_id,
        config.azure.cloud,
        config.proxy,
    )
    assert again.node.kubelet.server_url is None


def test_identity_file_omits_operator_credentials_for_an_arc_node() -> None:
    config = config_of({**PRINCIPAL, "azure.arc.enabled": True}, without=TOKEN)
    text = text_of(credentials.desired(config, MACHINE), f"{FOLDER}/identity.json")
    assert json.loads(text)["config"]["azure"]["arc"] == {"enabled": True}
    assert "canary" not in text
    assert "servicePrincipal" not in text


def test_identity_file_refers_to_the_secret_file_without_its_content(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("canary-of-a-secret")
    file.chmod(0o600)
    values = {key: value for key, value in PRINCIPAL.items() if not key.endswith("Secret")}
    config = config_of({**values, "azure.servicePrincipal.clientSecretFile": str(file)}, without=TOKEN)
    text = text_of(credentials.desired(config, MACHINE), f"{FOLDER}/identity.json")
    assert "canary" not in text
    assert load_plain(text).config.azure.service_principal == config.azure.service_principal


def test_node_with_bootstrap_token_has_no_identity_files() -> None:
    config = config_of(PRINCIPAL)
    assert not [one for one in files_of(credentials.desired(config, MACHINE)) if "identity" in one or "token" in one]


def test_changed_client_secret_does_not_restart_the_kubelet() -> None:
    specs = [
        kubelet.desired(config_of({**EXEC, "azure.servicePrincipal.clientSecret": secret}, without=TOKEN), MACHINE)
        for secret in ("one-secret", "another-secret")
    ]
    assert specs[0].fingerprints == specs[1].fingerprints
    assert isinstance(kubelet.own_kubeconfig(config_of(EXEC, without=TOKEN)), File)
