"""An Azure Arc registration that is killed at any point is completed or removed by the next run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.arc.registration import ArcRegistration
from aks_flex_node.host.actions import MakeDirectory
from aks_flex_node.retry import RetryDeadline
from tests.arc_machines import AZURE, ArcSystem, Azure, config, seed
from tests.crash import harness
from tests.crash.crash_points import PhotographedHost, SimulatedHost
from tests.crash.sweeps import mistakes, points

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tests.crash.crash_points import Point

NOTHING: dict[str, object] = {"machines": {}, "roles": {}}


def registration(host: SimulatedHost) -> ArcRegistration:
    """Returns the registration of a new process. Snapshots include Azure's state at the same moment."""
    take = host.take if isinstance(host, PhotographedHost) else lambda _: None
    azure = Azure(host.disk.root, lambda call: take(f"before {call}"))
    host.system = ArcSystem(host.disk.root, azure)
    clock = azure.clock
    return ArcRegistration(
        harness.engine(host, config()),
        lambda _: None,
        azure,
        lambda seconds: RetryDeadline(seconds, now=clock.now, sleep=clock.sleep),
    )


def register(host: SimulatedHost) -> list[str]:
    registration(host).run()
    return []


def take_back(host: SimulatedHost) -> list[str]:
    return registration(host).unregister()


@pytest.fixture(scope="module")
def machine(room: Path) -> Path:
    """Returns a machine without Arc, on which the agent's directory exists."""
    root = seed(room / "arc-machine")
    (root / "var/lib").mkdir(exist_ok=True)
    SimulatedHost(root).apply(MakeDirectory("/var/lib/aks-flex-node", 0o700))
    (root / AZURE).write_text(json.dumps(NOTHING, indent=1, sort_keys=True))
    return root


@pytest.fixture(scope="module")
def registered(room: Path, machine: Path) -> Path:
    root = Path(shutil.copytree(machine, room / "arc-registered", symlinks=True))
    register(SimulatedHost(root))
    return root


@pytest.fixture(scope="module")
def killed(room: Path, machine: Path) -> list[Point]:
    return points(register, machine, room / "arc-killed")


def test_arc_registration_completes_when_rerun_after_crash(
    registered: Path, killed: list[Point], pool: Executor
) -> None:
    assert list(mistakes(pool, killed, register, harness.tree(registered))) == []


def test_killed_arc_registration_can_be_undone_locally_and_in_azure(
    machine: Path, killed: list[Point], pool: Executor
) -> None:
    assert list(mistakes(pool, killed, take_back, harness.tree(machine))) == []


def test_arc_unregistration_completes_when_rerun_after_crash(
    room: Path, machine: Path, registered: Path, pool: Executor
) -> None:
    leaving = points(take_back, registered, room / "arc-leaving")
    assert list(mistakes(pool, leaving, take_back, harness.tree(machine))) == []


def test_operator_token_is_on_disk_only_while_azcmagent_runs(killed: list[Point]) -> None:
    holding = [point.name for point in killed if b"operators-token" in _all_files(point.root)]
    assert holding
    assert all("azcmagent" in name or "Azure Arc" in name or "arc.json" in name for name in holding), holding


def _all_files(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink())
