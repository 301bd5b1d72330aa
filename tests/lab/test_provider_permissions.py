"""Attacks with the provider's service account, as root on its host can make them, on a real API server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.clusters import access, bootstrap_tokens, holder, prerequisites
from aks_flex_rp.clusters.admission_policies import ADMISSION, NODE_POLICIES, OWN_OBJECTS_POLICY, SIGNING
from aks_flex_rp.clusters.client import ApiRefused, FixedConnection, KubeClient
from aks_flex_rp.clusters.connections import load_kubeconfig
from aks_flex_rp.clusters.prerequisites import check_permissions
from aks_flex_rp.join_state import ACCESS_ROLES, KUBELET_ROLE, AccessMethod, ClusterAccess
from tests.lab.cluster_harness import until, watched
from tests.lab_machines import without_provider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_rp.clusters.connections import DirectConnection

MANIFESTS = Path(__file__).parents[2] / "packaging" / "kubernetes"
FILES = [word for name in ("10-namespace", "20-rbac") for word in ("-f", str(MANIFESTS / f"{name}.yaml"))]
EXEC_FILE = ("-f", str(MANIFESTS / "21-rbac-exec.yaml"))
OID = "11111111-2222-3333-4444-555555555555"
EARLIER_RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "get", "list", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "resourceNames": ["kube-dns"], "verbs": ["get"]},
]
EARLIER_POLICIES = {
    "apiGroups": ["admissionregistration.k8s.io"],
    "resources": ["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
    "resourceNames": list(NODE_POLICIES),
    "verbs": ["get", "create", "patch"],
}
ROLE = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/aks-flex-rp"
RECORDS_BINDING = "/apis/rbac.authorization.k8s.io/v1/namespaces/aks-flex-tokens/rolebindings/aks-flex-rp"
OWN = "may write only"
OWN_ACCOUNT = {"kind": "ServiceAccount", "name": "aks-flex-rp", "namespace": "aks-flex"}


@pytest.fixture(scope="module")
def account(lab: Lab) -> Iterator[DirectConnection]:
    """The service account of the manifest."""
    with without_provider(lab):
        lab.cluster.run("apply", *FILES)
        token = lab.cluster.run("create", "token", "aks-flex-rp", "-n", "aks-flex").out.strip()
        direct = replace(load_kubeconfig(lab.admin_kubeconfig), certificate="", key="", token=token)
        asyncio.run(_policy_holds(direct))
        yield direct
        lab.cluster.run("delete", "--ignore-not-found", *FILES)


async def _policy_holds(direct: DirectConnection) -> None:
    async with KubeClient(FixedConnection(direct)) as client:

        async def holds() -> bool:
            return OWN in await refused(client, "POST", bootstrap_tokens.SECRETS, secret("probe"), dryRun="All")

        await until(holds, "the policy is in effect")


async def refused(client: KubeClient, method: str, path: str, body: Any = None, **parameters: str) -> str:
    """Sends a request; returns why it is refused, or nothing."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        await client.request(method, path, body, kind, parameters)
    except ApiRefused as refusal:
        if refusal.status in {403, 422}:
            return refusal.message
        raise
    return ""


def secret(name: str, kind: str = "Opaque", **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": name, **metadata}}


def binding(name: str, role: str, *subjects: dict[str, str]) -> dict[str, Any]:
    """Returns a binding, by default for the account itself."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": list(subjects) or [OWN_ACCOUNT],
    }


def subject(kind: str, name: str) -> dict[str, str]:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}


async def test_account_cannot_read_secrets_of_kube_system(lab: Lab, account: DirectConnection) -> None:
    """With the earlier role it read the tokens and keys of everything in kube-system."""
    lab.cluster.apply(secret("victim", namespace="kube-system"))
    try:
        async with KubeClient(FixedConnection(account)) as client:
            for path in (bootstrap_tokens.SECRETS, f"{bootstrap_tokens.SECRETS}/victim"):
                assert "cannot" in await refused(client, "GET", path)
            assert "cannot" in await refused(client, "PATCH", f"{bootstrap_tokens.SECRETS}/victim", {"data": {}})
            assert OWN in await refused(client, "DELETE", f"{bootstrap_tokens.SECRETS}/victim")
    finally:
        lab.cluster.run("delete", "secret", "victim", "-n", "kube-system")


async def test_account_cannot_get_token_of_another_account(account: DirectConnection) -> None:
    """The cluster writes the token of the named account into a Secret of this type."""
    whose = {"kubernetes.io/service-account.name": "generic-garbage-collector"}
    async with KubeClient(FixedConnection(account)) as client:
        for name in ("aks-flex-rp", "bootstrap-token-abcdef", "other"):
            body = secret(name, "kubernetes.io/service-account-token", annotations=whose)
            assert OWN in await refused(client, "POST", bootstrap_tokens.SECRETS, body)


async def test_account_cannot_create_token_of_other_groups(account: DirectConnection) -> None:
    """Another group, such as that of kubeadm, may be approved without the provider."""
    body = secret(
        "bootstrap-token-abcdef", "bootstrap.kubernetes.io/token", labels={bootstrap_tokens.TOKEN_LABEL: ""}
    )
    values = {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}
    groups = {"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token"}
    async with KubeClient(FixedConnection(account)) as client:
        for data in (values, values | groups):
            assert OWN in await refused(client, "POST", bootstrap_tokens.SECRETS, {**body, "stringData": data})


async def test_account_cannot_bind_other_roles_nor_change_foreign_bindings(account: DirectConnection) -> None:
    async with KubeClient(FixedConnection(account)) as client:
        for role in ("cluster-admin", "system:node"):
            body = binding("aks-flex-node:node:attack", role)
            assert "not currently held" in await refused(client, "POST", prerequisites.BINDINGS, body)
        foreign = binding("attack", "system:node-bootstrapper")
        assert OWN in await refused(client, "POST", prerequisites.BINDINGS, foreign)
        assert OWN in await refused(client, "DELETE", f"{prerequisites.BINDINGS}/system:kube-scheduler", dryRun="All")


async def test_account_cannot_bind_itself_or_groups_to_role_of_nodes(lab: Lab, account: DirectConnection) -> None:
    """With the role of exec nodes it would read all Secrets by name, and request tokens of all service accounts."""
    account_user = subject("User", "system:serviceaccount:aks-flex:aks-flex-rp")
    identity, everyone = subject("User", OID), subject("Group", "system:authenticated")
    exec_role, node = KUBELET_ROLE, "aks-flex-node:node:attack"
    attacks = [
        binding(f"aks-flex-node:{name}", role, *subjects)
        for name in ("node:attack", "interim:attack", "ask-for-certificate", "attack")
        for role in (exec_role, ACCESS_ROLES[AccessMethod.CERTIFICATE])
        for subjects in ((), (account_user,), (subject("Group", "system:serviceaccounts"),), (everyone,))
    ]
    attacks += [
        binding(node, exec_role, identity, OWN_ACCOUNT),  # a second subject
        binding(node, exec_role, identity),  # without the label by which the policy limits an exec node
        binding("aks-flex-node:attack", exec_role, identity),
        binding("aks-flex-node:renew-certificate", f"{SIGNING}:selfnodeclient", everyone),
        binding("aks-flex-node:interim:attack", "system:node-bootstrapper", identity),
    ]
    lab.cluster.run("apply", *EXEC_FILE)
    try:
        async with KubeClient(FixedConnection(account)) as client:
            await until(lambda: _grants_exec(client), "the role of exec nodes may be bound")
            for body in attacks:
                assert OWN in await refused(client, "POST", prerequisites.BINDINGS, body), body
            taken = {"subjects": [OWN_ACCOUNT]}
            for name in ("node:edge-34", "ask-for-certificate"):
                path = f"{prerequisites.BINDINGS}/aks-flex-node:{name}"
                assert OWN in await refused(client, "PATCH", path, taken)
            await access.withdraw_access(client, "edge-34")
            await prerequisites.ensure_objects(client)
    finally:
        lab.cluster.run("delete", *EXEC_FILE)


async def _grants_exec(client: KubeClient) -> bool:
    try:
        await access.grant_access(client, "edge-34", ClusterAccess(OID, AccessMethod.EXEC))
    except ApiRefused:
        return False
    return True


async def test_binding_of_exec_nodes_needs_its_own_manifest(lab: Lab, account: DirectConnection) -> None:
    """Without exec nodes, root on the provider's host could give the role to an Azure identity of its own."""
    body = access.access_binding(OID, KUBELET_ROLE, "edge-35")
    async with KubeClient(FixedConnection(account)) as client:
        assert "not currently held" in await refused(client, "POST", prerequisites.BINDINGS, body)
        found = [one for one in await prerequisites.check_cluster(client, allow_exec=True) if one.level != "ok"]
        assert [one.what for one in found] == ["permission to bind clusterroles aks-flex-node:kubelet"]
        assert "kubectl apply -f packaging/kubernetes/21-rbac-exec.yaml" in found[0].why
        lab.cluster.run("apply", *EXEC_FILE)
        try:
            await until(lambda: _levels(client, {"ok"}, allow_exec=True), "exec is allowed")
            await until(lambda: _levels(client, {"ok", "warning"}, allow_exec=False), "it is reported as too wide")
        finally:
            lab.cluster.run("delete", *EXEC_FILE)


async def _levels(client: KubeClient, expected: set[str], *, allow_exec: bool) -> bool:
    return {one.level for one in await prerequisites.check_cluster(client, allow_exec=allow_exec)} == expected


async def test_account_cannot_change_foreign_nodes(lab: Lab, account: DirectConnection) -> None:
    lab.cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cloud-1"}})
    try:
        async with KubeClient(FixedConnection(account)) as client:
            stolen = {"metadata": {"labels": {"kubernetes.azure.com/managed": "false"}}}
            assert OWN in await refused(client, "PATCH", "/api/v1/nodes/cloud-1", stolen)
            assert OWN in await refused(client, "DELETE", "/api/v1/nodes/cloud-1")
    finally:
        lab.cluster.run("delete", "node", "cloud-1")


async def test_account_cannot_remove_its_limits(account: DirectConnection) -> None:
    path = f"{ADMISSION}/validatingadmissionpolicies"
    body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {}}
    async with KubeClient(FixedConnection(account)) as client:
        for one in (path, f"{path.removesuffix('policies')}policybindings"):
            for name in (OWN_OBJECTS_POLICY, *NODE_POLICIES):
                assert "cannot" in await refused(client, "DELETE", f"{one}/{name}")
                assert "cannot" in await refused(client, "PATCH", f"{one}/{name}", {"spec": {}})
            assert "cannot" in await refused(client, "POST", one, body)


async def test_account_cannot_read_secrets_by_its_policies(lab: Lab, account: DirectConnection) -> None:
    """It may delete Secrets. A policy of its own printed the Secret in the warning of a dry run of that."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["secrets"]}
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "variables": None,
        "validations": [{"expression": "false", "messageExpression": "string(oldObject.data['stolen'])"}],
    }
    lab.cluster.apply({**secret("victim", namespace="kube-system"), "stringData": {"stolen": "by a policy"}})
    try:
        async with KubeClient(FixedConnection(account)) as client:
            for name in NODE_POLICIES:
                path = f"{ADMISSION}/validatingadmissionpolicies/{name}"
                assert "cannot" in await refused(client, "PATCH", path, {"spec": policy})
                bindings = f"{ADMISSION}/validatingadmissionpolicybindings/{name}"
                assert "cannot" in await refused(client, "PATCH", bindings, {"spec": {"validationActions": ["Warn"]}})
            deleted = await refused(client, "DELETE", f"{bootstrap_tokens.SECRETS}/victim", dryRun="All")
            assert OWN in deleted
            assert "YnkgYSBwb2xpY3k" not in deleted
    finally:
        lab.cluster.run("delete", "secret", "victim", "-n", "kube-system")


async def test_account_serves_a_join_and_token_is_used_once(lab: Lab, account: DirectConnection) -> None:
    """Everything that the provider does works with the narrow permissions, also in a new cluster."""
    lab.cluster.run("apply", *FILES)  # the lab's own provider has its own policies
    lab.cluster.run("delete", "clusterrolebinding", "aks-flex-node:ask-for-certificate")
    async with watched(lab, direct=account) as site:
        findings = [*await prerequisites.check_cluster(site.client)]
        assert {(one.level, one.what, one.why) for one in findings if one.level != "ok"} == set()
        await holder.write_holder(site.client, holder.ClusterHolder("us", "cluster"))
        assert await holder.read_holder(site.client) == holder.ClusterHolder("us", "cluster")
        await holder.remove_holder(site.client, "us")

        token = await site.mint("edge-31")
        name = await site.ask(token, "edge-31")
        assert (await site.decision(name))["type"] == "Approved"
        await site.certificate(name)
        await site.secret_gone(token)
        assert await bootstrap_tokens.list_tokens(site.client) == []

        bad = await site.mint("edge-32")
        decision = await site.decision(await site.ask(bad, "edge-32", as_user="system:node:edge-31"))
        assert decision["type"] == "Denied"
        await site.secret_gone(bad)


async def test_changed_policy_is_reported_and_applied_by_administrator(lab: Lab, account: DirectConnection) -> None:
    """The account cannot correct it. With the earlier role it does, and is reported as too wide."""
    admin = KubeClient(FixedConnection(load_kubeconfig(lab.admin_kubeconfig)))
    path = f"{ADMISSION}/validatingadmissionpolicies/{NODE_POLICIES[0]}"
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/aks-flex-rp"
    narrow = (await admin.get(role))["rules"]
    try:
        async with KubeClient(FixedConnection(account)) as client:
            await admin.merge(
                path, {"spec": {"matchConstraints": {"objectSelector": {"matchLabels": {"no": "one"}}}}}
            )
            found = [one for one in await prerequisites.check_cluster(client) if one.level != "ok"]
            assert [one.what for one in found] == [f"ValidatingAdmissionPolicy {NODE_POLICIES[0]}"]
            assert "-f packaging/kubernetes/10-namespace.yaml -f packaging/kubernetes/20-rbac.yaml" in found[0].why
            with pytest.raises(ApiRefused, match="cannot patch"):
                await prerequisites.ensure_objects(client)
            assert "If it still differs, delete it" in found[0].why
            lab.cluster.run("delete", "validatingadmissionpolicy", NODE_POLICIES[0])
            lab.cluster.run("apply", *FILES)
            assert {one.level for one in await prerequisites.check_cluster(client)} == {"ok"}

            await admin.delete(path)
            await admin.merge(role, {"rules": [*narrow, EARLIER_POLICIES]})
            await until(lambda: _applies(client), "the earlier role is in effect")
            [wide] = [one for one in await prerequisites.check_cluster(client) if one.level != "ok"]
            assert "patch validatingadmissionpolicies aks-flex-node-single-use" in wide.why
    finally:
        lab.cluster.run("apply", *FILES)
        await admin.merge(role, {"rules": narrow})
        await admin.close()


async def _applies(client: KubeClient) -> bool:
    try:
        await prerequisites.ensure_objects(client)
    except ApiRefused:
        return False
    return True


async def test_earlier_role_works_and_is_reported_as_too_wide(lab: Lab, account: DirectConnection) -> None:
    """A token that was created with the earlier role still works after the role is narrowed."""
    admin = KubeClient(FixedConnection(load_kubeconfig(lab.admin_kubeconfig)))
    narrow = (await admin.get(ROLE))["rules"]
    await admin.merge(ROLE, {"rules": EARLIER_RULES})
    await admin.delete(RECORDS_BINDING)
    try:
        async with KubeClient(FixedConnection(account)) as client:
            await until(lambda: _reads(client), "the earlier role is in effect")
            [fine, wide] = await check_permissions(client)
            assert (fine.level, wide.level) == ("ok", "warning")
            assert "list secrets in kube-system" in wide.why
            assert "-f packaging/kubernetes/10-namespace.yaml -f packaging/kubernetes/20-rbac.yaml" in wide.why
            later = datetime.fromtimestamp(time.time(), timezone.utc) + timedelta(hours=1)
            minted = await bootstrap_tokens.mint_token(client, "edge-33", later)
            assert await bootstrap_tokens.find_token(client, minted.id)
            lab.cluster.run("apply", *FILES)
            await until(lambda: _reads(client, allowed=False), "the role is narrow")
        async with watched(lab, direct=account) as site:
            site.heard.tokens["edge-33"] = minted.id
            await site.certificate(await site.ask(minted, "edge-33"))
            await site.secret_gone(minted)
    finally:
        await admin.merge(ROLE, {"rules": narrow})
        await admin.close()


async def _reads(client: KubeClient, *, allowed: bool = True) -> bool:
    return (await refused(client, "GET", bootstrap_tokens.SECRETS) == "") is allowed
