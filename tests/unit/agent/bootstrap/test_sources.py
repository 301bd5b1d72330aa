"""Tests of a join with a source of its own: what a new source has to define, and when it is called."""

from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent import context
from aks_flex_node.agent.bootstrap import workflow
from aks_flex_node.agent.bootstrap.phases import JOIN_PHASES, choose_phases
from aks_flex_node.agent.bootstrap.sources.source import JoinSource
from aks_flex_node.agent.bootstrap.workflow import Join, bootstrap_node
from aks_flex_node.agent.context import ConfigSelection
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.errors import FlexError, MachineError
from tests.unit.agent.builders import empty_host
from tests.unit.agent.config.builders import load_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.bootstrap.phases import JoinPhase
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.settings.models import NodeConfig

METHODS = {
    "policy": "check_policy",
    "cluster": "complete_from_cluster",
    "identity": "check_identity",
    "preflight": "check_machine",
    "sign-in": "sign_in",
    "store": "store",
    "artifacts": "install",
    "daemon": "set_up_daemon",
}
FETCHED = load_plain(json.dumps({"config": {"node": {"maxPods": 7}}}), "another source")


class OtherSource(JoinSource):
    """A source that defines no more than a source must, and remembers which failures it explained."""

    explained: str = ""

    def fetch(self, progress: ProgressReporter) -> LoadedConfig:  # noqa: ARG002
        self.loaded = FETCHED
        return FETCHED

    @contextmanager
    def explain_failure(self, phase: JoinPhase, config: NodeConfig) -> Iterator[None]:
        assert config is FETCHED.config
        try:
            yield
        except FlexError:
            self.explained = phase.name
            raise


class Lines(ProgressReporter):
    def __init__(self) -> None:
        self.failed: list[str] = []

    def step_failed(self, name: str, error: FlexError) -> None:  # noqa: ARG002
        self.failed.append(name)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> OtherSource:
    """A source whose join consists of phases that do nothing."""
    host = empty_host()
    source = OtherSource(host, ConfigSelection())
    monkeypatch.setattr(context, "require_root", lambda: None)
    monkeypatch.setattr(workflow, "RealHost", lambda: host)
    monkeypatch.setattr(workflow, "exclusive", nullcontext)
    monkeypatch.setattr(workflow, "select_source", lambda *_: source)
    monkeypatch.setattr(Join, "describe_result", lambda *_: ())
    for method in ("begin", *METHODS.values()):
        monkeypatch.setattr(Join, method, lambda _: None)
    return source


def test_join_returns_the_configuration_of_a_new_source(source: OtherSource) -> None:
    assert bootstrap_node(source.selection, ProgressReporter()) is FETCHED.config
    assert source.explained == ""


@pytest.mark.parametrize("phase", METHODS)
def test_failure_of_each_phase_is_explained_and_shown_by_its_name(
    phase: str, source: OtherSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Join) -> None:
        raise MachineError("disk-full", "No space is left.")

    assert phase in {each.name for each in JOIN_PHASES}
    monkeypatch.setattr(Join, METHODS[phase], fail)
    progress = Lines()
    with pytest.raises(MachineError):
        bootstrap_node(source.selection, progress)
    assert source.explained == phase
    assert progress.failed == ([] if phase == "artifacts" else [phase])  # the join shows its own phases


def test_skipped_preflight_checks_nothing(source: OtherSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Join) -> None:
        raise MachineError("preflight-failed", "It ran.")

    monkeypatch.setattr(Join, "check_machine", fail)
    bootstrap_node(source.selection, ProgressReporter(), chosen=choose_phases(skip=("preflight",)))
