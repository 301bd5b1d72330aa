"""When a VPN connect or disconnect is killed, the next run completes it, without duplicates in Azure."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.crash import harness, vpn_harness
from tests.crash.crash_points import SimulatedHost
from tests.crash.sweeps import mistakes, points
from tests.unit.agent.vpn.fakes import GATEWAY

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from tests.crash.crash_points import Point


@pytest.fixture(scope="module")
def start(room: Path) -> Path:
    return vpn_harness.seed(room / "vpn-start")


@pytest.fixture(scope="module")
def connected(room: Path, start: Path) -> Path:
    place = shutil.copytree(start, room / "vpn-connected", symlinks=True)
    assert vpn_harness.connect(SimulatedHost(place)) == []
    return place


@pytest.fixture(scope="module")
def left(room: Path, connected: Path) -> Path:
    place = shutil.copytree(connected, room / "vpn-left", symlinks=True)
    assert vpn_harness.leave(SimulatedHost(place)) == []
    return place


@pytest.fixture(scope="module")
def killed(room: Path, start: Path) -> list[Point]:
    return points(vpn_harness.connect, start, room / "vpn-killed")


def gateway(root: Path) -> dict[str, object]:
    documents = json.loads((root / vpn_harness.AZURE).read_text())
    return dict(documents[GATEWAY]["properties"]["vpnClientConfiguration"])


def test_vpn_disconnect_removes_local_state_and_azure_root_certificate(start: Path, left: Path) -> None:
    assert set(harness.changes(harness.tree(start), harness.tree(left))) == {f"/{vpn_harness.AZURE}"}
    assert gateway(left)["vpnClientRootCertificates"] == []


def test_vpn_connect_completes_when_rerun_after_crash(connected: Path, killed: list[Point], pool: Executor) -> None:
    """The result is the same as without a crash: one gateway, one certificate on it, one tunnel."""
    assert list(mistakes(pool, killed, vpn_harness.connect, harness.tree(connected))) == []


def test_vpn_disconnect_after_killed_connect_removes_everything(
    start: Path, killed: list[Point], pool: Executor
) -> None:
    """Resources in Azure may remain, so only the machine and its certificate are checked."""
    wrong = [(name, words) for name, words, _ in mistakes(pool, killed, vpn_harness.leave, {}) if words]
    assert wrong == []
    for point in killed[:: max(1, len(killed) // 8)]:
        copy = shutil.copytree(point.root, point.root.with_name("vpn-leaving"), symlinks=True)
        vpn_harness.leave(SimulatedHost(copy))
        assert set(harness.changes(harness.tree(start), harness.tree(copy))) <= {f"/{vpn_harness.AZURE}"}, point.name
        if (copy / vpn_harness.AZURE).exists() and GATEWAY in json.loads((copy / vpn_harness.AZURE).read_text()):
            assert gateway(copy)["vpnClientRootCertificates"] == [], point.name
        shutil.rmtree(copy)


def test_vpn_disconnect_completes_when_rerun_after_crash(
    room: Path, connected: Path, left: Path, pool: Executor
) -> None:
    cut = points(vpn_harness.leave, connected, room / "vpn-cut-leaves")
    assert list(mistakes(pool, cut, vpn_harness.leave, harness.tree(left))) == []


def test_vpn_connect_restores_deleted_client_config(room: Path, connected: Path) -> None:
    copy = shutil.copytree(connected, room / "vpn-damaged", symlinks=True)
    (copy / "var/lib/aks-flex-node/vpn/client.conf").unlink()
    assert vpn_harness.connect(SimulatedHost(copy)) == []
    assert harness.changes(harness.tree(connected), harness.tree(copy)) == {}
