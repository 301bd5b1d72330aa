"""What the service must be allowed to do in a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.rp.clusters.clients import Client

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


CERTIFICATES, RBAC, ADMISSION = "certificates.k8s.io", "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
NEEDED = (
    *_all("create get list patch delete", "", "secrets", "kube-system"),
    *_all("get list watch patch delete", CERTIFICATES, "certificatesigningrequests"),
    *_all("update", CERTIFICATES, "certificatesigningrequests/approval"),
    *_all("approve", CERTIFICATES, "signers", "", "kubernetes.io/kube-apiserver-client-kubelet"),
    *_all("approve", CERTIFICATES, "signers", "", "kubernetes.io/kubelet-serving"),
    *_all("get list watch patch delete", "", "nodes"),
    *_all("get", "", "services", "kube-system", "kube-dns"),
    *_all("get", "", "services", "default", "kubernetes"),
    *_all("get list watch create patch delete", RBAC, "clusterrolebindings"),
    *_all("bind", RBAC, "clusterroles", "", "system:node"),
    *_all("bind", RBAC, "clusterroles", "", "system:node-bootstrapper"),
    *_all("bind", RBAC, "clusterroles", "", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"),
    *_all("get create patch", ADMISSION, "validatingadmissionpolicies"),
    *_all("get create patch", ADMISSION, "validatingadmissionpolicybindings"),
)


async def check_permissions(client: Client) -> list[Finding]:
    """One finding when all is well, and one for each that is missing."""
    answers = await asyncio.gather(*(client.request("POST", REVIEWS, one.review()) for one in NEEDED))
    missing = [one for one, answer in zip(NEEDED, answers, strict=True) if not answer["status"]["allowed"]]
    if not missing:
        return [Finding("ok", "permissions", f"This service may do all of the {len(NEEDED)} things it needs.")]
    return [Finding("problem", f"permission to {one}", "This service does not have it.") for one in missing]
