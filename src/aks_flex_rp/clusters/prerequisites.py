"""Objects that a cluster needs for flex nodes, and the permissions that the service needs there, or should not have.

RBAC bindings are applied and checked, with the permissions of the service. The admission policies are part of the
manifest, because an account that can write them can read Secrets. The service applies them only where its account
can, such as that of an administrator.

RBAC cannot limit the creation and deletion of Secrets and ClusterRoleBindings to the names that the service uses,
because they contain random IDs and names of nodes. So an admission policy of the manifest does. The service cannot
change that policy, nor those for nodes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_rp.clusters.admission_policies import (
    ADMISSION,
    BINDING_PREFIX,
    CLUSTER_ROLES,
    GROUP_BINDINGS,
    NODE_POLICIES,
    OWN_OBJECTS_POLICY,
    RBAC,
    SIGNING,
    SINGLE_USE_POLICY,
    account_policy,
    kubelet_role,
    node_policies,
    same_policy,
)
from aks_flex_rp.clusters.bootstrap_tokens import RECORDS_NAMESPACE, TOKEN_GROUP
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.join_state import ACCESS_ROLES, KUBELET_ROLE, AccessMethod

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        attributes = {**asdict(self), "resource": resource, "subresource": subresource}
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
POLICY_RESOURCES = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")


def _policies(verbs: str, *names: str) -> Iterator[Permission]:
    return (one for resource in POLICY_RESOURCES for one in _all(verbs, ADMISSION_GROUP, resource, "", *names))


BOUND_ROLES = sorted({role for role, _ in GROUP_BINDINGS.values()} | {ACCESS_ROLES[AccessMethod.CERTIFICATE]})
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
    *_policies("get", *NODE_POLICIES),
)
# Records of bootstrap tokens. Without them, the service has to read the Secrets of kube-system.
RECORD_PERMISSIONS = (
    *_all("create get list patch delete", "", "configmaps", RECORDS_NAMESPACE),
    *_policies("get", OWN_OBJECTS_POLICY),
)
REQUIRED_PERMISSIONS = (*BASIC_PERMISSIONS, *RECORD_PERMISSIONS)
# For clusters with exec nodes, by a manifest of its own: root on the host of the service could bind its identity.
BINDS_KUBELETS = Permission("bind", RBAC_GROUP, "clusterroles", "", KUBELET_ROLE)
READS_SECRETS = Permission("list", "", "secrets", "kube-system")
EXCESSIVE_PERMISSIONS = (
    READS_SECRETS,
    *_all("get watch patch update", "", "secrets", "kube-system"),
    *_all("bind", RBAC_GROUP, "clusterroles", "", "cluster-admin", "system:node"),
    *_all("escalate", RBAC_GROUP, "clusterroles"),
    *_policies("create patch", *NODE_POLICIES),
    *_policies("patch delete", OWN_OBJECTS_POLICY),
)
NARROW = "Run `kubectl apply -f packaging/kubernetes/10-namespace.yaml -f packaging/kubernetes/20-rbac.yaml`"
EXEC_MANIFEST = "packaging/kubernetes/21-rbac-exec.yaml"


async def check_permissions(client: KubeClient, *, binds_kubelets: bool = False) -> list[Finding]:
    """Returns a finding for each missing permission and one for all excessive ones, or one that all is well."""
    of_exec = (BINDS_KUBELETS,)
    unneeded = EXCESSIVE_PERMISSIONS + (() if binds_kubelets else of_exec)
    excessive = await _granted(client, unneeded)
    required = BASIC_PERMISSIONS if READS_SECRETS in excessive else REQUIRED_PERMISSIONS
    required += of_exec if binds_kubelets else ()
    granted = await _granted(client, required)
    missing = [one for one in required if one not in granted]
    findings = [Finding("problem", f"permission to {one}", _missing(one)) for one in missing]
    if not missing:
        findings.append(Finding("ok", "permissions", f"The service has all {len(required)} required permissions."))
    if excessive:
        what = ", ".join(str(one) for one in unneeded if one in excessive)
        also = f" and `kubectl delete -f {EXEC_MANIFEST} --ignore-not-found`" if BINDS_KUBELETS in excessive else ""
        why = (
            f"The service has more permissions than it needs: {what}. {NARROW}{also}. If the kubeconfig is that of "
            "an administrator, then add the cluster again with a kubeconfig of the account in that file."
        )
        findings.append(Finding("warning", "permissions", why))
    return findings


def _missing(permission: Permission) -> str:
    run = f" Run `kubectl apply -f {EXEC_MANIFEST}`." if permission == BINDS_KUBELETS else ""
    return f"The service does not have it.{run}"


async def _granted(client: KubeClient, asked: Iterable[Permission]) -> set[Permission]:
    listed = tuple(asked)
    answers = await asyncio.gather(*(client.request("POST", REVIEWS, one.review()) for one in listed))
    return {one for one, answer in zip(listed, answers, strict=True) if answer["status"]["allowed"]}


BINDINGS = f"/apis/{RBAC}/v1/clusterrolebindings"
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


ROLE_BINDINGS = tuple(_binding(name, role, group) for name, (role, group) in GROUP_BINDINGS.items())


KUBELET_ROLE_OBJECT = RequiredObject(CLUSTER_ROLES, kubelet_role())


def policies(user: str) -> tuple[RequiredObject, ...]:
    """Returns the admission policies for nodes and their bindings, with `user` as the approver."""
    return tuple(RequiredObject(collection, body) for collection, body in node_policies(user))


async def whoami(client: KubeClient) -> str:
    """Returns the user name of the service in the cluster."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    return str(answer["status"]["userInfo"]["username"])


async def knows_policies(client: KubeClient) -> bool:
    """Returns whether the cluster supports ValidatingAdmissionPolicy, as Kubernetes 1.30 and later do."""
    resources = (await client.get(ADMISSION)).get("resources") or []
    return any(one["name"] == "validatingadmissionpolicies" for one in resources)


async def ensure_objects(client: KubeClient) -> None:
    """Applies the required objects and overwrites other changes."""
    for one in ROLE_BINDINGS:
        await client.apply(one.path, one.body)
    for one in policies(await whoami(client)) if await knows_policies(client) else ():
        there = await client.find(one.path)
        if there is None or not same_policy(there, one.body):
            # The service's own account may not write policies: there, an administrator applies 20-rbac.yaml.
            await client.apply(one.path, one.body)
    role = await client.find(KUBELET_ROLE_OBJECT.path)
    if role is None or role.get("rules") != KUBELET_ROLE_OBJECT.body["rules"]:
        # The service's own account may not write roles: there, an administrator applies 20-rbac.yaml.
        await client.apply(KUBELET_ROLE_OBJECT.path, KUBELET_ROLE_OBJECT.body)


async def check_cluster(client: KubeClient, *, allow_exec: bool = False) -> list[Finding]:
    """Checks the required objects and permissions, and warns about other approvers.

    The permission to bind the role of exec nodes is required if there are any, or `allow_exec` allows them.
    """
    findings = [await _compared(client, one) for one in ROLE_BINDINGS]
    if await knows_policies(client):
        user = await whoami(client)
        findings += [await _compared_policy(client, user, one) for one in policies(user)]
        findings += await _check_own_objects_policy(client, user)
    else:
        findings.append(
            Finding(
                "warning",
                "ValidatingAdmissionPolicy",
                "Not supported before Kubernetes 1.30. An approval by another approver is only detected afterwards, "
                "and nodes that join by exec can write other nodes.",
            )
        )
    findings.append(await _check_kubelet_role(client))
    bindings, _ = await client.list(BINDINGS)
    binds_kubelets = allow_exec or any(_is_of_exec_node(each) for each in bindings)
    found = await check_permissions(client, binds_kubelets=binds_kubelets)
    return [*findings, *_other_approvers(bindings), *found]


def _is_of_exec_node(binding: KubeObject) -> bool:
    name, role = str(binding["metadata"]["name"]), binding["roleRef"]["name"]
    return name.startswith(BINDING_PREFIX) and bool(role == KUBELET_ROLE)


def _exists(one: RequiredObject) -> Finding:
    return Finding("ok", one.title, "The object exists.")


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
    return _exists(one)


async def _compared_policy(client: KubeClient, user: str, one: RequiredObject) -> Finding:
    there = await client.find(one.path)
    if there and same_policy(there, one.body):
        return _exists(one)
    why = "The object differs from the required one." if there else "The object does not exist."
    if _is_service_account(user):  # others, such as administrators, apply policies that name them as the approver
        why += f" {NARROW}." + (" If it still differs, delete it and run the command again." if there else "")
    return Finding("problem", one.title, why)


def _is_service_account(user: str) -> bool:
    return user.startswith("system:serviceaccount:")


async def _check_kubelet_role(client: KubeClient) -> Finding:
    title, advice = KUBELET_ROLE_OBJECT.title, f"{NARROW}."
    try:
        there = await client.find(KUBELET_ROLE_OBJECT.path)
    except ApiRefused as refusal:
        return Finding("problem", title, f"The object cannot be read: {refusal.message} {advice}")
    if there is None or there.get("rules") != KUBELET_ROLE_OBJECT.body["rules"]:
        return Finding("problem", title, f"The object is missing or differs from the required one. {advice}")
    return _exists(KUBELET_ROLE_OBJECT)


async def _check_own_objects_policy(client: KubeClient, user: str) -> list[Finding]:
    """Checks the policy that limits what a service account of the service writes. An administrator applies it."""
    if not _is_service_account(user):
        return []
    why = f"Without it the service can write Secrets, role bindings and Nodes that are not its own. {NARROW}."
    findings = []
    for one in (RequiredObject(*each) for each in account_policy(user)):
        there = None
        with suppress(ApiRefused):  # the role may not allow to read it
            there = await client.find(one.path)
        is_right = there is not None and same_policy(there, one.body)
        findings.append(_exists(one) if is_right else Finding("warning", one.title, why))
    return findings


def _essence(document: KubeObject) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in {"metadata", "status"}}


def _other_approvers(bindings: list[KubeObject]) -> list[Finding]:
    """Finds bindings that let the cluster's own approver approve requests that only this service should approve."""
    found = []
    for binding in bindings:
        groups = {one["name"] for one in binding.get("subjects") or [] if one["kind"] == "Group"} & APPROVER_GROUPS
        if binding["roleRef"]["name"] == f"{SIGNING}:nodeclient" and groups:
            why = (
                f"It lets the cluster approve requests of {', '.join(sorted(groups))} automatically. "
                f"For flex nodes the policy {SINGLE_USE_POLICY} prevents that. Delete the binding if nothing else "
                "needs it."
            )
            found.append(Finding("warning", f"ClusterRoleBinding {binding['metadata']['name']}", why))
    return found
