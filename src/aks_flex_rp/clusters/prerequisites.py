"""Objects and permissions that a cluster needs for flex nodes.

RBAC bindings and the admission policy are applied and checked, and so are the permissions of the service. The
policy makes tokens single-use where another approver would be faster: only this service may approve the requests of
flex nodes.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_rp.clusters.bootstrap_tokens import TOKEN_GROUP
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.csr_policy import CLIENT_SIGNER
from aks_flex_rp.clusters.exec_nodes import CLUSTER_ROLES, OWN_NODE_POLICY, RBAC, kubelet_role, own_node_policy
from aks_flex_rp.join_state import KUBELET_ROLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.clusters.client import KubeClient, KubeObject


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


def _all(verbs: str, group: str, resource: str, namespace: str = "", name: str = "") -> Iterator[Permission]:
    return (Permission(verb, group, resource, namespace, name) for verb in verbs.split())


CERTIFICATES_GROUP, RBAC_GROUP, ADMISSION_GROUP = (
    "certificates.k8s.io",
    "rbac.authorization.k8s.io",
    "admissionregistration.k8s.io",
)
REQUIRED_PERMISSIONS = (
    *_all("create get list patch delete", "", "secrets", "kube-system"),
    *_all("get list watch patch delete", CERTIFICATES_GROUP, "certificatesigningrequests"),
    *_all("update", CERTIFICATES_GROUP, "certificatesigningrequests/approval"),
    *_all("approve", CERTIFICATES_GROUP, "signers", "", "kubernetes.io/kube-apiserver-client-kubelet"),
    *_all("approve", CERTIFICATES_GROUP, "signers", "", "kubernetes.io/kubelet-serving"),
    *_all("get list watch patch delete", "", "nodes"),
    *_all("get", "", "services", "kube-system", "kube-dns"),
    *_all("get", "", "services", "default", "kubernetes"),
    *_all("get list watch create patch delete", RBAC_GROUP, "clusterrolebindings"),
    *_all("get bind", RBAC_GROUP, "clusterroles", "", KUBELET_ROLE),
    *_all("bind", RBAC_GROUP, "clusterroles", "", "system:node-bootstrapper"),
    *_all(
        "bind", RBAC_GROUP, "clusterroles", "", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
    ),
    *_all("get create patch", ADMISSION_GROUP, "validatingadmissionpolicies"),
    *_all("get create patch", ADMISSION_GROUP, "validatingadmissionpolicybindings"),
)


async def check_permissions(client: KubeClient) -> list[Finding]:
    """Returns one finding if all permissions are granted, or one per missing permission."""
    answers = await asyncio.gather(*(client.request("POST", REVIEWS, one.review()) for one in REQUIRED_PERMISSIONS))
    missing = [
        one for one, answer in zip(REQUIRED_PERMISSIONS, answers, strict=True) if not answer["status"]["allowed"]
    ]
    if not missing:
        return [
            Finding("ok", "permissions", f"The service has all {len(REQUIRED_PERMISSIONS)} required permissions.")
        ]
    return [Finding("problem", f"permission to {one}", "The service does not have it.") for one in missing]


BINDINGS = f"/apis/{RBAC}/v1/clusterrolebindings"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
SIGNING = "system:certificates.k8s.io:certificatesigningrequests"
POLICY = "aks-flex-node-single-use"
APPROVER_GROUPS = {
    "system:bootstrappers",
    "system:authenticated",
    TOKEN_GROUP,
}  # groups whose requests no other approver should approve


@dataclass(frozen=True)
class RequiredObject:
    """An object that must exist with this content."""

    collection: str
    body: KubeObject

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.body['metadata']['name']}"

    @property
    def title(self) -> str:
        return f"{self.body['kind']} {self.body['metadata']['name']}"


def _binding(name: str, role: str, group: str) -> RequiredObject:
    body = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
    }
    return RequiredObject(BINDINGS, body)


ROLE_BINDINGS = (
    _binding("aks-flex-node:ask-for-certificate", "system:node-bootstrapper", TOKEN_GROUP),
    _binding("aks-flex-node:renew-certificate", f"{SIGNING}:selfnodeclient", "system:nodes"),
)


KUBELET_ROLE_OBJECT = RequiredObject(CLUSTER_ROLES, kubelet_role())


def policies(user: str) -> tuple[RequiredObject, ...]:
    """Returns the admission policies:

    tokens may only request kubelet certificates, and only `user` may approve them. Exec nodes write only what is
    theirs.
    """
    group, approver = json.dumps(TOKEN_GROUP), json.dumps(user)  # JSON strings are valid CEL strings
    approved = (
        'has({0}.status) && has({0}.status.conditions) && {0}.status.conditions.exists(c, c.type == "Approved")'
    )
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                _rule("certificatesigningrequests", "CREATE"),
                _rule("certificatesigningrequests/approval", "UPDATE"),
            ]
        },
        "variables": [
            {"name": "creates", "expression": 'request.operation == "CREATE"'},
            {"name": "ours", "expression": f"has(object.spec.groups) && {group} in object.spec.groups"},
            {"name": "approved", "expression": approved.format("object")},
            {"name": "before", "expression": f"oldObject != null && {approved.format('oldObject')}"},
        ],
        "validations": [
            {
                "expression": "variables.creates || !variables.ours || !variables.approved || variables.before || "
                f"request.userInfo.username == {approver}",
                "message": "Only the AKS Flex Node resource provider approves certificates for flex nodes.",
            },
            {
                "expression": f"!variables.creates || !({group} in request.userInfo.groups) || "
                f"object.spec.signerName == {json.dumps(CLIENT_SIGNER)}",
                "message": "A flex node's bootstrap token is for the kubelet's client certificate only.",
            },
        ],
    }
    binding = {"policyName": POLICY, "validationActions": ["Deny"]}
    return (*_admission(POLICY, spec, binding), *_admission(OWN_NODE_POLICY, *own_node_policy()))


def _rule(resource: str, operation: str) -> dict[str, list[str]]:
    return {
        "apiGroups": ["certificates.k8s.io"],
        "apiVersions": ["v1"],
        "operations": [operation],
        "resources": [resource],
    }


def _admission(name: str, policy: KubeObject, binding: KubeObject) -> Iterator[RequiredObject]:
    for kind, plural, spec in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies", policy),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", binding),
    ):
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        yield RequiredObject(f"{ADMISSION}/{plural}", body)


async def whoami(client: KubeClient) -> str:
    """Returns the user name of the service in the cluster."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    return str(answer["status"]["userInfo"]["username"])


async def knows_policies(client: KubeClient) -> bool:
    """Returns whether the cluster supports ValidatingAdmissionPolicy, as Kubernetes 1.30 and later do."""
    resources = (await client.get(ADMISSION)).get("resources") or []
    return any(one["name"] == "validatingadmissionpolicies" for one in resources)


async def required_objects(client: KubeClient) -> tuple[RequiredObject, ...]:
    return (*ROLE_BINDINGS, *policies(await whoami(client))) if await knows_policies(client) else ROLE_BINDINGS


async def ensure_objects(client: KubeClient) -> None:
    """Applies the required objects and overwrites other changes."""
    for one in await required_objects(client):
        await client.apply(one.path, one.body)
    role = await client.find(KUBELET_ROLE_OBJECT.path)
    if role is None or role.get("rules") != KUBELET_ROLE_OBJECT.body["rules"]:
        # The service's own account may not write roles: there, an administrator applies 20-rbac.yaml.
        await client.apply(KUBELET_ROLE_OBJECT.path, KUBELET_ROLE_OBJECT.body)


async def check_cluster(client: KubeClient) -> list[Finding]:
    """Checks the required objects and permissions, and warns about other approvers."""
    findings = [await _compared(client, one) for one in await required_objects(client)]
    findings.append(await _check_kubelet_role(client))
    if not await knows_policies(client):
        findings.append(
            Finding(
                "warning",
                "ValidatingAdmissionPolicy",
                "Not supported before Kubernetes 1.30. An approval by another approver is only detected afterwards, "
                "and nodes that join by exec can write other nodes.",
            )
        )
    return [*findings, *await _other_approvers(client), *await check_permissions(client)]


async def _compared(client: KubeClient, one: RequiredObject) -> Finding:
    """Compares an object by a dry-run apply, because the API server adds its defaults."""
    there = await client.find(one.path)
    if there is None:
        return Finding("problem", one.title, "The object does not exist.")
    try:
        applied = await client.apply(one.path, one.body, dry=True)
    except ApiRefused as refusal:
        return Finding("problem", one.title, f"The object differs and cannot be corrected: {refusal.message}")
    if _essence(there) != _essence(applied):
        return Finding("problem", one.title, "The object differs from the required one.")
    return Finding("ok", one.title, "The object exists.")


async def _check_kubelet_role(client: KubeClient) -> Finding:
    title, advice = KUBELET_ROLE_OBJECT.title, "Apply packaging/kubernetes/20-rbac.yaml."
    try:
        there = await client.find(KUBELET_ROLE_OBJECT.path)
    except ApiRefused as refusal:
        return Finding("problem", title, f"The object cannot be read: {refusal.message} {advice}")
    if there is None or there.get("rules") != KUBELET_ROLE_OBJECT.body["rules"]:
        return Finding("problem", title, f"The object is missing or differs from the required one. {advice}")
    return Finding("ok", title, "The object exists.")


def _essence(document: KubeObject) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in {"metadata", "status"}}


async def _other_approvers(client: KubeClient) -> list[Finding]:
    """Finds bindings that let the cluster's own approver approve requests that only this service should approve."""
    bindings, _ = await client.list(BINDINGS)
    found = []
    for binding in bindings:
        groups = {one["name"] for one in binding.get("subjects") or [] if one["kind"] == "Group"} & APPROVER_GROUPS
        if binding["roleRef"]["name"] == f"{SIGNING}:nodeclient" and groups:
            why = (
                f"It lets the cluster approve requests of {', '.join(sorted(groups))} automatically. "
                f"For flex nodes the policy {POLICY} prevents that. Delete the binding if nothing else needs it."
            )
            found.append(Finding("warning", f"ClusterRoleBinding {binding['metadata']['name']}", why))
    return found
