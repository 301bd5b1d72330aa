"""Tests of the packaging: valid settings, and exactly the permissions that the program needs."""

from __future__ import annotations

import configparser
from ipaddress import ip_network
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from aks_flex_rp import settings
from aks_flex_rp.clusters.admission_policies import account_policy, node_policies
from aks_flex_rp.clusters.exec_nodes import kubelet_role
from aks_flex_rp.clusters.permissions import BINDS_KUBELETS, REQUIRED_PERMISSIONS, Permission
from aks_flex_rp.join_state import KUBELET_ROLE
from aks_flex_rp.rollouts.job_gate import GRANT, MANIFEST

ROOT = Path(__file__).parents[3] / "packaging"
OBJECTS = [
    each for file in sorted((ROOT / "kubernetes").glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())
]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in OBJECTS if each["kind"] == kind]


def granted(by: str = "aks-flex-rp") -> set[Permission]:
    """Returns every permission of the roles."""
    found = set()
    for role in (*of_kind("ClusterRole"), *of_kind("Role")):
        if role["metadata"]["name"] != by:
            continue
        place = role["metadata"].get("namespace", "")
        for rule in role["rules"]:
            names = rule.get("resourceNames", [""])
            for verb, group, resource, name in product(rule["verbs"], rule["apiGroups"], rule["resources"], names):
                found.add(Permission(verb, group, resource, place, name))
    return found


def test_rbac_roles_grant_exactly_the_required_permissions() -> None:
    assert granted() == set(REQUIRED_PERMISSIONS)
    assert granted("aks-flex-rp-exec") == {BINDS_KUBELETS}


def test_role_of_rollout_gates_is_bound_in_the_namespace_of_its_command() -> None:
    assert {str(each) for each in granted(GRANT)} == {
        *("create jobs", "get jobs", "deletecollection jobs", "list pods", "get pods/log"),
        f"get rolebindings {GRANT}",
    }
    [binding] = [each for each in of_kind("RoleBinding") if each["metadata"]["name"] == GRANT]
    assert "namespace" not in binding["metadata"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", GRANT)
    assert Path(MANIFEST).name in [file.name for file in (ROOT / "kubernetes").glob("*.yaml")]


def test_manifest_has_the_role_of_exec_nodes() -> None:
    [role] = [each for each in of_kind("ClusterRole") if each["metadata"]["name"] == KUBELET_ROLE]
    assert role == kubelet_role()


def test_manifest_has_the_admission_policies_for_service_account_and_nodes() -> None:
    account = "system:serviceaccount:aks-flex:aks-flex-rp"
    there = [*of_kind("ValidatingAdmissionPolicy"), *of_kind("ValidatingAdmissionPolicyBinding")]
    expected = [body for _, body in (*account_policy(account), *node_policies(account))]
    assert sorted(there, key=_identity) == sorted(expected, key=_identity)


def _identity(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def test_service_account_cannot_write_admission_policies() -> None:
    """With a policy that prints what is deleted, an account that may delete Secrets could read them."""
    verbs = {each.verb for each in granted() if each.group == "admissionregistration.k8s.io"}
    assert verbs == {"get"}


def test_service_account_may_bind_named_roles_only() -> None:
    """With another role, such as system:node or cluster-admin, the service could give itself more permissions."""
    binds = {each.name for each in granted() if each.verb in {"bind", "escalate"}}
    assert binds == {
        "system:node-bootstrapper",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
    }


def test_every_rbac_role_is_bound_to_service_account() -> None:
    bound = {
        (each["roleRef"]["kind"], each["metadata"].get("namespace", ""), each["roleRef"]["name"])
        for each in (*of_kind("ClusterRoleBinding"), *of_kind("RoleBinding"))
        if each["roleRef"]["name"] in {"aks-flex-rp", "aks-flex-rp-exec"}
        and each["subjects"] == [{"kind": "ServiceAccount", "name": "aks-flex-rp", "namespace": "aks-flex"}]
    }

    places = {("ClusterRole", ""), ("Role", "kube-system"), ("Role", "default"), ("Role", "aks-flex-tokens")}
    assert bound == {(*each, "aks-flex-rp") for each in places} | {("ClusterRole", "", "aks-flex-rp-exec")}


def test_manifest_config_is_accepted_by_service(tmp_path: Path) -> None:
    [config] = of_kind("ConfigMap")
    file = tmp_path / "config.yaml"
    file.write_text(config["data"]["config.yaml"])

    loaded = settings.load(file, {"AKS_FLEX_RP_DATABASE": "postgresql://somewhere/flex"})
    assert loaded.port == 8443
    assert loaded.database == "postgresql://somewhere/flex"
    assert loaded.auth.tenants


def test_manifest_config_limits_the_connections_of_all_other_hosts(tmp_path: Path) -> None:
    """Attack: a pod or a machine of the private network opens as many connections as the service has."""
    [config] = of_kind("ConfigMap")
    file = tmp_path / "config.yaml"
    file.write_text(config["data"]["config.yaml"])
    unlimited = settings.load(file, {}).connections.unlimited_addresses

    assert all(ip_network(each).is_loopback for each in unlimited)
    example = next(line for line in config["data"]["config.yaml"].splitlines() if "the load balancer" in line[-20:])
    assert example.strip().startswith("# - ")


def test_deployment_mounts_and_env_match_config_and_secrets() -> None:
    [deployment], [config] = of_kind("Deployment"), of_kind("ConfigMap")
    said = yaml.safe_load(config["data"]["config.yaml"])
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    secrets = {each["metadata"]["name"]: each["stringData"] for each in of_kind("Secret") if "stringData" in each}

    assert {
        str(settings.DEFAULT_CONFIG_FILE.parent),
        str(Path(said["tls"]["keyFile"]).parent),
        said["stateDir"],
    } <= mounts
    for each in container["env"]:
        source = each["valueFrom"]["secretKeyRef"]
        assert source["key"] in secrets[source["name"]]
    assert deployment["spec"]["replicas"] == 2
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_pod_meets_restricted_pod_security_standard() -> None:
    [deployment] = of_kind("Deployment")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ProtectSystem", "strict"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
        ("LimitNOFILE", "262144"),
        ("Restart", "on-failure"),
        ("StateDirectory", "aks-flex-rp"),
        ("Environment", "AKS_FLEX_RP_STATE=%S/aks-flex-rp"),
    ],
)
def test_systemd_unit_has_expected_setting(name: str, value: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "systemd" / "aks-flex-rp.service")

    assert unit["Service"][name] == value
