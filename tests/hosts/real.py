"""The suite for the machine that it runs on, as root. The lab's tests run it in a lab machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.host.real import RealHost
from tests.hosts import disks, files, machines, units
from tests.hosts.fixtures import Stand

if TYPE_CHECKING:
    from pathlib import Path

if "AKS_FLEX_MAY_CHANGE_THIS_MACHINE" not in os.environ:
    pytest.exit("These tests change the machine that they run on. Run tests/lab/test_hosts.py instead.", 2)


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(RealHost(), str(tmp_path))


class TestQuestions(files.Questions): ...


class TestFileActions(files.FileActions): ...


class TestLeftovers(disks.Leftovers): ...


class TestRefusals(disks.Refusals): ...


class TestOwners(disks.Owners): ...


class TestEnabledUnits(units.EnabledUnits): ...


class TestRunningUnits(units.RunningUnits): ...


class TestLiveUnits(machines.LiveUnits): ...


class TestMounts(machines.Mounts): ...


class TestAttributes(machines.Attributes): ...


class TestKernel(machines.Kernel): ...


class TestGroups(machines.Groups): ...
