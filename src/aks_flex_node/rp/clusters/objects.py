"""What a cluster needs so that flex nodes can join it safely: as data, applied and compared by the API server itself.

The policy is what makes "single use" true where the cluster's own approver would be faster than ours: it leaves the
approval of our nodes' requests to us.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.rp.clusters.clients import Refused
from aks_flex_node.rp.clusters.findings import Finding
from aks_flex_node.rp.clusters.permissions import check_permissions
from aks_flex_node.rp.clusters.requests import CLIENT_SIGNER
from aks_flex_node.rp.clusters.tokens import GROUP

if TYPE_CHECKING:
    from aks_flex_node.rp.clusters.clients import Client, Object

RBAC = "rbac.authorization.k8s.io"
BINDINGS = f"/apis/{RBAC}/v1/clusterrolebindings"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
SIGNING = "system:certificates.k8s.io:certificatesigningrequests"
POLICY = "aks-flex-node-single-use"
MEANT = {"system:bootstrappers", "system:authenticated", GROUP}  # whom no other approver should trust


@dataclass(frozen=True)
class Wanted:
    """An object that must be there, just so."""

    collection: str
    body: Object

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.body['metadata']['name']}"

    @property
    def title(self) -> str:
        return f"{self.body['kind']} {self.body['metadata']['name']}"


def _binding(name: str, role: str, group: str) -> Wanted:
    body = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
    }
    return Wanted(BINDINGS, body)


ROLES = (
    _binding("aks-flex-node:ask-for-certificate", "system:node-bootstrapper", GROUP),
    _binding("aks-flex-node:renew-certificate", f"{SIGNING}:selfnodeclient", "system:nodes"),
)


def policies(user: str) -> tuple[Wanted, ...]:
    """Who asks with our tokens asks for a kubelet's certificate, and only `user` may approve it."""
    group, approver = json.dumps(GROUP), json.dumps(user)  # JSON's strings are CEL's, too
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
    return (
        _admission("validatingadmissionpolicies", "ValidatingAdmissionPolicy", spec),
        _admission("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", binding),
    )


def _rule(resource: str, operation: str) -> dict[str, list[str]]:
    return {
        "apiGroups": ["certificates.k8s.io"],
        "apiVersions": ["v1"],
        "operations": [operation],
        "resources": [resource],
    }


def _admission(plural: str, kind: str, spec: Object) -> Wanted:
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": POLICY},
        "spec": spec,
    }
    return Wanted(f"{ADMISSION}/{plural}", body)


async def whoami(client: Client) -> str:
    """As whom the cluster knows us."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    return str(answer["status"]["userInfo"]["username"])


async def knows_policies(client: Client) -> bool:
    """From Kubernetes 1.30 on."""
    resources = (await client.get(ADMISSION)).get("resources") or []
    return any(one["name"] == "validatingadmissionpolicies" for one in resources)


async def wanted(client: Client) -> tuple[Wanted, ...]:
    return (*ROLES, *policies(await whoami(client))) if await knows_policies(client) else ROLES


async def ensure(client: Client) -> None:
    """Make them so, whoever has changed them."""
    for one in await wanted(client):
        await client.apply(one.path, one.body)


async def check(client: Client) -> list[Finding]:
    """What is there, what is not as it should be, and what a person should know of."""
    findings = [await _compared(client, one) for one in await wanted(client)]
    if not await knows_policies(client):
        findings.append(
            Finding(
                "warning",
                "ValidatingAdmissionPolicy",
                "This cluster is older than 1.30 and has none: an approver that is faster than this service is "
                "noticed after the fact only.",
            )
        )
    return [*findings, *await _rivals(client), *await check_permissions(client)]


async def _compared(client: Client, one: Wanted) -> Finding:
    """The API server itself says whether applying would change anything: it knows its defaults."""
    there = await client.find(one.path)
    if there is None:
        return Finding("problem", one.title, "It is missing.")
    try:
        applied = await client.apply(one.path, one.body, dry=True)
    except Refused as refusal:
        return Finding("problem", one.title, f"It differs and cannot be put right: {refusal.message}")
    if _essence(there) != _essence(applied):
        return Finding("problem", one.title, "It differs from what is needed.")
    return Finding("ok", one.title, "It is there.")


def _essence(document: Object) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in {"metadata", "status"}}


async def _rivals(client: Client) -> list[Finding]:
    """Bindings by which the cluster's own approver would approve what only we should."""
    bindings, _ = await client.list(BINDINGS)
    found = []
    for binding in bindings:
        groups = {one["name"] for one in binding.get("subjects") or [] if one["kind"] == "Group"} & MEANT
        if binding["roleRef"]["name"] == f"{SIGNING}:nodeclient" and groups:
            why = (
                f"By it the cluster approves requests of {', '.join(sorted(groups))} by itself. "
                f"For flex nodes the policy {POLICY} prevents that; if nobody else needs the binding, take it away."
            )
            found.append(Finding("warning", f"ClusterRoleBinding {binding['metadata']['name']}", why))
    return found
