"""Tests of the drift monitor on the machine, of the scheduler's decisions, and of conflicts with other processes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.agent.components import vpn
from aks_flex_node.agent.components.vpn import record_file
from aks_flex_node.agent.daemon.drift_monitor import (
    FAULT_SECONDS,
    MAX_REPAIRS,
    Conflicts,
    DriftMonitor,
)
from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.job_records.update_journal import UpdateJournal, UpdateStage
from aks_flex_node.agent.jobs.registry import IGNORE_OPTION
from aks_flex_node.agent.jobs.repair import components_to_repair, store_address
from aks_flex_node.agent.managed_node import ManagedNode
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.vpn.local_state import settings_fingerprint
from aks_flex_node.host.actions import WriteFile
from tests.unit.agent.builders import DATA, config_of
from tests.unit.agent.config.builders import CLUSTER_ID, Settings
from tests.unit.agent.daemon.fakes import FakeProvider, Quiet
from tests.unit.agent.jobs.update.harness import Scene

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.drift.detection import Drift
    from aks_flex_node.agent.reconcile.engine import Engine


TOML = "/etc/containerd/config.toml"


def monitor_on(engine: Engine) -> DriftMonitor:
    return DriftMonitor(ManagedNode(engine, cast("ApiClient", Quiet()), "edge-1", FakeProvider().real), Conflicts())


def changed(scene: Scene) -> DriftMonitor:
    """Returns the monitor of a machine on which another program changed a file."""
    scene.host.apply(WriteFile(TOML, b"other\n"))
    return monitor_on(scene.engine(scene.config))


@pytest.fixture
def drift() -> DriftMonitor:
    """A monitor that has noticed one changed file, and nothing else."""
    monitor = changed(Scene())
    assert TOML in subjects(monitor.check())
    monitor.found = tuple(one for one in monitor.found if one.subject == TOML)
    return monitor


def subjects(drift: tuple[Drift, ...]) -> list[str]:
    return [one.subject for one in drift]


def repair(drift: DriftMonitor, times: int = MAX_REPAIRS) -> None:
    for _ in range(times):
        assert drift.begin_repair() == (), "the repair that gives it up still repairs it"
        drift.end_repair()


@pytest.mark.parametrize("stage", UpdateStage)
def test_changes_of_an_unverified_update_are_not_drift(stage: UpdateStage) -> None:
    scene = Scene()
    update_journal.JOURNAL.write(scene.host, UpdateJournal("2 x", "2", stage))
    drift = changed(scene)
    prepares = stage is UpdateStage.PREPARING
    assert (TOML in subjects(drift.check())) == prepares
    assert bool(drift.repairable_subjects) == prepares, "or a repair would undo it"


def test_incomplete_configuration_is_reported_and_nothing_is_compared() -> None:
    drift = changed(Scene())
    drift.node.engine.config_complete = False
    assert [one.subject for one in drift.check()] == [CURRENT_CONFIG]
    assert not drift.repairable_subjects


BEHIND_VPN: Settings = {"azure.vpn.enabled": True, "azure.targetCluster.resourceId": CLUSTER_ID}


def test_configured_vpn_that_does_not_exist_is_due() -> None:
    scene = Scene(BEHIND_VPN)
    drift = changed(scene)
    drift.check()
    assert drift.vpn_due
    scene.host.apply(WriteFile(record_file(scene.config), record_of(settings_fingerprint(scene.config)), 0o600))
    drift.check()
    assert not drift.vpn_due


def record_of(settings: str) -> bytes:
    return json.dumps({"settings": settings}).encode()


def test_vpn_missing_from_the_config_is_drift_but_not_repaired() -> None:
    """It was set by options of the join that the provider does not know, and may be the only route to the cluster."""
    scene = Scene(BEHIND_VPN)
    without = config_of({"kubernetes.version": "1.33.13"})
    drift = monitor_on(scene.engine(without))
    drift.check()
    drift.found = tuple(one for one in drift.found if one.component == "vpn")
    assert [one.subject for one in drift.found] == [vpn.NAME, vpn.UNIT]
    assert not drift.repairable_subjects
    assert vpn.COMPONENT not in components_to_repair(scene.engine(without))
    assert vpn.COMPONENT in components_to_repair(scene.engine(scene.config))


def test_store_address_records_the_machine_address_in_the_node_state() -> None:
    scene = Scene()
    engine, path = scene.engine(scene.config), f"{DATA}/state.json"
    engine.machine = replace(engine.machine, address="192.168.100.7")
    store_address(engine)
    known = node_state.read(scene.host, path)
    assert (known.address, known.phase) == ("192.168.100.7", node_state.Phase.NODE_JOINED)


def test_drift_that_went_away_and_came_back_is_new_again() -> None:
    scene = Scene()
    before = scene.host.read(TOML) or b""
    drift = changed(scene)
    assert TOML in subjects(drift.check())
    assert drift.check() == ()
    assert TOML in subjects(drift.found), "it is not new any more, but still drift"
    scene.host.apply(WriteFile(TOML, before))
    assert drift.check() == ()
    scene.host.apply(WriteFile(TOML, b"other\n"))
    assert TOML in subjects(drift.check())


def test_drift_of_unowned_files_is_reported_and_not_repaired(drift: DriftMonitor) -> None:
    drift.found = tuple(replace(one, foreign=True) for one in drift.found)
    assert TOML not in drift.repairable_subjects
    assert subjects(drift.found) == [TOML]


def test_a_repair_ignores_what_was_given_up_and_counts_the_rest(drift: DriftMonitor) -> None:
    repair(drift)
    assert drift.conflicting_subjects == (TOML,)
    assert TOML not in drift.repairable_subjects
    assert drift.begin_repair() == (f"{IGNORE_OPTION}{TOML}",)


def test_fault_that_repairs_do_not_remove_is_soon_repaired_again(drift: DriftMonitor) -> None:
    drift.found = tuple(replace(one, fault=True) for one in drift.found)
    repair(drift)
    assert drift.repairable_subjects == set()
    assert drift.conflicting_subjects == (), "no other program changes it"
    now = drift.node.now()
    assert drift.conflicts.ignored_subjects(now + FAULT_SECONDS + 1, frozenset((TOML,))) == frozenset()
    assert drift.conflicts.ignored_subjects(now + FAULT_SECONDS + 1) == {TOML}


HOUR = 3600.0
PATH = "/etc/containerd/config.toml"


def repaired_at(*moments: float) -> Conflicts:
    fights = Conflicts("7")
    for moment in moments:
        fights = fights.with_repairs([PATH], moment)
    return fights


def test_two_repairs_per_hour_are_not_a_conflict() -> None:
    fights = repaired_at(0.0, 1800.0, 3700.0, 5600.0, 7500.0)
    assert fights.ignored_subjects(7500.0) == frozenset()


def test_third_repair_within_an_hour_suspends_repair_for_an_hour() -> None:
    fights = repaired_at(0.0, 1000.0, 2000.0)
    assert fights.ignored_subjects(2000.0) == {PATH}
    assert fights.ignored_subjects(2000.0 + HOUR - 1) == {PATH}
    assert fights.ignored_subjects(2000.0 + HOUR) == frozenset()


def test_repair_count_restarts_after_the_suspension() -> None:
    fights = repaired_at(0.0, 1.0, 2.0, 4000.0, 4001.0)
    assert fights.ignored_subjects(4001.0) == frozenset()
    assert fights.with_repairs([PATH], 4002.0).ignored_subjects(4002.0) == {PATH}


def test_conflict_suspends_repair_only_for_its_own_path() -> None:
    fights = repaired_at(0.0, 1.0).with_repairs([PATH, "/etc/other"], 2.0)
    assert fights.ignored_subjects(3.0) == {PATH}


def test_new_config_clears_conflicts() -> None:
    fights = repaired_at(0.0, 1.0, 2.0)
    assert fights.for_configuration("7").ignored_subjects(3.0) == {PATH}
    assert fights.for_configuration("8").ignored_subjects(3.0) == frozenset()
    assert fights.for_configuration("8").configuration == "8"


def test_clock_set_to_an_earlier_time_suspends_no_repairs() -> None:
    assert repaired_at(10 * HOUR, 10 * HOUR + 1, 10 * HOUR + 2).ignored_subjects(0.0) == frozenset()


def test_old_conflicts_are_discarded() -> None:
    fights = repaired_at(0.0, 1.0, 2.0).with_repairs(["/etc/other"], 9 * HOUR)
    assert (fights.given_up, list(fights.repaired)) == ({}, ["/etc/other"])
