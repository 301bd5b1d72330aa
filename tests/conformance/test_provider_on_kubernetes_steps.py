"""The steps of docs/how-to/provider-on-kubernetes.md after the deployment, exactly as they are written."""

from __future__ import annotations

import os
import re
import textwrap
from typing import TYPE_CHECKING

import pytest
import yaml

from aks_flex_lab import network
from aks_flex_lab.processes import run
from release.checkout import HOME
from tests.provider_deployment import MANIFESTS, deployed_provider

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.images.builder import OciImage
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

PAGE = HOME / "docs/how-to/provider-on-kubernetes.md"
CLUSTER_ID = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/documented"
    "/providers/Microsoft.ContainerService/managedClusters/documented"
)


def documented_script() -> str:
    """Returns the block that makes a kubeconfig and adds the cluster, with the ID of a cluster filled in."""
    [block] = re.findall(r"^ {8}umask 077\n(?: {8}.*\n)+", PAGE.read_text(), re.MULTILINE)
    assert block.count("CLUSTER-ID") == 1
    return textwrap.dedent(block).replace("CLUSTER-ID", CLUSTER_ID)


@pytest.fixture
def administrator(lab: Lab, tmp_path: Path) -> dict[str, str]:
    """Returns the environment of an administrator, whose kubeconfig names an address that pods reach, too."""
    config = yaml.safe_load(lab.cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://{network.API}"
    file = tmp_path / "administrator.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return {
        "PATH": f"{lab.cluster.kubectl.parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(file),
        "HOME": str(tmp_path),
    }


def test_cluster_is_added_with_the_documented_commands(
    lab: Lab, nodes: list[EdgeMachine], tmp_path: Path, image: OciImage, administrator: dict[str, str]
) -> None:
    with deployed_provider(lab, tmp_path, image, 1) as (deployment, _):
        for name in ("10-namespace", "20-rbac"):
            lab.cluster.run("apply", "-f", str(MANIFESTS / f"{name}.yaml"))
        # The lab's provider has marked the cluster as its own.
        lab.cluster.run("-n", "kube-system", "delete", "secret", "aks-flex-rp", "--ignore-not-found")

        script = lab.network.cloud.command("bash", "-e", "-c", documented_script())
        done = run(*script, cwd=tmp_path, env=administrator, timeout=300)

        assert (tmp_path / "kubeconfig").stat().st_mode & 0o077 == 0
        listed = deployment.kubectl("exec", "deploy/aks-flex-rp", "--", "aks-flex-rp", "cluster", "list")
        assert CLUSTER_ID in listed, done.out + done.err
