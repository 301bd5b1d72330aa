"""Permissions of the service in a cluster: what it needs, and what it should not have.

RBAC cannot limit the creation and deletion of Secrets and ClusterRoleBindings to the names that the service uses,
because they contain random IDs and names of nodes. So an admission policy of the manifest does. The service cannot
change that policy.
"""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_node.api.contract import LEFT_ANNOTATION, MANAGED_LABEL
from aks_flex_rp.clusters.bootstrap_tokens import RECORDS_NAMESPACE, TOKEN_GROUP, TOKEN_LABEL
from aks_flex_rp.clusters.exec_nodes import OWN_NODE_POLICY
from aks_flex_rp.join_state import KUBELET_ROLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aks_flex_rp.clusters.client import KubeClient


@dataclass(frozen=True)
class Finding:
    level: Literal["ok", "warning", "problem"]
    what: str
    why: str


REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Permission:
    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}{where}"

    def review(self) -> dict[str, object]:
        resource, _, subresource = self.resource.partition("/")
        attributes = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
        }


def _all(verbs: str, group: str, resource: str, namespace: str = "", *names: str) -> Iterator[Permission]:
    return (Permission(verb, group, resource, namespace, name) for name in names or [""] for verb in verbs.split())


CERTIFICATES_GROUP, RBAC_GROUP, ADMISSION_GROUP = (
    "certificates.k8s.io",
    "rbac.authorization.k8s.io",
    "admissionregistration.k8s.io",
)
SINGLE_USE_POLICY = "aks-flex-node-single-use"
OWN_OBJECTS_POLICY = "aks-flex-rp-own-objects"
NODE_POLICIES = (SINGLE_USE_POLICY, OWN_NODE_POLICY)  # applied by the service
BOUND_ROLES = (
    KUBELET_ROLE,
    "system:node-bootstrapper",
    "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
)
BASIC_PERMISSIONS = (
    *_all("create delete", "", "secrets", "kube-system"),
    *_all("get patch", "", "secrets", "kube-system", "aks-flex-rp"),  # the mark of the service
    *_all("get list watch patch delete", CERTIFICATES_GROUP, "certificatesigningrequests"),
    *_all("update", CERTIFICATES_GROUP, "certificatesigningrequests/approval"),
    *_all("approve", CERTIFICATES_GROUP, "signers", "", "kubernetes.io/kube-apiserver-client-kubelet"),
    *_all("approve", CERTIFICATES_GROUP, "signers", "", "kubernetes.io/kubelet-serving"),
    *_all("get list watch patch delete", "", "nodes"),
    *_all("get", "", "services", "kube-system", "kube-dns"),
    *_all("get", "", "services", "default", "kubernetes"),
    *_all("get list watch create patch delete", RBAC_GROUP, "clusterrolebindings"),
    *_all("get", RBAC_GROUP, "clusterroles", "", KUBELET_ROLE),
    *_all("bind", RBAC_GROUP, "clusterroles", "", *BOUND_ROLES),
    *_all("get create patch", ADMISSION_GROUP, "validatingadmissionpolicies", "", *NODE_POLICIES),
    *_all("get create patch", ADMISSION_GROUP, "validatingadmissionpolicybindings", "", *NODE_POLICIES),
)
# Records of bootstrap tokens. Without them, the service has to read the Secrets of kube-system, as earlier releases.
RECORD_PERMISSIONS = (
    *_all("create get list patch delete", "", "configmaps", RECORDS_NAMESPACE),
    *_all("get", ADMISSION_GROUP, "validatingadmissionpolicies", "", OWN_OBJECTS_POLICY),
)
REQUIRED_PERMISSIONS = (*BASIC_PERMISSIONS, *RECORD_PERMISSIONS)
READS_SECRETS = Permission("list", "", "secrets", "kube-system")
EXCESSIVE_PERMISSIONS = (
    READS_SECRETS,
    *_all("get watch patch update", "", "secrets", "kube-system"),
    *_all("bind", RBAC_GROUP, "clusterroles", "", "cluster-admin", "system:node"),
    *_all("escalate", RBAC_GROUP, "clusterroles"),
    *_all("patch delete", ADMISSION_GROUP, "validatingadmissionpolicies", "", OWN_OBJECTS_POLICY),
)
NARROW = "Run `kubectl apply -f packaging/kubernetes/20-rbac.yaml`"


async def check_permissions(client: KubeClient) -> list[Finding]:
    """Returns a finding for each missing permission and one for all excessive ones, or one that all is well."""
    excessive = await _granted(client, EXCESSIVE_PERMISSIONS)
    required = BASIC_PERMISSIONS if READS_SECRETS in excessive else REQUIRED_PERMISSIONS
    granted = await _granted(client, required)
    missing = [one for one in required if one not in granted]
    findings = [Finding("problem", f"permission to {one}", "The service does not have it.") for one in missing]
    if not missing:
        findings.append(Finding("ok", "permissions", f"The service has all {len(required)} required permissions."))
    if excessive:
        what = ", ".join(str(one) for one in EXCESSIVE_PERMISSIONS if one in excessive)
        why = (
            f"The service has more permissions than it needs: {what}. {NARROW}. If the kubeconfig is that of an "
            "administrator, then add the cluster again with a kubeconfig of the account in that file."
        )
        findings.append(Finding("warning", "permissions", why))
    return findings


async def _granted(client: KubeClient, asked: Iterable[Permission]) -> set[Permission]:
    listed = tuple(asked)
    answers = await asyncio.gather(*(client.request("POST", REVIEWS, one.review()) for one in listed))
    return {one for one, answer in zip(listed, answers, strict=True) if answer["status"]["allowed"]}


def own_objects_policy(account: str) -> dict[str, Any]:
    """Returns the spec of the admission policy that limits the writes of the service's account."""
    kinds = {"": ["secrets", "nodes"], RBAC_GROUP: ["clusterrolebindings"]}
    (label, value), groups = next(iter(MANAGED_LABEL.items())), base64.b64encode(TOKEN_GROUP.encode()).decode()
    written, old = "variables.written", "oldObject.metadata"
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [group],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE", "DELETE"],
                    "resources": resources,
                }
                for group, resources in kinds.items()
            ]
        },
        "matchConditions": [
            {"name": "provider", "expression": f"request.userInfo.username == {json.dumps(account)}"}
        ],
        "variables": [
            {"name": "written", "expression": 'request.operation == "DELETE" ? oldObject : object'},
            {"name": "secret", "expression": 'request.resource.resource == "secrets"'},
            {
                # Of another type, the cluster would write a token of any service account into it.
                "name": "mark",
                "expression": f'{written}.metadata.name == "aks-flex-rp" && {written}.type == "Opaque"',
            },
            {
                "name": "token",
                "expression": f'{written}.type == "bootstrap.kubernetes.io/token" && '
                f"has({written}.metadata.labels) && {json.dumps(TOKEN_LABEL)} in {written}.metadata.labels && "
                f'has({written}.data) && "auth-extra-groups" in {written}.data && '
                f'{written}.data["auth-extra-groups"] == {json.dumps(groups)}',
            },
        ],
        "validations": [
            {
                "expression": "!variables.secret || variables.mark || variables.token",
                "message": "The resource provider may write only its own bootstrap tokens and its mark.",
            },
            {
                "expression": 'request.resource.resource != "clusterrolebindings" || '
                f'{written}.metadata.name.startsWith("aks-flex-node:")',
                "message": "The resource provider may write only the role bindings of flex nodes.",
            },
            {
                "expression": 'request.resource.resource != "nodes" || '
                f"(has({old}.labels) && {json.dumps(label)} in {old}.labels && "
                f"{old}.labels[{json.dumps(label)}] == {json.dumps(value)}) || "
                f"(has({old}.annotations) && {json.dumps(LEFT_ANNOTATION)} in {old}.annotations)",
                "message": "The resource provider may write only the Nodes of flex nodes.",
            },
        ],
    }
