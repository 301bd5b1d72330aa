"""Tests of the provider's kustomize base and overlay with the real kubectl, without a cluster."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from aks_flex_lab.layout import lab_layout
from aks_flex_lab.processes import run
from aks_flex_lab.tools.toolbox import Toolbox
from release.checkout import HOME

if TYPE_CHECKING:
    from pathlib import Path

MANIFESTS = HOME / "packaging" / "kubernetes"


def built(overlay: Path) -> dict[str, dict[str, Any]]:
    """Returns the objects that `kubectl apply -k` applies, by kind."""
    kubectl = Toolbox(lab_layout().cache).path("kubernetes", "kubectl")
    documents = list(yaml.safe_load_all(run(kubectl, "kustomize", overlay).out))
    assert len({each["kind"] for each in documents}) == len(documents)
    return {each["kind"]: each for each in documents}


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    """Returns an overlay as users make it: a copy of the example."""
    shutil.copytree(MANIFESTS, tmp_path / "kubernetes")
    return tmp_path / "kubernetes" / "overlays" / "example"


def pod(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = objects["Deployment"]["spec"]["template"]["spec"]
    return found


def test_example_gives_all_objects_in_the_namespace(overlay: Path) -> None:
    objects = built(overlay)

    assert set(objects) == {"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"}
    assert {each["metadata"]["namespace"] for each in objects.values()} == {"aks-flex"}


def test_changed_configuration_replaces_the_pods(overlay: Path) -> None:
    before = built(overlay)
    with (overlay / "config.yaml").open("a") as config:
        config.write("auditDays: 30\n")

    after = built(overlay)

    for objects in (before, after):
        name = objects["ConfigMap"]["metadata"]["name"]
        assert {"name": "config", "configMap": {"name": name}} in pod(objects)["volumes"]
    assert pod(before) != pod(after)


def test_overlay_sets_image_by_digest_and_authority_of_database(overlay: Path) -> None:
    file = overlay / "kustomization.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["images"] = [{"name": "aks-flex-rp", "newName": "registry.test/rp", "digest": f"sha256:{'0' * 64}"}]
    settings["configMapGenerator"][0]["files"].append("ca.crt")
    file.write_text(yaml.safe_dump(settings))
    (overlay / "ca.crt").write_text("CA")

    objects = built(overlay)

    assert pod(objects)["containers"][0]["image"] == f"registry.test/rp@sha256:{'0' * 64}"
    assert set(objects["ConfigMap"]["data"]) == {"config.yaml", "ca.crt"}


def test_commented_patch_of_example_makes_a_load_balancer(overlay: Path) -> None:
    file = overlay / "kustomization.yaml"
    text = file.read_text()
    start = text.index("# patches:")
    file.write_text(text[:start] + text[start:].replace("# ", "", 1).replace("\n# ", "\n").replace("\n#", "\n"))

    service = built(overlay)["Service"]["spec"]

    assert (service["type"], service["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    assert service["ports"][0]["targetPort"] == "https"
