"""Tests of the provider's manifests: they match its image, its settings and its time limits."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import yaml
from rp_image.image_files import STATE, USER

from aks_flex_rp import server
from aks_flex_rp.settings import DEFAULT_PORT, ServiceSettings
from aks_flex_rp.store import postgres
from release.checkout import HOME

KUBERNETES = HOME / "packaging" / "kubernetes"
BASE = KUBERNETES / "base"
EXAMPLE = KUBERNETES / "overlays" / "example"


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((BASE / f"{name}.yaml").read_text())
    return found


def pod() -> dict[str, Any]:
    found: dict[str, Any] = document("deployment")["spec"]["template"]["spec"]
    return found


def container() -> dict[str, Any]:
    [found] = pod()["containers"]
    return dict(found)


def test_pod_runs_as_user_of_image_and_is_restricted() -> None:
    """Pod Security `restricted`, which the namespace enforces."""
    context = pod()["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (USER, USER, True)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container()["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod()["automountServiceAccountToken"] is False


def test_pod_has_volumes_for_what_the_service_writes() -> None:
    writable = {each["mountPath"] for each in container()["volumeMounts"] if not each.get("readOnly")}
    assert writable == {f"/{STATE}", "/tmp"}  # noqa: S108 - in the container
    assert {each["name"] for each in pod()["volumes"]} == {each["name"] for each in container()["volumeMounts"]}


def test_pod_has_time_to_stop() -> None:
    """Responses and the database have time limits of their own after the delay."""
    delay = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = delay + server.STOP_SECONDS + postgres.CLOSE_SECONDS
    assert pod()["terminationGracePeriodSeconds"] >= needed


def test_new_replica_is_ready_before_an_old_one_stops() -> None:
    deployment = document("deployment")["spec"]
    assert deployment["replicas"] >= 2
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert document("disruption-budget")["spec"]["minAvailable"] == deployment["replicas"] - 1
    # A database that does not respond must neither restart the service, nor take all replicas out of it.
    assert container()["readinessProbe"]["httpGet"]["path"] == "/readyz?exclude=store"
    assert {container()[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe")} == {"/healthz"}


def test_all_objects_select_the_same_pods_and_port() -> None:
    labels = document("deployment")["spec"]["template"]["metadata"]["labels"]
    assert document("deployment")["spec"]["selector"]["matchLabels"] == labels
    assert document("service")["spec"]["selector"] == labels
    assert document("disruption-budget")["spec"]["selector"]["matchLabels"] == labels
    assert document("network-policy")["spec"]["podSelector"]["matchLabels"] == labels
    assert container()["ports"] == [{"name": "https", "containerPort": DEFAULT_PORT}]


def test_base_has_every_file_of_its_directory() -> None:
    files = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(document("kustomization")["resources"]) == files


def test_example_configuration_is_valid_and_uses_mounted_files() -> None:
    document = yaml.safe_load((EXAMPLE / "config.yaml").read_text())
    settings = ServiceSettings.model_validate(document)
    mounts = [each["mountPath"] for each in container()["volumeMounts"]]
    for file in (settings.tls.certificate_file, settings.tls.key_file, settings.metrics_token_file):
        assert str(file.parent if file else "") in mounts
    assert (settings.port, str(settings.state_dir)) == (DEFAULT_PORT, f"/{STATE}")


def test_example_limits_the_connections_of_all_other_hosts() -> None:
    """Attack: a pod or a machine of the private network opens as many connections as the service has."""
    text = (EXAMPLE / "config.yaml").read_text()
    unlimited = ServiceSettings.model_validate(yaml.safe_load(text)).connections.unlimited_addresses
    assert all(ip_network(each).is_loopback for each in unlimited)
    [example] = [line for line in text.splitlines() if line.endswith("the load balancer")]
    assert example.strip().startswith("# - ")


def test_example_has_the_secrets_of_the_pod() -> None:
    documents = yaml.safe_load_all((EXAMPLE / "secrets.example.yaml").read_text())
    secrets = {each["metadata"]["name"]: set(each["stringData"]) for each in documents}
    references = [each["valueFrom"]["secretKeyRef"] for each in container()["env"]]
    mounted = {each["secret"]["secretName"] for each in pod()["volumes"] if "secret" in each}
    assert set(secrets) == {*mounted, *(each["name"] for each in references)}
    assert all(each["key"] in secrets[each["name"]] for each in references)
