"""An update that is killed at any point is completed or rolled back by the next run."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.crash import harness, update_harness
from tests.crash.crash_points import SimulatedHost
from tests.crash.sweeps import end, mistakes, points

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from pathlib import Path

    from tests.crash.sweeps import Copy

CASES = {
    "setting": update_harness.SETTING,
    "upgrade": update_harness.UPGRADE,
    "rollback": update_harness.ROLLBACK,
    "rotation": update_harness.ROTATION,
}
RESULTS = {"setting": "done", "upgrade": "done", "rollback": "rolled-back", "rotation": "done"}


@pytest.fixture
def waiting(room: Path, joined: Path) -> Callable[[str], Path]:
    """Yields a function that creates a node with a pending configuration."""

    def make(case: str) -> Path:
        root = room / f"waiting-{case}"
        if not root.exists():
            shutil.copytree(joined, root, symlinks=True)
            update_harness.follow(SimulatedHost(root))
            update_harness.wait(SimulatedHost(root), CASES[case])
        return root

    return make


@pytest.mark.parametrize("case", CASES)
def test_update_finishes_with_expected_result_and_healthy_node(
    case: str, waiting: Callable[[str], Path], copy: Copy
) -> None:
    host = SimulatedHost(copy(waiting(case)))
    assert update_harness.run(host).result.value == RESULTS[case]
    assert update_harness.flaws(host) == []


@pytest.mark.parametrize(
    ("case", "every"),
    [
        *((case, 3 if case == "rollback" else 1) for case in CASES),
        pytest.param("rollback", 1, marks=pytest.mark.long),
    ],
)
def test_update_completes_when_rerun_after_crash(
    case: str, every: int, waiting: Callable[[str], Path], room: Path, pool: Executor
) -> None:
    """All files and the Node are the same as after an update without a crash."""
    _, expected = end(update_harness.update, waiting(case))
    killed = points(update_harness.update, waiting(case), room / f"killed-{case}-{every}")
    assert list(mistakes(pool, killed[::every], update_harness.update, expected)) == []


def test_unbootstrap_undoes_killed_upgrade(
    fresh: Path, waiting: Callable[[str], Path], room: Path, pool: Executor
) -> None:
    killed = points(update_harness.update, waiting("upgrade"), room / "killed-for-reset")
    expected = {path: item for path, item in harness.tree(fresh).items() if path != "/.simulated.json"}
    wrong = [
        (name, words, {path: change for path, change in changed.items() if path != "/.simulated.json"})
        for name, words, changed in mistakes(pool, killed[::5], harness.reset, expected)
    ]
    assert [one for one in wrong if one[1] or one[2]] == []


@pytest.mark.parametrize("case", ["upgrade", "rollback"])
def test_node_is_consistent_after_killed_update_is_superseded(
    case: str, waiting: Callable[[str], Path], room: Path, pool: Executor
) -> None:
    killed = points(update_harness.update, waiting(case), room / f"overtaken-{case}")
    ends = pool.map(partial(end, update_harness.overtaken), [point.root for point in killed[::3]])
    assert [(point.name, words) for point, (words, _) in zip(killed[::3], ends, strict=True) if words] == []
