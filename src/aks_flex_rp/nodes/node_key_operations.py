"""Rotates and revokes the keys of nodes, and makes a new key the current one at its first use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.arm_errors import NODE_KEY_TIME
from aks_flex_node.api.node_keys import fingerprint, rotation_audience
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.node_assertions import InvalidNodeKey, verify_proof
from aks_flex_rp.callers import CallerKind
from aks_flex_rp.node_keys import KeyUse
from aks_flex_rp.nodes.machine_claims import replaced
from aks_flex_rp.store.model import AuditAction

if TYPE_CHECKING:
    from aks_flex_node.api.machine_identity import MachineIdentity
    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.nodes.machine_claims import MachineClaims
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import Enrolment

NO_KEY = "NodeHasNoKey"


@dataclass(frozen=True)
class NodeKeyCommands:
    context: NodeContext
    claims: MachineClaims

    async def on_use(
        self, cluster: ClusterInfo, name: str, machine: MachineIdentity | None, request: RequestContext
    ) -> None:
        """Handles a request by a key that is not the current one. Raises ArmError for a key that was replaced."""
        if request.key_use is KeyUse.NEXT:
            await self._follow_enrolment(cluster.key, name.lower(), request.caller.id, machine)
            await self.claims.on_key_used(cluster.key, name.lower(), request.caller.id)
        elif request.key_use is KeyUse.FORMER:
            node = await self.context.store.node(cluster.key, name.lower())
            if node is None:
                return  # deleted, which the request is told
            machines = node.join.machines
            if machine and machine.id in machines.replaced:
                raise replaced(node.name, machines.owner)
            raise errors.key_replaced(node.name)

    async def _follow_enrolment(
        self, cluster: str, name: str, thumbprint: str, client: MachineIdentity | None
    ) -> None:
        """Gives the use of an enrolment to the next key of its machine, before that becomes the current one. If the
        process ends in between, the next request of the key does both again.
        """
        store = self.context.store
        node, machine = await store.node(cluster, name), await store.machine_of_node(cluster, name)
        if node is None or machine is None or machine.thumbprint != node.join.keys.current:
            return
        is_same = client is not None and client.id == machine.machine_id
        if thumbprint == node.join.machines.fetch_key and not is_same:
            return  # another machine has got the node by a config URL

        async def write(enrolment: Enrolment | None) -> None:
            found = await store.machine_of_node(cluster, name)
            is_new = await store.machine(cluster, machine.enrolment, thumbprint) is None
            if enrolment and found and is_new and found.thumbprint == machine.thumbprint:
                after = replace(found, thumbprint=thumbprint, version=0)
                await store.put_machine(enrolment, after, replaces=found)

        await self.context.change_enrolment(
            cluster, machine.enrolment, write, lambda _: errors.concurrent_changes(name)
        )

    async def rotate(
        self,
        cluster: ClusterInfo,
        name: str,
        body: dict[str, Any],
        machine: MachineIdentity | None,
        request: RequestContext,
    ) -> dict[str, Any]:
        """Binds another key to the node that asks for it. The earlier key is valid until the new one is used."""
        proof, consent = body.get("proof"), body.get("consent", "")
        if not isinstance(proof, str) or not isinstance(consent, str) or not set(body) <= {"proof", "consent"}:
            raise errors.invalid("proof", "The proof of the new key is needed as text.")
        node_id = cluster.id.node(name).lower()
        thumbprint = _verified(proof, node_id, "proof")
        if request.caller.kind is CallerKind.NODE_KEY:
            # An assertion that someone recorded must not be enough to take the node over.
            signer = _verified(consent, rotation_audience(node_id, thumbprint), "consent")
            if signer != request.caller.id:
                raise ArmError(400, "InvalidNodeKey", "The consent is not signed with the current key.", "consent")

        async def write(node: Node | None) -> Node:
            if node is None:
                raise await self.context.missing_node(cluster, name, request)
            if machine:
                node = await self.claims.on_report(node, machine, request)
            request.check_key(node)
            keys, now = node.join.keys, self.context.now()
            if keys.use_of(thumbprint) in {KeyUse.REVOKED, KeyUse.FORMER}:
                raise errors.invalid("proof", "The key was the node's before. Use a new key.")
            if keys.next and keys.next == node.join.machines.fetch_key and node.join.has_valid_url(now):
                message = (
                    f"Another key was bound to node {node.name} by its join command, and has not been used yet. The "
                    "key is replaced when that machine has joined, or its join command has expired."
                )
                raise ArmError(409, "Conflict", message)
            after = keys.bound(thumbprint, now)
            if after == keys:
                return node
            detail = {"key": thumbprint, "before": keys.current}
            event = request.event(now, AuditAction.KEY_ROTATED, cluster.id.node(node.name), **detail)
            await self.context.put_join(node, node.join.with_keys(after), [event])
            return node

        node = await self.context.change_node(cluster.key, name, write)
        return {"thumbprint": thumbprint, "audience": cluster.key_audience, "configVersion": str(node.version)}

    async def revoke(self, cluster: ClusterInfo, name: str, request: RequestContext) -> dict[str, Any]:
        """Revokes the key of a node at once, with its config URL and bootstrap token, and refuses its Azure identity.
        The node stays a node.
        """
        token = ""

        async def write(node: Node | None) -> Node:
            nonlocal token
            if node is None:
                raise await self.context.missing_node(cluster, name, request)
            keys, now = node.join.keys, self.context.now()
            if keys.is_revoked:
                return node
            if not keys.current and not node.identity:
                message = f"Node {node.name} has no key and no Azure identity: its machine has not bound a key."
                raise ArmError(409, NO_KEY, message)
            token = node.join.token or ""
            after = replace(node, join=node.join.key_revoked(now, node.identity))
            detail = {"key": keys.current, "identity": node.identity}
            event = request.event(now, AuditAction.KEY_REVOKED, cluster.id.node(node.name), **detail)
            await self.context.store.put_node(after, node.etag, [event], retire=True)
            return after

        node = await self.context.change_node(cluster.key, name, write)
        await self.context.delivery.revoke(cluster.key, node.key)
        if token:
            await self.context.clusters.revoke(cluster.key, token)
        keys = node.join.keys
        last = keys.revoked[-1] if keys.revoked else ""
        shown = {
            "thumbprint": last,
            "fingerprint": fingerprint(last) if last else "",
            "identity": keys.blocked_identity,
        }
        return {**{name: each for name, each in shown.items() if each}, "revoked": format_utc(keys.revoked_at)}

    async def open_enrolment(self, cluster: ClusterInfo, name: str) -> Enrolment | None:
        """Returns the enrolment with which a machine that was cut off could become another node; None if it was
        revoked or has expired.
        """
        store, key = self.context.store, cluster.key
        machine = await store.machine_of_node(key, name.lower())
        found = await store.enrolment(key, machine.enrolment) if machine else None
        return found if found and not found.revoked and self.context.now() < found.expires else None


def _verified(proof: str, audience: str, field: str) -> str:
    try:
        return verify_proof(proof, audience)
    except InvalidNodeKey as error:
        code = NODE_KEY_TIME if error.is_time else "InvalidNodeKey"
        raise ArmError(400, code, f"The {field} {error.why}", field) from None
