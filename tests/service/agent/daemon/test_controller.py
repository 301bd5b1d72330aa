"""Tests of the complete daemon with all its threads and a real resource provider; the machine is simulated."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from aks_flex_node.agent.config_sources.provider_source import ProviderSource
from aks_flex_node.agent.daemon.controller import Controller
from aks_flex_node.agent.daemon.session import StopRequest, open_session
from aks_flex_node.agent.daemon.systemd_notifier import SystemdNotifier
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.paths import CURRENT_CONFIG, DAEMON_STATE, NEXT_CONFIG
from aks_flex_node.agent.provider.provider_client import ProviderClient, provider_endpoint
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from aks_flex_node.host.actions import Remove
from tests.service.agent.daemon.conftest import OLD, MakeBody
from tests.service.agent.daemon.harness import PROGRAM, eventually, joined
from tests.unit.agent.builders import engine_on
from tests.unit.agent.config.builders import load_plain
from tests.unit.agent.daemon.fakes import FakeHost, Quiet, StillMonitor, StillNode, kept, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.host.host import CommandResult
    from tests.service.rp.api.service_harness import Running


class Machine(FakeHost):
    """A machine on which an update takes effect immediately: the pending configuration becomes current."""

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        if argv[0] == "systemd-run" and argv[argv.index("job") + 1] == "update":
            taken = self.read(NEXT_CONFIG) or b""
            put(self, CURRENT_CONFIG, taken)
            self.apply(Remove(NEXT_CONFIG))
            self.outcomes = [JobResult(JobKind.UPDATE, JobStatus.DONE, version=json.loads(taken)["configVersion"])]
        return super().query(*argv, seconds=seconds)


def node_of(host: FakeHost, name: str) -> StillNode:
    def text() -> str:
        return (host.read(CURRENT_CONFIG) or b"").decode()

    config = load_plain(text(), CURRENT_CONFIG).config
    provider = ProviderClient(provider_endpoint(config, name), config, ProviderTokens(PROGRAM, text))
    source = ProviderSource(provider, config, name)
    return StillNode(engine_on(host, config), cast("ApiClient", Quiet()), name, source)


@contextmanager
def living(host: FakeHost, name: str) -> Iterator[Controller]:
    controller = Controller(
        lambda on_event: open_session(node_of(host, name), on_event, StillMonitor),
        SystemdNotifier(""),
        is_busy=lambda: False,
    )
    thread = threading.Thread(target=controller.run)
    thread.start()
    try:
        yield controller
    finally:
        controller.events.put(StopRequest())
        thread.join(20)
    assert not thread.is_alive(), "it did not end when told"


AnyHost = TypeVar("AnyHost", bound=FakeHost)


def make_managed(machine: AnyHost, service: Running, name: str, body: dict[str, Any]) -> AnyHost:
    """Returns the machine as a joined node that polls the service every second."""
    bundle = json.loads(joined(service.admin, name, body))
    bundle["config"]["provider"] |= {"pollSeconds": 1, "waitSeconds": 50}
    put(machine, CURRENT_CONFIG, json.dumps(bundle).encode())
    return machine


@pytest.fixture
def host(service: Running, body: MakeBody, name: str) -> Machine:
    return make_managed(Machine(), service, name, body())


def standing(host: FakeHost) -> str:
    return str((kept(host, DAEMON_STATE) or {}).get("provider_state"))


def status(service: Running, name: str) -> dict[str, Any]:
    return dict(service.admin.get(name).properties.get("status") or {})


def condition_status(service: Running, name: str, kind: str) -> str:
    return next(str(one["status"]) for one in status(service, name)["conditions"] if one["type"] == kind)


def test_daemon_applies_config_change_and_reports_it(
    service: Running, body: MakeBody, name: str, host: Machine
) -> None:
    with living(host, name):
        eventually(lambda: standing(host) == "Connected")
        version = service.admin.put(name, body(labels={"site": "north"})).properties["configVersion"]
        eventually(lambda: host.works == ["update"])
        eventually(lambda: status(service, name).get("appliedConfigVersion") == version)
        # While the job ends, the version is in effect and the condition is InProgress.
        eventually(lambda: condition_status(service, name, "ConfigApplied") == "True")
        assert condition_status(service, name, "Ready") == "True"
        service.release()


def test_daemon_unbootstraps_when_resource_is_deleted(service: Running, name: str, host: Machine) -> None:
    with living(host, name):
        eventually(lambda: standing(host) == "Connected")
        service.admin.delete(name)
        eventually(lambda: standing(host) == "Deleted")
        eventually(lambda: host.works[:1] == ["unbootstrap"])
        service.release()


def test_daemon_state_and_status_report_contain_no_secret(
    service: Running, body: MakeBody, name: str, host: Machine
) -> None:
    with living(host, name):
        eventually(lambda: standing(host) == "Connected")
        service.admin.put(name, body("canary-wrong", maxPods=23))
        eventually(lambda: (kept(host, DAEMON_STATE) or {}).get("credentials_problem"))
        eventually(lambda: "CredentialsRejected" in str(status(service, name)))
        service.release()
    assert "canary" not in str(host.read(DAEMON_STATE))
    assert "canary" not in str(status(service, name))
    assert OLD in str(host.read(CURRENT_CONFIG))
