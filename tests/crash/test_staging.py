"""Staging that is killed at any point leaves a healthy node, and the next run completes it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.agent import staging_config
from aks_flex_node.agent.artifacts.cache import discard_staged
from aks_flex_node.agent.jobs.stage import StageJob
from aks_flex_node.agent.jobs.update.node_operations import NodeOperations
from aks_flex_node.agent.paths import STAGING_CONFIG
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile.program_stager import cache_dir, staging_folder, tree_name
from aks_flex_node.host.actions import MakeDirectory, PlaceTree, WriteFile
from tests.crash import harness, update_harness
from tests.crash.crash_points import SimulatedHost
from tests.crash.sweeps import end, points

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.settings.models import NodeConfig
    from tests.crash.crash_points import Point

CACHE = cache_dir(harness.CONFIG)
FOLDER = staging_folder(harness.CONFIG)
STATE = "/.simulated.json"


class AheadWorkshop(harness.StagingWorkshop):
    """Builds small programs ahead: a program appears when it is complete."""

    def finish(self, program: ProgramTree, seconds: float) -> None:  # noqa: ARG002
        ahead = f"{FOLDER}/{tree_name(program)}"
        if self._host.stat(ahead) is None:
            self._host.apply(MakeDirectory(FOLDER))
            self._fill(self._host.disk.at(f"{ahead}.partial"), program)
            self._host.apply(PlaceTree(f"{ahead}.partial", ahead))


def stage(host: SimulatedHost) -> list[str]:
    """Runs one staging job, as a new process does; returns the flaws afterwards."""
    cluster = update_harness.LastingCluster(host)

    def discard(_config: NodeConfig, keep: Sequence[str]) -> list[str]:
        return discard_staged(host.disk.at(FOLDER), host.disk.at(CACHE), keep)

    operations = NodeOperations(
        host,
        lambda config: harness.engine(host, config),
        ProgressReporter(),
        lambda _: cast("ApiClient", cluster),
        environment=cluster.environment,
    )
    outcome = StageJob(operations, lambda _: AheadWorkshop(host), discard).run()
    return [] if outcome.is_done else [str(outcome)]


def status(host: SimulatedHost) -> staging_config.StagingStatus:
    return staging_config.read_status(host, harness.CONFIG)


@pytest.fixture(scope="module")
def ordered(room: Path, joined: Path) -> Path:
    """Returns a node that is to stage an upgrade, and has staged another one before."""
    root = room / "to-be-staged"
    shutil.copytree(joined, root, symlinks=True)
    host = SimulatedHost(root)
    update_harness.follow(host)
    for version in ("1.34.3", "1.34.4"):
        values = {**update_harness.UPGRADE, "kubernetes.version": version}
        config = json.loads(update_harness.bundle(values, "2"))["config"]
        document = {"poolRevision": 5, "config": config}
        host.apply(WriteFile(STAGING_CONFIG, json.dumps(document).encode(), 0o600))
        assert version == "1.34.4" or stage(host) == []
    return root


@pytest.fixture(scope="module")
def killed(ordered: Path, room: Path) -> list[Point]:
    found = points(stage, ordered, room / "killed-staging")
    assert len(found) >= 10
    return found


def test_killed_staging_changes_nothing_that_the_node_uses(killed: list[Point]) -> None:
    for point in killed:
        host = SimulatedHost(point.root)
        assert update_harness.flaws(host) == [], point.name


def test_only_complete_staging_counts(killed: list[Point]) -> None:
    complete = [status(SimulatedHost(point.root)).is_complete for point in killed]
    assert complete[-1]
    assert not any(complete[:-1])


def test_staging_completes_when_rerun_after_crash(ordered: Path, killed: list[Point]) -> None:
    _, expected = end(stage, ordered)
    for point in killed:
        words, tree = end(stage, point.root)
        assert (words, harness.changes(expected, tree)) == ([], {}), point.name


def test_update_and_unbootstrap_succeed_after_killed_staging(fresh: Path, killed: list[Point]) -> None:
    clean = {path: item for path, item in harness.tree(fresh).items() if path != STATE}
    for point in killed[::3]:
        host = SimulatedHost(shutil.copytree(point.root, point.root.with_name("updated"), symlinks=True))
        update_harness.wait(host, update_harness.UPGRADE)
        assert update_harness.update(host) == [], point.name
        shutil.rmtree(host.disk.root)
        words, tree = end(harness.reset, point.root)
        left = {path: item for path, item in tree.items() if path != STATE}
        assert (words, harness.changes(clean, left)) == ([], {}), point.name
