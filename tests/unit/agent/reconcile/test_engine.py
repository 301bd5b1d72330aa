"""Tests of the engine: order of actions, preparation, and the ledger after a failure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.components import runc
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.reconcile import planner
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.observer import find_damage
from aks_flex_node.agent.reconcile.program_stager import artifact_sources, program_tree
from aks_flex_node.agent.reconcile.resources import Directory, File, Service, Spec, Symlink, make_service
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import PlaceTree, Remove, StartUnit, WriteFile
from tests.unit.agent.builders import MACHINE, Ready, config_of, empty_host, engine_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.reconcile.observer import Facts
    from aks_flex_node.host.actions import Action

FILE = File("/etc/thing", b"content")
SPEC = Spec((FILE, Service("thing.service", (FILE.path,), "print")))


def component(spec: Spec = SPEC, seconds: float = 300.0) -> Component:
    return Component("thing", "the thing", lambda _config, _machine: spec, timeout_seconds=seconds)


def test_apply_reaches_the_desired_state_and_is_idempotent() -> None:
    host = empty_host()
    engine = engine_on(host)
    assert [str(action) for action in engine.apply(component())] == [
        "write /etc/thing (0644, 7 bytes)",
        "enable thing.service at boot",
        "start thing.service",
    ]
    assert engine.apply(component()) == ()
    assert engine.plan(component()).actions == ()


def test_plan_changes_nothing() -> None:
    host = empty_host()
    engine_on(host).plan(component())
    assert host.done == []


def test_partially_failed_apply_is_completed_by_the_next_run() -> None:
    host = empty_host()
    host.refuses = lambda action: isinstance(action, StartUnit)
    with pytest.raises(MachineError):
        engine_on(host).apply(component())
    host.refuses = None
    assert [str(action) for action in engine_on(host).apply(component())] == ["start thing.service"]


def test_missed_service_restart_is_made_by_the_next_run() -> None:
    host = empty_host()
    engine_on(host).apply(component())
    newer = File("/etc/thing", b"newer")
    spec = Spec((newer, make_service("thing.service", (newer,))))
    host.apply(WriteFile("/etc/thing", b"newer"))  # here the machine crashed
    assert [str(action) for action in engine_on(host).apply(component(spec))] == ["restart thing.service"]


def test_prepare_stages_only_missing_programs() -> None:
    host = empty_host()
    engine = engine_on(host)
    workshop = engine.stager = Ready(host)
    engine.apply(runc.COMPONENT)
    engine.prepare(SEQUENCE)
    assert workshop.prepared == ["containerd", "kubernetes", "cni", "npd", "kubernetes"]
    assert host.stat("/opt/aks-flex-node/kubernetes") is not None


def test_failed_removal_continues_and_remains_in_the_ledger() -> None:
    host = empty_host()
    spec = Spec((FILE, Symlink("/etc/link", "/there"), Directory("/etc/folder")))
    engine, told = engine_on(host), list[str]()
    engine.apply(component(spec))

    def removal(facts: Facts) -> Iterator[Action]:
        yield PlaceTree("/etc/.a", "/etc/a")
        yield from planner.removal(facts)

    host.refuses = lambda action: isinstance(action, PlaceTree)
    failing = Component("thing", "the thing", lambda _config, _machine: spec, removal=removal)
    done = engine.remove(failing, told.append)
    assert [action.path for action in done if isinstance(action, Remove)] == [
        "/etc/folder",
        "/etc/link",
        "/etc/thing",
    ]
    assert told == ["The disk is full."]
    assert not engine.ledger.owned("thing").empty
    host.refuses = None
    engine.remove(component(spec), told.append)
    assert engine.ledger.owned("thing").empty


@pytest.mark.parametrize(("source", "damage"), [({}, "damaged"), ({"digest_source": "mirror"}, "not verified")])
def test_program_without_a_trusted_source_of_its_digest_is_replaced(source: dict[str, str], damage: str) -> None:
    host = empty_host()
    engine = engine_on(host)
    stager = engine.stager = Ready(host)
    engine.apply(runc.COMPONENT)
    (program,) = runc.desired(engine.config, MACHINE).programs
    path = f"{program.path}/.manifest.json"
    origin = {"url": "", "digest": "sha256:0", "wanted": [], **source}
    manifest = {**json.loads(host.read(path) or b""), "artifacts": [origin]}
    host.apply(WriteFile(path, json.dumps(manifest).encode(), 0o644))

    engine.prepare((runc.COMPONENT,))

    assert stager.prepared == ["runc"]
    assert damage in find_damage(host, program, engine.ledger.owned("runc"))


def test_artifact_sources_come_from_the_config() -> None:
    config = config_of({"artifacts.baseURL": "https://mirror:8080", "proxy.https": "http://proxy:3128"})
    told = artifact_sources(config)
    assert (told.base_url, told.https_proxy, told.parallel) == ("https://mirror:8080", "http://proxy:3128", 4)
    (program,) = runc.desired(config, MACHINE).programs
    assert str(program_tree(program).staging) == "/opt/aks-flex-node/runc/.1.5.2.flex-new"
