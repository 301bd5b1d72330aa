"""Fixtures: a cluster of two nodes at different sites, with a cluster network and the images of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rp_image.image import ImageInputs, build_image, image_cache
from rp_image.image_packages import debian_archive

from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.tools.recipes import machine_arch
from tests.agents import flex, prepare, web_pod
from tests.conformance.images import TESTS
from tests.conformance.suite import bridge, prepare_cluster
from tests.harness import Lines

if TYPE_CHECKING:
    from aks_flex_lab.images.builder import OciImage
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


IMAGES = (f"{TESTS}/agnhost", f"{TESTS}/busybox", f"{TESTS}/nonewprivs", "pause")  # of the tests of `make test-full`


EARLY_POD = "early"


@pytest.fixture(scope="session")
def machines(lab: Lab) -> list[EdgeMachine]:
    with lab.exclusive():
        return [lab.inventory.add(f"node-{n}", DebianRelease.BOOKWORM, f"site-{n}") for n in (1, 2)]


@pytest.fixture(scope="session")
def early_container(lab: Lab, machines: list[EdgeMachine]) -> str:
    """Starts a pod on a node before the cluster has a network plugin; returns the ID of its container."""
    first = machines[0]
    prepare(lab, first)
    flex(first, "agent")
    lab.cluster.apply(web_pod(EARLY_POD, first.name, app=EARLY_POD))
    lab.cluster.run("wait", "pod", EARLY_POD, "--for=condition=Ready", "--timeout=60s", timeout=90)
    status = lab.cluster.get("pod", EARLY_POD)["status"]
    assert status["podIP"] in bridge(first)
    return str(status["containerStatuses"][0]["containerID"])


@pytest.fixture(scope="session")
def nodes(
    lab: Lab,
    machines: list[EdgeMachine],
    early_container: str,  # unused: the pod must start before the plugin
) -> list[EdgeMachine]:
    prepare_cluster(lab, machines, Lines(), IMAGES)
    return machines


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> OciImage:
    """Builds the image of the provider."""
    work = tmp_path_factory.mktemp("wheels")
    return build_image(ImageInputs.fetch(machine_arch(), image_cache(), work, debian_archive())).image
