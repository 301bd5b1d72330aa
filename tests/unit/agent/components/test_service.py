"""Tests of the agent's service and of the agent version that it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.components import service
from aks_flex_node.agent.components.catalog import ordered_agent_components
from aks_flex_node.agent.components.service import release
from aks_flex_node.agent.machine import UNIT_FILE
from aks_flex_node.agent.reconcile.resources import MANAGED_MARK, ProgramTree
from aks_flex_node.host.actions import (
    EnableUnit,
    ReloadUnits,
    Remove,
    RemoveTree,
    RestartUnit,
    StartUnit,
    StopUnit,
    WriteFile,
)
from tests.unit.agent.builders import (
    MACHINE,
    config_of,
    desired,
    empty_host,
    engine_on,
    ready_engine,
    service_of,
    text_of,
)
from tests.unit.agent.components.test_every_component import CUSTOM, DEFAULT_PLACES

if TYPE_CHECKING:
    from tests.unit.agent.config.builders import Settings

MANAGED: Settings = {"continuousMonitoring": True}
RENEWS: Settings = {**MANAGED, "agent.version": "v0.2.0"}


def unit(values: Settings | None = None, **machine: object) -> list[str]:
    config = config_of({**MANAGED, **(values or {})})
    return text_of(service.COMPONENT.desired(config, replace(MACHINE, **machine)), UNIT_FILE).splitlines()  # type: ignore[arg-type]


def test_standalone_node_has_the_service_of_the_installed_agent() -> None:
    config = config_of({"agent.version": "0.2.0"})  # only the provider of a managed node sets the agent's version
    assert release.COMPONENT.desired(config, MACHINE).resources == ()
    spec = service.COMPONENT.desired(config, MACHINE)
    assert f"ExecStart={MACHINE.program} daemon" in text_of(spec, UNIT_FILE).splitlines()
    assert service_of(spec).name == service.UNIT_NAME


def test_agent_unit_runs_the_installed_program() -> None:
    lines = unit(program="/srv/venv/bin/aks-flex-node")
    assert lines[:2] == [f"# {MANAGED_MARK}", "# Program: /srv/venv/bin/aks-flex-node"]
    assert "ExecStart=/srv/venv/bin/aks-flex-node daemon" in lines
    assert not [line for line in lines if line.startswith("ExecStartPre")]


def test_agent_unit_runs_the_launcher_when_a_version_is_configured() -> None:
    lines = unit(RENEWS, program="/srv/venv/bin/aks-flex-node")
    assert "ExecStartPre=-+/opt/aks-flex-node/agent/launch choose" in lines
    assert "ExecStart=/opt/aks-flex-node/agent/launch daemon" in lines
    assert "# Program: /srv/venv/bin/aks-flex-node" in lines


@pytest.mark.parametrize(("version", "steps"), [(0, False), (249, False), (253, False), (254, True), (257, True)])
def test_agent_unit_uses_restart_steps_if_systemd_has_them(version: int, steps: bool) -> None:
    lines = set(unit(systemd_version=version))
    assert "TimeoutStartSec=300" in lines  # a slow machine needs minutes
    assert ({"RestartSec=1", "RestartSteps=8", "RestartMaxDelaySec=120"} <= lines) is steps
    assert ("RestartSec=5" in lines) is not steps
    assert any("RestartSteps" in line for line in lines) is steps


@pytest.mark.parametrize("can_raise_limits", [False, True])
def test_agent_unit_lowers_oom_score_only_when_allowed(can_raise_limits: bool) -> None:
    assert ("OOMScoreAdjust=-500" in unit(can_raise_limits=can_raise_limits)) is can_raise_limits


def test_agent_unit_may_write_to_its_directories_and_the_metrics_directory() -> None:
    (line,) = [line for line in unit({"agent.metricsFile": "/srv/metrics/flex.prom"}) if "ReadWritePaths" in line]
    assert line == "ReadWritePaths=-/srv/metrics -/var/lib/aks-flex-node -/var/log/aks-flex-node"


def test_agent_unit_and_launcher_paths_are_configurable() -> None:
    config = config_of({**RENEWS, **CUSTOM})
    launch = text_of(release.COMPONENT.desired(config, MACHINE), "/data/programs/agent/launch")
    texts = ["\n".join(unit({**RENEWS, **CUSTOM})).replace("-/var/lib/aks-flex-node", ""), launch]
    assert not [place for place in DEFAULT_PLACES for text in texts if f"{place}/" in text or f"{place} " in text]


def test_agent_version_is_installed_as_a_program_tree() -> None:
    spec = desired(
        release.COMPONENT, {**RENEWS, "agent.sha256": {"aks-flex-node-0.2.0-linux-amd64.tar.gz": "a" * 64}}
    )
    (program,) = [one for one in spec.resources if isinstance(one, ProgramTree)]
    (artifact,) = program.artifacts
    assert (program.path, program.version) == ("/opt/aks-flex-node/agent/0.2.0", "0.2.0")
    assert artifact.url.endswith("/v0.2.0/aks-flex-node-0.2.0-linux-amd64.tar.gz")
    assert artifact.digest == f"sha256:{'a' * 64}"


def test_agent_service_restarts_only_for_another_version() -> None:
    prints = [service_of(desired(service.COMPONENT, one)).fingerprint for one in (MANAGED, RENEWS)]
    labelled = config_of({**MANAGED, "node.labels": {"a": "b"}})
    assert prints[0] != prints[1]
    assert service_of(service.COMPONENT.desired(labelled, MACHINE)).fingerprint == prints[0]


def test_agent_service_is_enabled_before_reload_and_started_last() -> None:
    host = empty_host()
    done = engine_on(host, config_of(MANAGED)).apply(service.COMPONENT)
    assert [type(action) for action in done] == [WriteFile, EnableUnit, ReloadUnits, StartUnit]
    assert engine_on(host, config_of(MANAGED)).apply(service.COMPONENT) == ()


def test_agent_service_stays_when_management_is_disabled() -> None:
    host = empty_host()
    engine_on(host, config_of(MANAGED)).apply(service.COMPONENT)
    assert engine_on(host).apply(service.COMPONENT) == ()


def test_agent_service_is_removed_with_the_node() -> None:
    host = empty_host()
    engine_on(host).apply(service.COMPONENT)
    done = engine_on(host).remove(service.COMPONENT, pytest.fail)
    assert StopUnit("aks-flex-node.service") in done
    assert Remove(UNIT_FILE) in done
    assert host.stat(UNIT_FILE) is None


def test_removing_agent_version_restarts_service_then_deletes_versions() -> None:
    host = empty_host()
    for values in (RENEWS, MANAGED):
        engine = ready_engine(host, config_of(values))
        done = [action for component in ordered_agent_components(engine.config) for action in engine.apply(component)]
    restart, removal = RestartUnit("aks-flex-node.service"), RemoveTree("/opt/aks-flex-node/agent")
    assert [action for action in done if action in {restart, removal}] == [restart, removal], "what runs stays"
    assert host.stat("/opt/aks-flex-node/agent") is None
