"""Whoever is killed while a VPN is made or taken away: the next one finishes it, and Azure has nothing twice."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.crash import vpns, world
from tests.crash.crashing import SimulatedHost
from tests.crash.sweeps import mistakes, points
from tests.unit.agent.vpn.azures import GATEWAY

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from tests.crash.crashing import Point


@pytest.fixture(scope="module")
def start(room: Path) -> Path:
    return vpns.seed(room / "vpn-start")


@pytest.fixture(scope="module")
def connected(room: Path, start: Path) -> Path:
    place = shutil.copytree(start, room / "vpn-connected", symlinks=True)
    assert vpns.connect(SimulatedHost(place)) == []
    return place


@pytest.fixture(scope="module")
def left(room: Path, connected: Path) -> Path:
    place = shutil.copytree(connected, room / "vpn-left", symlinks=True)
    assert vpns.leave(SimulatedHost(place)) == []
    return place


@pytest.fixture(scope="module")
def killed(room: Path, start: Path) -> list[Point]:
    return points(vpns.connect, start, room / "vpn-killed")


def gateway(root: Path) -> dict[str, object]:
    documents = json.loads((root / vpns.AZURE).read_text())
    return dict(documents[GATEWAY]["properties"]["vpnClientConfiguration"])


def test_leaving_leaves_nothing_here_and_nothing_of_us_in_azure(start: Path, left: Path) -> None:
    assert set(world.changes(world.tree(start), world.tree(left))) == {f"/{vpns.AZURE}"}
    assert gateway(left)["vpnClientRootCertificates"] == []


def test_the_next_run_finishes_one_that_was_killed(connected: Path, killed: list[Point], pool: Executor) -> None:
    """It ends with what a run without a crash ends with: one gateway, one certificate on it, one tunnel."""
    assert list(mistakes(pool, killed, vpns.connect, world.tree(connected))) == []


def test_leaving_after_a_crash_leaves_nothing(start: Path, killed: list[Point], pool: Executor) -> None:
    """What Azure had made by then may be there, so only this machine is compared, and its certificate looked for."""
    wrong = [(name, words) for name, words, _ in mistakes(pool, killed, vpns.leave, {}) if words]
    assert wrong == []
    for point in killed[:: max(1, len(killed) // 8)]:
        copy = shutil.copytree(point.root, point.root.with_name("vpn-leaving"), symlinks=True)
        vpns.leave(SimulatedHost(copy))
        assert set(world.changes(world.tree(start), world.tree(copy))) <= {f"/{vpns.AZURE}"}, point.name
        if (copy / vpns.AZURE).exists() and GATEWAY in json.loads((copy / vpns.AZURE).read_text()):
            assert gateway(copy)["vpnClientRootCertificates"] == [], point.name
        shutil.rmtree(copy)


def test_leaving_that_was_killed_is_finished_by_the_next(
    room: Path, connected: Path, left: Path, pool: Executor
) -> None:
    cut = points(vpns.leave, connected, room / "vpn-cut-leaves")
    assert list(mistakes(pool, cut, vpns.leave, world.tree(left))) == []


def test_a_tunnel_that_is_gone_is_brought_back(room: Path, connected: Path) -> None:
    copy = shutil.copytree(connected, room / "vpn-damaged", symlinks=True)
    (copy / "var/lib/aks-flex-node/vpn/client.conf").unlink()
    assert vpns.connect(SimulatedHost(copy)) == []
    assert world.changes(world.tree(connected), world.tree(copy)) == {}
