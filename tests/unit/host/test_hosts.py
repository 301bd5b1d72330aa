"""Runs the shared suites for every simulated host; each runs the suites that it supports. A lab machine runs all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import NodeState, Phase
from aks_flex_node.host.actions import EnableUnit, MakeDirectory, RemoveTree, SetSysctl, StartUnit, WriteFile
from aks_flex_node.host.dry_run import DryHost
from aks_flex_node.host.real import RootedHost
from tests.hosts import disks, files, units
from tests.hosts.fixtures import Stand
from tests.hosts.recorded import RecordedHost

if TYPE_CHECKING:
    from pathlib import Path

PLACE = "/place"


def rooted(root: Path) -> RootedHost:
    for folder in (PLACE, "/etc/systemd/system", "/proc/sys/vm"):
        (root / folder[1:]).mkdir(parents=True)
    return RootedHost(root)


@pytest.fixture
def rooted_stand(tmp_path: Path) -> Stand:
    return Stand(rooted(tmp_path), PLACE)


@pytest.fixture
def recorded_stand() -> Stand:
    host = RecordedHost({"/etc/systemd/system/other.service": ""})
    host.apply(MakeDirectory(PLACE))
    return Stand(host, PLACE)


@pytest.fixture(params=["rooted", "dry", "recorded"])
def any_stand(request: pytest.FixtureRequest, tmp_path: Path) -> Stand:
    if request.param == "dry":
        return Stand(DryHost(rooted(tmp_path)), PLACE)
    stand = request.getfixturevalue(f"{request.param}_stand")
    assert isinstance(stand, Stand)
    return stand


class OnAnyHost:
    @pytest.fixture
    def stand(self, any_stand: Stand) -> Stand:
        return any_stand


class OnADisk:
    @pytest.fixture
    def stand(self, rooted_stand: Stand) -> Stand:
        return rooted_stand


class OnARecord:
    @pytest.fixture
    def stand(self, recorded_stand: Stand) -> Stand:
        return recorded_stand


class TestQuestions(OnAnyHost, files.Questions): ...


class TestFileActions(OnAnyHost, files.FileActions): ...


class TestEnabledUnits(OnAnyHost, units.EnabledUnits): ...


class TestLeftovers(OnADisk, disks.Leftovers): ...


class TestRefusals(OnADisk, disks.Refusals): ...


class TestOwners(OnADisk, disks.Owners): ...


class TestRunningUnits(OnARecord, units.RunningUnits): ...


def test_dry_run_applies_changes_only_in_memory(tmp_path: Path) -> None:
    below = rooted(tmp_path)
    below.apply(WriteFile("/place/file", b"old"))
    dry = DryHost(below)
    actions = (WriteFile("/place/file", b"new"), RemoveTree("/place"), SetSysctl("vm.panic_on_oom", "0"))

    for action in (*actions, EnableUnit("a.service"), StartUnit("a.service")):
        dry.apply(action)

    assert (below.read("/place/file"), below.list_dir("/proc/sys/vm")) == (b"old", ())
    assert not below.unit("a.service").enabled
    assert (dry.stat("/place"), dry.read("/proc/sys/vm/panic_on_oom")) == (None, b"0\n")
    assert dry.unit("a.service").running
    assert dry.done[:3] == list(actions)


def test_dry_run_reads_underlying_host_until_changed(tmp_path: Path) -> None:
    below = rooted(tmp_path)
    below.apply(MakeDirectory("/place/d"))
    below.apply(WriteFile("/place/d/file", b"old", 0o600))
    dry = DryHost(below)

    assert (dry.read("/place/d/file"), dry.digest("/place/d/file")) == (b"old", below.digest("/place/d/file"))
    assert (dry.stat("/place/d/file"), dry.list_dir("/place/d")) == (below.stat("/place/d/file"), ("file",))


def test_symlinks_in_rooted_host_do_not_escape_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    host = rooted(root)
    (root / "place/absolute").symlink_to(outside)
    (root / "place/upwards").symlink_to("../../outside")

    for name in ("absolute", "upwards"):
        assert host.read(f"/place/{name}/file") is None
        assert host.list_dir(f"/place/{name}") == ()


def test_unit_in_image_is_enabled_but_not_started(tmp_path: Path) -> None:
    host = rooted(tmp_path)
    host.apply(WriteFile("/etc/systemd/system/a.service", b""))
    host.apply(EnableUnit("a.service"))
    host.apply(StartUnit("a.service"))

    assert (host.live, host.unit("a.service").exists, host.unit("a.service").running) == (False, True, False)
    link = tmp_path / "etc/systemd/system/multi-user.target.wants/a.service"
    assert str(link.readlink()) == "/etc/systemd/system/a.service"


def test_record_with_any_text_of_another_server_is_read_as_written() -> None:
    host, state = RecordedHost({}), NodeState(Phase.NODE_JOINED, message='"\udcff\u2028', node="edge-1")
    node_state.write(host, "/state.json", state)
    assert node_state.read(host, "/state.json") == state
