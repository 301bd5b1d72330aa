"""Tests of the provider's kustomize base and overlay with the real kubectl, without a cluster."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from aks_flex_lab.layout import lab_layout
from aks_flex_lab.processes import run
from aks_flex_lab.tools.toolbox import Toolbox
from aks_flex_rp import DEFAULT_CONFIG_FILE
from release.checkout import HOME

MANIFESTS = HOME / "packaging" / "kubernetes"


def documents(overlay: Path) -> list[dict[str, Any]]:
    """Returns the objects that `kubectl apply -k` applies."""
    kubectl = Toolbox(lab_layout().cache).path("kubernetes", "kubectl")
    return list(yaml.safe_load_all(run(kubectl, "kustomize", overlay).out))


def built(overlay: Path) -> dict[str, dict[str, Any]]:
    """Returns the objects by kind, of which there is one each."""
    found = documents(overlay)
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each for each in found}


def uncommented(text: str, start: str, end: str = "") -> str:
    """Returns a file in which the commented lines from `start` up to `end` are in effect."""
    before, found, rest = text.partition(start)
    inside, _, after = (rest, "", "") if not end else rest.partition(end)
    lines = (found + inside).splitlines(keepends=True)
    return before + "".join(line.replace("# ", "", 1) for line in lines) + end + after


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


def volume(pod: dict[str, Any], mount_path: str) -> dict[str, Any]:
    """Returns the volume that the container has at a path."""
    [name] = [each["name"] for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == mount_path]
    return next(each for each in pod["volumes"] if each["name"] == name)


def test_overlay_sets_image_by_digest(overlay: Path) -> None:
    file = overlay / "kustomization.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["images"] = [{"name": "aks-flex-rp", "newName": "registry.test/rp", "digest": f"sha256:{'0' * 64}"}]
    file.write_text(yaml.safe_dump(settings))

    assert pod(built(overlay))["containers"][0]["image"] == f"registry.test/rp@sha256:{'0' * 64}"


def test_example_names_a_version_of_the_image(overlay: Path) -> None:
    image = pod(built(overlay))["containers"][0]["image"]

    assert re.fullmatch(r"registry\.example\.com/aks-flex-rp:\d+\.\d+\.\d+", image)


def test_configuration_is_where_the_service_reads_it(overlay: Path) -> None:
    objects = built(overlay)

    file = Path(DEFAULT_CONFIG_FILE)
    mounted = volume(pod(objects), str(file.parent))
    assert mounted["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    assert objects["ConfigMap"]["data"] == {file.name: (overlay / "config.yaml").read_text()}


def test_uncommented_database_ca_is_mounted(overlay: Path) -> None:
    file = overlay / "kustomization.yaml"
    file.write_text(uncommented(file.read_text(), "  # - name: aks-flex-rp-database-ca", "# Optional:"))
    (overlay / "ca.crt").write_text("CA")

    objects = documents(overlay)

    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    mounted = volume(deployment["spec"]["template"]["spec"], "/etc/aks-flex-rp-database")
    data = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    assert data[mounted["configMap"]["name"]] == {"ca.crt": "CA"}


def test_commented_patches_of_example_are_valid(overlay: Path) -> None:
    """They make a load balancer, and limit what the service reaches."""
    file = overlay / "kustomization.yaml"
    file.write_text(uncommented(file.read_text(), "# patches:"))

    objects = built(overlay)

    service, policy = objects["Service"]["spec"], objects["NetworkPolicy"]["spec"]
    assert (service["type"], service["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    assert service["ports"][0]["targetPort"] == "https"
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [{"ports": [{"port": "https"}]}]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 443, 5432}
