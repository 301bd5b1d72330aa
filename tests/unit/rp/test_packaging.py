"""Tests of the packaging: valid settings, and exactly the permissions that the program needs."""

from __future__ import annotations

import configparser
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from aks_flex_rp.clusters.admission_policies import account_policy, kubelet_role, node_policies
from aks_flex_rp.clusters.prerequisites import BINDS_KUBELETS, REQUIRED_PERMISSIONS, Permission
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


def test_systemd_unit_restricts_the_service() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "systemd" / "aks-flex-rp.service")

    expected = {
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "LimitNOFILE": "262144",
        "Restart": "on-failure",
        "StateDirectory": "aks-flex-rp",
        "Environment": "AKS_FLEX_RP_STATE=%S/aks-flex-rp",
    }
    assert expected.items() <= dict(unit["Service"]).items()
