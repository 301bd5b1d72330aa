"""Follows the remedies of errors of Azure identities, with the lab's Azure."""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.entra.directory import MachineIdentities
from aks_flex_node.agent.cluster.client import azure_token
from aks_flex_node.agent.cluster.discovery import complete_from_azure, discover
from aks_flex_node.agent.components import credentials
from aks_flex_node.agent.identity import azure_sign_in
from aks_flex_node.agent.machine import Machine
from tests.azure_cli import Az, program
from tests.remedies.artifact_harness import flex
from tests.remedies.azure_harness import by_secret, config_of, error_of, owners_az, running_azure, signs_in
from tests.remedies.catalogue import advice, command
from tests.service.agent.daemon.harness import PROGRAM
from tests.service.lab.cloud_harness import CLUSTER, OWNER, READER, running_metadata
from tests.service.ports import free_port
from tests.unit.agent.config.builders import CA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_node.settings.models import NodeConfig
    from tests.service.lab.cloud_harness import Cloud


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with running_azure(tmp_path_factory.mktemp("azure")) as (cloud, _):
        yield cloud


@pytest.fixture
def principal(cloud: Cloud) -> EntraPrincipal:
    return cloud.directory.service_principal("edge", "right")


@pytest.mark.remedy("managed-identity-unavailable")
def test_machine_outside_azure_uses_a_service_principal(
    cloud: Cloud, principal: EntraPrincipal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", f"http://127.0.0.1:{free_port()}")
    vm = config_of(cloud, managedIdentity={})
    assert error_of(lambda: signs_in(vm)).name == "managed-identity-unavailable"
    advice("managed-identity-unavailable", "Outside of Azure, use `azure.servicePrincipal`")
    signs_in(config_of(cloud, servicePrincipal=by_secret(principal)))


@pytest.mark.remedy("managed-identity-unavailable", "managed-identity-not-found")
def test_vm_gets_its_managed_identity(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = cloud.directory.managed_identity("edge", f"/subscriptions/s/{tmp_path.name}")
    other = cloud.directory.managed_identity("other", f"/subscriptions/s/{tmp_path.name}-other")
    vm = config_of(cloud, managedIdentity={})
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", f"http://127.0.0.1:{free_port()}")
    assert error_of(lambda: signs_in(vm)).name == "managed-identity-unavailable"
    with running_metadata(cloud, tmp_path) as url:
        advice("managed-identity-unavailable", "make sure that no firewall or route blocks this address")
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)
        assert error_of(lambda: signs_in(vm)).name == "managed-identity-not-found"
        assert command("managed-identity-not-found", "az vm identity assign")
        MachineIdentities(cloud.state).set("127.0.0.1", [identity.object_id])  # as that command does
        signs_in(vm)
        wrong = config_of(cloud, managedIdentity={"clientId": other.client_id})
        assert error_of(lambda: signs_in(wrong)).name == "managed-identity-not-found"
        advice("managed-identity-not-found", "check `azure.managedIdentity.clientId`")
        signs_in(config_of(cloud, managedIdentity={"clientId": identity.client_id}))


@pytest.fixture
def operator(cloud: Cloud) -> Callable[..., str]:
    """Returns a function that gets a token of the operator with an environment."""

    def token(environment: dict[str, str], **azure: Any) -> str:
        config = config_of(cloud, **azure)
        with azure_sign_in.ca_bundle(config) as file:
            return (
                azure_sign_in.operator_credential(config, file, environment).get_token(f"{cloud.url}/.default").token
            )

    return token


@pytest.mark.remedy("azure-cli-not-signed-in")
def test_operator_installs_az_and_signs_in(
    cloud: Cloud, principal: EntraPrincipal, operator: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "azure"
    without = {"PATH": str(tmp_path), "HOME": str(tmp_path), "AZURE_CONFIG_DIR": str(folder)}
    missing = error_of(lambda: operator(without))
    assert missing.name == "azure-cli-not-found"
    advice("azure-cli-not-signed-in", "set `azure.servicePrincipal`")
    assert operator(without, servicePrincipal=by_secret(principal))

    az = Az.at(cloud, folder)
    installed = {**without, "PATH": str(program().parent)}
    assert error_of(lambda: operator(installed)).name == "azure-cli-not-signed-in"
    assert command("azure-cli-not-signed-in", "az login") == ["az", "login"]
    az.sign_in(principal)
    assert operator(installed)

    settings = (folder / "config").read_text()
    (folder / "config").write_text("damaged")
    assert error_of(lambda: operator(installed)).name == "azure-cli-failed"
    (folder / "config").write_text(settings)
    assert operator(installed)


@pytest.fixture
def kubelet(cloud: Cloud, tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that writes the kubelet's files of a join with an Azure identity."""

    def joined(**azure: Any) -> Path:
        folder = tmp_path / "kubelet"
        folder.mkdir(exist_ok=True)
        more = {
            "node": {"kubelet": {"auth": "exec", "serverURL": "https://cluster.example", "caCertData": CA}},
            "paths": {"kubernetes": {"kubeletDir": str(folder)}, "installDir": str(tmp_path / "programs")},
        }
        config = config_of(cloud, more, **azure)
        for file in credentials.by_identity(config, Machine(hostname="edge-1", program=PROGRAM)):
            path = folder / file.path.rpartition("/")[2]
            path.touch(mode=file.mode)
            path.write_bytes(file.content)
        return folder

    return joined


def test_token_command_reads_the_identity_of_the_join(
    principal: EntraPrincipal,
    kubelet: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = kubelet(servicePrincipal=by_secret(principal)) / "identity.json"
    elsewhere = file.rename(file.with_name("of-the-node.json"))
    assert flex(monkeypatch, "token", "kubernetes", "--identity", file) == 4
    assert "node-identity-missing" in capsys.readouterr().err
    words = ["--identity", str(elsewhere)]
    assert flex(monkeypatch, "token", "kubernetes", *words) == 0
    elsewhere.unlink()
    kubelet(servicePrincipal=by_secret(principal))
    capsys.readouterr()
    assert flex(monkeypatch, "token", "kubernetes", "--identity", file) == 0
    assert json.loads(capsys.readouterr().out)["status"]["token"]


@pytest.mark.remedy("azure-token-unavailable")
@pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet runs as root")
def test_new_client_secret_gives_tokens_to_the_kubelet(
    cloud: Cloud, principal: EntraPrincipal, kubelet: Callable[..., Path]
) -> None:
    cloud.directory.change(principal, secret_expires=1.0)
    folder = kubelet(servicePrincipal=by_secret(principal))
    error = error_of(lambda: azure_token(str(folder)))
    assert error.name == "azure-token-unavailable"
    assert "AADSTS7000222" in error.message
    advice("azure-token-unavailable", "set a new client secret at the resource provider")
    cloud.directory.change(principal, secret="newer", secret_expires=0.0)
    kubelet(servicePrincipal=by_secret(principal, "newer"))
    assert azure_token(str(folder))


def test_api_server_is_set_in_the_configuration(cloud: Cloud, principal: EntraPrincipal) -> None:
    """The credential of this cluster is an empty kubeconfig."""
    cloud.assignments.put(CLUSTER, OWNER, principal.object_id)

    def complete(**kubelet: str) -> NodeConfig:
        node = {"node": {"kubelet": kubelet}, "kubernetes": {"version": "1.34.4"}}
        config = config_of(cloud, node, servicePrincipal=by_secret(principal), targetCluster={"resourceId": CLUSTER})
        with azure_sign_in.open_arm(config) as arm:
            return complete_from_azure(config, None, lambda: discover(config, arm), lambda _: None, joined=False)[0]

    assert error_of(complete).name == "cluster-credential-unreadable"
    server = "https://cluster.example:443"
    assert complete(serverURL=server, caCertData=CA).node.kubelet.server_url == server


@pytest.mark.remedy("arm-request-rejected")
def test_printed_command_assigns_the_missing_role(cloud: Cloud, principal: EntraPrincipal, tmp_path: Path) -> None:
    cloud.assignments.put(CLUSTER, READER, principal.object_id)
    config = config_of(cloud, servicePrincipal=by_secret(principal))
    path, version = f"{CLUSTER}/listClusterAdminCredential", "2025-10-01"
    with azure_sign_in.open_arm(config) as arm, owners_az(cloud, tmp_path) as az:
        refused = error_of(lambda: arm.post(path, version))
        assert refused.name == "arm-request-rejected"
        assert command("arm-request-rejected", "az role assignment create")
        az("role", "assignment", "create", *printed(refused.hint, "az role assignment create"))
        assert arm.post(path, version)["kubeconfigs"]

        lost = error_of(lambda: arm.get(f"{CLUSTER}2", version))
        assert lost.name == "arm-request-rejected"
        advice("arm-request-rejected", "For `ResourceNotFound`, check the subscription, resource group and name.")
        assert arm.get(CLUSTER, version)["id"] == CLUSTER


def printed(hint: str, start: str) -> list[str]:
    """Returns the options of a command in a hint."""
    return shlex.split(hint.partition(f"`{start} ")[2].partition("`")[0])


@pytest.mark.remedy("arm-unreachable")
@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        ({"proxy": {"https": "http://127.0.0.1:9"}}, "Correct the network or the proxy."),
        ({"resourceManager": "https://localhost:9"}, "`azure.resourceManager`"),
        ({"caCertData": None}, "agent: `azure.caCertData`"),
    ],
    ids=["proxy", "resourceManager", "caCertData"],
)
def test_resource_manager_is_reached(
    cloud: Cloud, principal: EntraPrincipal, wrong: dict[str, Any], setting: str
) -> None:
    more = {"proxy": wrong.pop("proxy")} if "proxy" in wrong else {}
    given = {"servicePrincipal": by_secret(principal), "authorityHost": cloud.url}

    def ask(config: NodeConfig) -> dict[str, Any]:
        with azure_sign_in.open_arm(config) as arm:
            return arm.get(f"{CLUSTER}/flexNodeConfig/edge-1", "x")

    assert error_of(lambda: ask(config_of(cloud, more, **{**given, **wrong}))).name == "arm-unreachable"
    advice("arm-unreachable", setting)
    assert ask(config_of(cloud, **given))


@pytest.mark.remedy("azure-sign-in-failed")
@pytest.mark.parametrize(
    ("wrong", "step"),
    [
        ({"clientSecret": "wrong"}, "check `azure.servicePrincipal`"),
        ({"tenantId": "00000000-0000-4000-8000-00000000000e"}, "and `azure.tenantId`"),
        ({}, "Create a new secret"),
        ({}, "assign a managed identity to the machine"),
    ],
    ids=["identity", "tenant", "expired", "managed identity"],
)
def test_corrected_identity_signs_in(
    cloud: Cloud,
    principal: EntraPrincipal,
    wrong: dict[str, str],
    step: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not wrong:
        cloud.directory.change(principal, secret_expires=1.0)
    config = config_of(cloud, servicePrincipal={**by_secret(principal), **wrong})
    assert error_of(lambda: signs_in(config)).name == "azure-sign-in-failed"
    advice("azure-sign-in-failed", step)
    if "managed" in step:
        identity = cloud.directory.managed_identity("edge", f"/subscriptions/s/{tmp_path.name}")
        with running_metadata(cloud, tmp_path, identity) as url:
            monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)
            signs_in(config_of(cloud, managedIdentity={}))
        return
    if "secret" in step:
        reset = command("azure-sign-in-failed", "az ad app credential reset", **{"CLIENT-ID": principal.client_id})
        assert principal.client_id in reset
        cloud.directory.change(principal, secret="newer", secret_expires=0.0)  # as that command does
    signs_in(config_of(cloud, servicePrincipal=by_secret(principal, "newer" if "secret" in step else "right")))
