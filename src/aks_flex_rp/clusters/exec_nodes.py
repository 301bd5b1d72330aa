"""Limits of nodes whose kubelet always authenticates with its Azure identity (`exec`).

For the cluster such a kubelet is an ordinary user, outside the Node authorizer and NodeRestriction. Its
ClusterRole has what a kubelet needs. It cannot list Secrets and ConfigMaps, but it cannot be narrowed to the pods of
one node. An admission policy limits its writes to its own Node, lease, CSINode and pods, and its tokens of service
accounts to those of pods. The ClusterRoleBindings of the nodes are the parameters of the policy. An identity that is
bound for two nodes can write nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aks_flex_rp.join_state import KUBELET_ROLE

if TYPE_CHECKING:
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
    written = 'request.operation == "DELETE" ? oldObject : object'
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
        "matchConditions": [
            {"name": "azure-identity", "expression": 'request.userInfo.username.matches("^[0-9a-f-]{36}$")'}
        ],
        "variables": [
            {"name": "own", "expression": "params.subjects[0].name == request.userInfo.username"},
            {"name": "node", "expression": f"params.metadata.name.substring({len(BINDING_PREFIX)})"},
            {"name": "written", "expression": written},
            {"name": "pod", "expression": 'request.resource.resource == "pods"'},
            {"name": "token", "expression": 'request.resource.resource == "serviceaccounts"'},
        ],
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


def _rule(group: str, *resources: str) -> dict[str, list[str]]:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": list(resources),
    }
