"""Tests of the configuration of a join through a flex node pool, with the lab's Azure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.aks_pool.pool_ids import parse_pool_id
from aks_flex_node.agent.bootstrap.sources.aks_pool import FromPool
from aks_flex_node.agent.bootstrap.sources.selection import select_source
from aks_flex_node.agent.config.problems import InvalidConfigError
from aks_flex_node.agent.context import ConfigSelection
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.errors import FlexError
from aks_flex_node.host.real import RealHost
from tests.service.agent.aks_pool.test_pool_client import AGENT_ROLE, SETTINGS, client, pool_of
from tests.service.agent.identity.test_credentials import bundle
from tests.unit.agent.aks_pool.test_bootstrap_data import DATA
from tests.unit.agent.config.builders import CLUSTER_ID

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.lab.pool_harness import Aks


class Progress(ProgressReporter):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def selection(aks: Aks, folder: Path, *, role: str = AGENT_ROLE, base: Any = None, **more: Any) -> ConfigSelection:
    """Returns the options of `agent --aks-pool ID --config FILE…` with a service principal in a file."""
    principal = aks.cloud.directory.service_principal("edge", "right")
    if role:
        aks.cloud.assignments.put(str(pool_of(aks)), role, principal.object_id)
    given = {"clientId": principal.client_id, "clientSecret": "right"}
    document = json.loads(bundle(aks.cloud, servicePrincipal=given, authorityHost=aks.cloud.url))
    del document["azure"]["targetCluster"]
    documents = {**({"base-config.json": base} if base else {}), "own.json": {**document, **more}}
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content))
        (folder / name).chmod(0o600)
    return ConfigSelection([folder / name for name in documents], pool=pool_of(aks))


def complete(chosen: ConfigSelection, progress: Progress | None = None) -> Any:
    """Returns the configuration, and the facts of the pool if they were read."""
    source = select_source(RealHost(), chosen, ProgressReporter())
    assert isinstance(source, FromPool)
    return source.fetch(progress or Progress()), source.facts


def test_pool_completes_the_local_settings(aks: Aks, tmp_path: Path) -> None:
    chosen = selection(aks, tmp_path, node={"name": "m1", "maxPods": 30, "labels": {"rack": "7"}})
    loaded, facts = complete(chosen)
    config = loaded.config
    assert (config.kubernetes.version, config.node.max_pods) == ("1.35.4", 30)
    assert config.node.labels.items() >= {"rack": "7", "site": "a"}.items()
    assert loaded.origins["kubernetes.version"] == "AKS pool edge"
    assert loaded.origins["azure.targetAgentPoolName"] == "flag --aks-pool"
    assert config.azure.bootstrap_token.token.reveal() not in json.dumps(facts.settings)
    assert config.azure.bootstrap_token.token.reveal() not in loaded.text(without_token=True)


def test_new_token_replaces_the_expired_one_of_a_file(aks: Aks, tmp_path: Path) -> None:
    azure = {**DATA["azure"], "targetCluster": {"resourceId": aks.id}, "resourceManagerEndpoint": None}
    loaded, _ = complete(selection(aks, tmp_path, base={**DATA, "azure": azure}))
    assert loaded.config.azure.bootstrap_token.token.reveal() != DATA["azure"]["bootstrapToken"]["token"]


def test_identity_without_the_role_is_refused_before_any_change(aks: Aks, tmp_path: Path) -> None:
    azure = {**DATA["azure"], "targetCluster": {"resourceId": aks.id}, "resourceManagerEndpoint": None}
    with pytest.raises(FlexError) as caught:
        complete(selection(aks, tmp_path, role="", base={**DATA, "azure": azure}))
    assert caught.value.name == "aks-pool-role-missing"
    assert "az role assignment create" in caught.value.hint


def test_token_of_a_file_is_used_without_a_sign_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
    file = tmp_path / "base-config.json"
    file.write_text(json.dumps(DATA))
    file.chmod(0o600)
    progress = Progress()
    loaded, facts = complete(ConfigSelection(file, pool=parse_pool_id(f"{CLUSTER_ID}/agentPools/edge")), progress)
    assert loaded.config.azure.bootstrap_token.token.reveal() == DATA["azure"]["bootstrapToken"]["token"]
    assert facts is None
    assert "the token of the configuration is used" in progress.warnings[0]


def test_existing_machine_is_adopted_with_its_settings(aks: Aks, tmp_path: Path) -> None:
    with client(aks) as opened:
        _, operation = opened.put_machine("m1", SETTINGS.__class__("1.35.4", 70, {"site": "b"}, ()), None, "")
        assert operation
        opened.wait("m1", operation, lambda _: None)
    config = complete(selection(aks, tmp_path, node={"name": "m1"}))[0].config
    assert (config.node.max_pods, config.node.labels["site"], config.node.taints) == (70, "b", ())


def test_file_without_an_identity_needs_no_azure(tmp_path: Path) -> None:
    file = tmp_path / "base-config.json"
    file.write_text(json.dumps({**DATA, "node": {**DATA["node"], "labels": {}}}))
    file.chmod(0o600)
    chosen = ConfigSelection(file)
    loaded, facts = complete(chosen)
    assert facts is None
    assert loaded.config.azure.bootstrap_token.token.reveal() == DATA["azure"]["bootstrapToken"]["token"]


def test_machine_cannot_set_what_only_this_machine_may_set(aks: Aks, tmp_path: Path) -> None:
    kubelet = {"allowedUnsafeSysctls": ["kernel.*"]}
    with client(aks) as opened:
        settings = SETTINGS.__class__("1.35.4", 70, {"site": "b"}, (), kubelet)
        _, operation = opened.put_machine("m1", settings, None, "")
        assert operation
        opened.wait("m1", operation, lambda _: None)
    with pytest.raises(InvalidConfigError) as caught:
        complete(selection(aks, tmp_path, node={"name": "m1"}))
    [problem] = caught.value.problems
    assert problem.path == "node.kubelet.extraConfig.allowedUnsafeSysctls"
    assert "can only be set on the machine itself" in problem.reason
