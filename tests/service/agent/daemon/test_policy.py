"""Tests of the policy of a machine over HTTP: a compromised provider orders what the administrator forbids.

The provider is real, and so are the daemon with its threads and the admission of the update job. The machine is
simulated.
"""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.agent import context
from aks_flex_node.agent.bootstrap import workflow
from aks_flex_node.agent.bootstrap.sources.selection import select_source
from aks_flex_node.agent.jobs.update.job import UpdateJob
from aks_flex_node.agent.jobs.update.node_operations import NodeOperations
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.policy import POLICY_FILE
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.api import config_urls
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import MakeDirectory, WriteFile
from aks_flex_node.host.real import RootedHost
from tests.service.agent.daemon.harness import eventually
from tests.service.agent.daemon.test_controller import living, make_managed, standing, status
from tests.unit.agent.builders import Ready, engine_on
from tests.unit.agent.daemon.fakes import FakeHost, Quiet
from tests.unit.agent.jobs.update.fakes import Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.host.host import CommandResult, Host
    from tests.service.agent.daemon.conftest import MakeBody
    from tests.service.rp.api.service_harness import Running

EXEC = {"kubernetesAuth": {"useAzureAuth": True, "method": "exec"}}
ORDERS: dict[str, dict[str, Any]] = {
    "agent.version": {"versions": {"agent": "9.9.9"}},
    "artifactHosts": {"nodeConfig": {"artifacts": {"baseURL": "https://evil.example/mirror"}}},
    "node.kubelet.auth": EXEC,
    "azure.vpn": {"nodeConfig": {"vpn": {"enabled": True}}},
    "cluster": {"nodeConfig": {"kubelet": {"serverURL": "https://evil.example:443"}}},
}


class Machine(FakeHost):
    """A machine on which the update job itself decides whether it may run."""

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        if argv[0] == "systemd-run" and argv[argv.index("job") + 1] == "update":
            operations = NodeOperations(
                self,
                lambda config: engine_on(self, config),
                ProgressReporter(),
                lambda _: cast("ApiClient", Quiet()),
                lambda _: Ready(self),
                Cluster(self).environment,
                lambda: datetime.now(timezone.utc),
            )
            self.outcomes = [UpdateJob(operations, False).run()]
        return super().query(*argv, seconds=seconds)


def forbid(host: Host, what: str) -> None:
    text = "artifactHosts: [mirror.example]\n" if what == "artifactHosts" else f"forbid: [{what}]\n"
    host.apply(MakeDirectory("/etc/aks-flex-node"))
    host.apply(WriteFile(POLICY_FILE, text.encode(), 0o644))


def ordering(plain: dict[str, Any], what: str) -> dict[str, Any]:
    return {"properties": {**plain["properties"], **ORDERS[what]}}


@pytest.fixture
def host(service: Running, body: MakeBody, name: str) -> Machine:
    return make_managed(Machine(), service, name, body())


@pytest.mark.parametrize("what", ORDERS)
def test_forbidden_order_is_refused_and_the_provider_is_told(
    service: Running, body: MakeBody, name: str, host: Machine, what: str
) -> None:
    forbid(host, what)
    before = host.read(CURRENT_CONFIG)
    with living(host, name):
        eventually(lambda: standing(host) == "Connected")
        changed = service.admin.put(name, ordering(body(), what))
        assert changed.status == 200, changed.text
        eventually(lambda: applied(service, name).get("reason") == "RefusedByPolicy")
        service.release()
    assert what in applied(service, name)["message"]
    assert applied(service, name)["status"] == "False"
    assert host.read(CURRENT_CONFIG) == before
    assert set(host.works) == {"update"}


def applied(service: Running, name: str) -> dict[str, str]:
    conditions = status(service, name).get("conditions") or []
    return next((one for one in conditions if one["type"] == "ConfigApplied"), {})


@pytest.mark.parametrize("what", ["agent.version", "artifactHosts", "node.kubelet.auth", "azure.vpn"])
def test_forbidden_configuration_is_refused_at_the_join(
    service: Running,
    body: MakeBody,
    name: str,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = service.admin.put(name, ordering(body(), what), url=True)
    machine = RootedHost(tmp_path)
    (tmp_path / "etc").mkdir()
    forbid(machine, what)
    for module in (context, workflow):
        monkeypatch.setattr(module, "RealHost", lambda: machine)
    monkeypatch.setattr(context, "require_root", lambda: None)
    monkeypatch.setattr(workflow, "exclusive", nullcontext)

    selection = context.ConfigSelection(url=config_urls.parse(made.properties["configUrl"]))
    with pytest.raises(MachineError) as refused:
        workflow.bootstrap_node(selection, ProgressReporter())

    assert refused.value.name == "refused-by-policy"
    assert f"{POLICY_FILE}, forbids " in refused.value.message
    assert what in refused.value.message
    assert "A retry fails until one of the two changes" in refused.value.hint
    told = status(service, name)
    assert (told["joinState"], told["joinFailure"]) == ("Failed", refused.value.message), "the operator sees it"
    assert select_source(machine, selection, ProgressReporter()).fetch(ProgressReporter()), "after a correction"
    left = {each.name for each in tmp_path.rglob("*") if each.is_file()}
    assert left == {"policy.yaml", "ledger.json", "node-key.json", "node-key.copy.json"}, (
        "the URL is bound to the key"
    )
