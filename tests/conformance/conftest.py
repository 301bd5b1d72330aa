"""Fixtures: a cluster of two nodes at different sites, with a cluster network and the images of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.machines.base_system import DebianRelease
from tests.conformance.images import TESTS
from tests.conformance.suite import prepare_cluster
from tests.harness import Lines

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


IMAGES = (f"{TESTS}/agnhost", f"{TESTS}/busybox", f"{TESTS}/nonewprivs", "pause")  # of the tests of `make test`


@pytest.fixture(scope="session")
def nodes(lab: Lab) -> list[EdgeMachine]:
    with lab.exclusive():
        machines = [lab.inventory.add(f"node-{n}", DebianRelease.BOOKWORM, f"site-{n}") for n in (1, 2)]
    prepare_cluster(lab, machines, Lines(), IMAGES)
    return machines
