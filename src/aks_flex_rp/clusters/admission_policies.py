"""Admission policies for flex nodes and for the account of the service, which the manifest contains, and the role of
nodes whose kubelet always authenticates with its Azure identity (`exec`).

An administrator applies them, because an account that can write an admission policy can read with it whatever it may
delete: the message of a policy can contain the object.

For the cluster, the kubelet of an exec node is an ordinary user, outside the Node authorizer and NodeRestriction. Its
ClusterRole has what a kubelet needs. It cannot list Secrets and ConfigMaps, but it cannot be narrowed to the pods of
one node. A policy limits its writes to its own Node, lease, CSINode and pods, and its tokens of service accounts to
those of pods. The ClusterRoleBindings of the nodes are the parameters of the policy. An identity that is bound for
two nodes can write nothing.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.contract import LEFT_ANNOTATION, MANAGED_LABEL
from aks_flex_rp.clusters.bootstrap_tokens import TOKEN_GROUP, TOKEN_LABEL
from aks_flex_rp.clusters.csr_policy import CLIENT_SIGNER
from aks_flex_rp.join_state import ACCESS_ROLES, KUBELET_ROLE, AccessMethod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.clusters.client import KubeObject


BINDING_PREFIX = "aks-flex-node:node:"  # node names contain no colon, so this cannot collide with other bindings
EXEC_LABEL = "flex.aks.azure.com/access"  # label on the bindings of nodes that join by exec
OWN_NODE_POLICY = "aks-flex-node-own-node"
RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES = f"/apis/{RBAC}/v1/clusterroles"
LEASES = "kube-node-lease"

# A kubelet reads Secrets and ConfigMaps by name if it does not watch them. The service configures that.
KUBELET_RULES: tuple[tuple[str, str, str], ...] = (  # API group, resources, verbs
    ("authentication.k8s.io", "tokenreviews", "create"),
    ("authorization.k8s.io", "subjectaccessreviews localsubjectaccessreviews", "create"),
    ("", "services", "get list watch"),
    ("", "nodes", "create get list watch patch update"),
    ("", "nodes/status", "patch update"),
    ("", "events", "create patch update"),
    ("", "pods", "create get list watch delete"),
    ("", "pods/status", "patch update"),
    ("", "pods/eviction", "create"),
    ("", "configmaps secrets persistentvolumeclaims persistentvolumes endpoints", "get"),
    ("", "persistentvolumeclaims/status", "get patch update"),
    ("", "serviceaccounts/token", "create"),
    ("certificates.k8s.io", "certificatesigningrequests", "create get list watch"),
    ("coordination.k8s.io", "leases", "create get patch update delete"),
    ("storage.k8s.io", "volumeattachments", "get"),
    ("storage.k8s.io", "csidrivers", "get list watch"),
    ("storage.k8s.io", "csinodes", "create get patch update delete"),
    ("node.k8s.io", "runtimeclasses", "get list watch"),
    ("resource.k8s.io", "resourceclaims", "get"),
)

CERTIFICATES = "certificates.k8s.io"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
SINGLE_USE_POLICY = "aks-flex-node-single-use"
OWN_OBJECTS_POLICY = "aks-flex-rp-own-objects"
NODE_POLICIES = (SINGLE_USE_POLICY, OWN_NODE_POLICY)
SIGNING = "system:certificates.k8s.io:certificatesigningrequests"
GROUP_BINDINGS = {  # by name: the role and group of the bindings that all flex nodes need
    "aks-flex-node:ask-for-certificate": ("system:node-bootstrapper", TOKEN_GROUP),
    "aks-flex-node:renew-certificate": (f"{SIGNING}:selfnodeclient", "system:nodes"),
}
OBJECT_ID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
API_DEFAULTS: dict[str, object] = {  # the API server adds them to a policy
    "matchPolicy": "Equivalent",
    "namespaceSelector": {},
    "objectSelector": {},
    "scope": "*",
}


def node_policies(user: str) -> Iterator[tuple[str, KubeObject]]:
    """Yields the policies for nodes and their bindings, each with the path of its collection.

    Tokens may only request kubelet certificates, and only `user` may approve them. Exec nodes write only what is
    theirs.
    """
    yield from _objects(SINGLE_USE_POLICY, _single_use_policy(user), _deny(SINGLE_USE_POLICY))
    yield from _objects(OWN_NODE_POLICY, *own_node_policy())


def account_policy(account: str) -> Iterator[tuple[str, KubeObject]]:
    """Yields the policy that limits the writes of the service's account, and its binding."""
    return _objects(OWN_OBJECTS_POLICY, _own_objects_policy(account), _deny(OWN_OBJECTS_POLICY))


def same_policy(there: KubeObject, desired: KubeObject) -> bool:
    """Returns whether a policy or binding of the cluster has exactly the desired content."""
    return bool(_without_defaults(there.get("spec")) == desired["spec"])


def _without_defaults(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_defaults(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_defaults(each) for name, each in value.items() if API_DEFAULTS.get(name, ...) != each}


def _single_use_policy(user: str) -> KubeObject:
    group, approver = json.dumps(TOKEN_GROUP), json.dumps(user)  # JSON strings are valid CEL strings
    approved = (
        'has({0}.status) && has({0}.status.conditions) && {0}.status.conditions.exists(c, c.type == "Approved")'
    )
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                _rule(CERTIFICATES, "certificatesigningrequests", operations=("CREATE",)),
                _rule(CERTIFICATES, "certificatesigningrequests/approval", operations=("UPDATE",)),
            ]
        },
        "variables": _named(
            {
                "creates": 'request.operation == "CREATE"',
                "ours": f"has(object.spec.groups) && {group} in object.spec.groups",
                "approved": approved.format("object"),
                "before": f"oldObject != null && {approved.format('oldObject')}",
            }
        ),
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


def _named(expressions: dict[str, str]) -> list[KubeObject]:
    return [{"name": name, "expression": each} for name, each in expressions.items()]


def _rule(group: str, *resources: str, operations: tuple[str, ...] = ("CREATE", "UPDATE", "DELETE")) -> KubeObject:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
    }


def _own_objects_policy(account: str) -> KubeObject:
    (label, value), groups = next(iter(MANAGED_LABEL.items())), base64.b64encode(TOKEN_GROUP.encode()).decode()
    written, old = "variables.written", "oldObject.metadata"
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                _rule("", "secrets", "nodes"),
                _rule(RBAC, "clusterrolebindings"),
            ]
        },
        "matchConditions": _named({"provider": f"request.userInfo.username == {json.dumps(account)}"}),
        "variables": _named(
            {
                "written": 'request.operation == "DELETE" ? oldObject : object',
                "secret": 'request.resource.resource == "secrets"',
                # Of another type, the cluster would write a token of any service account into it.
                "mark": f'{written}.metadata.name == "aks-flex-rp" && {written}.type == "Opaque"',
                "token": f'{written}.type == "bootstrap.kubernetes.io/token" && '
                f"has({written}.metadata.labels) && {json.dumps(TOKEN_LABEL)} in {written}.metadata.labels && "
                f'has({written}.data) && "auth-extra-groups" in {written}.data && '
                f'{written}.data["auth-extra-groups"] == {json.dumps(groups)}',
                **_bound(),
            }
        ),
        "validations": [
            {
                "expression": "!variables.secret || variables.mark || variables.token",
                "message": "The resource provider may write only its own bootstrap tokens and its mark.",
            },
            {
                "expression": 'request.resource.resource != "clusterrolebindings" || '
                '(request.operation == "DELETE" ? oldObject.metadata.name.startsWith("aks-flex-node:") : '
                "variables.group || variables.identity)",
                "message": "The resource provider may write only the role bindings of flex nodes, for their groups "
                "and the object IDs of their identities.",
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


def _bound() -> dict[str, str]:
    """Returns variables about a written ClusterRoleBinding. One of the account itself would give it the role."""
    name, role, subject = "object.metadata.name", "object.roleRef.name", "object.subjects[0]"
    groups = (
        f"({name} == {json.dumps(binding)} && {role} == {json.dumps(bound)} && {subject}.name == {json.dumps(group)})"
        for binding, (bound, group) in GROUP_BINDINGS.items()
    )
    kubelet, labels = f"{role} == {json.dumps(KUBELET_ROLE)}", "object.metadata.labels"
    # The label makes the binding a parameter of the policy that limits exec nodes.
    limited = f"({kubelet} && has({labels}) && {json.dumps(EXEC_LABEL)} in {labels})"
    requests = f"{role} == {json.dumps(ACCESS_ROLES[AccessMethod.CERTIFICATE])}"
    one = "has(object.subjects) && object.subjects.size() == 1"
    return {
        "group": f'{one} && {subject}.kind == "Group" && ({" || ".join(groups)})',
        "identity": f'{one} && {subject}.kind == "User" && {subject}.name.matches({json.dumps(OBJECT_ID)}) && '
        f"{name}.startsWith({json.dumps(BINDING_PREFIX)}) && ({requests} || {limited})",
    }


def kubelet_role() -> KubeObject:
    """Returns the ClusterRole of exec nodes."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": KUBELET_ROLE},
        "rules": [
            {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}
            for group, resources, verbs in KUBELET_RULES
        ],
    }


def own_node_policy() -> tuple[KubeObject, KubeObject]:
    """Returns the specs of the admission policy and its binding. Each binding of an exec node is checked alone."""
    policy: dict[str, Any] = {
        "failurePolicy": "Fail",
        "paramKind": {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding"},
        "matchConstraints": {
            "resourceRules": [
                _rule("", "nodes", "nodes/status", "pods", "pods/status", "serviceaccounts/token"),
                _rule("coordination.k8s.io", "leases"),
                _rule("storage.k8s.io", "csinodes"),
            ]
        },
        # Identities are named by their object IDs. Other users are not checked, for each write of every node counts.
        "matchConditions": _named({"azure-identity": 'request.userInfo.username.matches("^[0-9a-f-]{36}$")'}),
        "variables": _named(
            {
                "own": "params.subjects[0].name == request.userInfo.username",
                "node": f"params.metadata.name.substring({len(BINDING_PREFIX)})",
                "written": 'request.operation == "DELETE" ? oldObject : object',
                "pod": 'request.resource.resource == "pods"',
                "token": 'request.resource.resource == "serviceaccounts"',
            }
        ),
        "validations": [
            {
                "expression": "!variables.own || variables.pod || variables.token || "
                "variables.written.metadata.name == variables.node",
                "message": "The identity of a flex node may write only its own Node, lease and CSINode.",
            },
            {
                "expression": '!variables.own || request.resource.resource != "leases" || '
                f"request.namespace == {json.dumps(LEASES)}",
                "message": f"The identity of a flex node may write only leases in {LEASES}.",
            },
            {
                "expression": "!variables.own || !variables.pod || (has(variables.written.spec.nodeName) && "
                "variables.written.spec.nodeName == variables.node)",
                "message": "The identity of a flex node may write only the pods of its own Node.",
            },
            {
                "expression": '!variables.own || !variables.pod || request.operation != "CREATE" || '
                '(has(object.metadata.annotations) && "kubernetes.io/config.mirror" in object.metadata.annotations)',
                "message": "The identity of a flex node may create only mirror pods.",
            },
            {
                # The API server checks that the pod exists and has this service account. A kubelet names its pod.
                "expression": "!variables.own || !variables.token || (has(object.spec.boundObjectRef) && "
                'has(object.spec.boundObjectRef.kind) && object.spec.boundObjectRef.kind == "Pod")',
                "message": "The identity of a flex node may request only tokens that are bound to a pod.",
            },
        ],
    }
    selector = {"matchExpressions": [{"key": EXEC_LABEL, "operator": "Exists"}]}
    binding = {
        "policyName": OWN_NODE_POLICY,
        "validationActions": ["Deny"],
        "paramRef": {"selector": selector, "parameterNotFoundAction": "Allow"},
    }
    return policy, binding


def _deny(name: str) -> KubeObject:
    return {"policyName": name, "validationActions": ["Deny"]}


def _objects(name: str, policy: KubeObject, binding: KubeObject) -> Iterator[tuple[str, KubeObject]]:
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
        yield f"{ADMISSION}/{plural}", body
