"""Permissions of the service in a cluster: what it needs, and what it should not have.

RBAC cannot limit the creation and deletion of Secrets and ClusterRoleBindings to the names that the service uses,
because they contain random IDs and names of nodes. So an admission policy of the manifest does. The service cannot
change that policy, nor those for nodes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aks_flex_rp.clusters.admission_policies import GROUP_BINDINGS, NODE_POLICIES, OWN_OBJECTS_POLICY
from aks_flex_rp.clusters.bootstrap_tokens import RECORDS_NAMESPACE
from aks_flex_rp.join_state import ACCESS_ROLES, KUBELET_ROLE, AccessMethod

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
