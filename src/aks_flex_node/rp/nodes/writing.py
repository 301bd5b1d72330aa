"""Making, changing and removing nodes.

The order of steps is what makes each of them safe to be cut short: the token is made first (one that nobody knows is
swept), then the node is written and with it which token counts, then the bundle is delivered, which ends the earlier
URL, and last the earlier token goes. Whoever got no answer asks again and gets a whole one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.times import exact, iso
from aks_flex_node.rp.nodes import accesses
from aks_flex_node.rp.nodes.accesses import ACCESS, access_of, way_of, with_access
from aks_flex_node.rp.nodes.around import changed
from aks_flex_node.rp.nodes.identities import identity
from aks_flex_node.rp.nodes.tainting import with_former_taints
from aks_flex_node.rp.notifying import changes
from aks_flex_node.rp.notifying.hooks import Notices
from aks_flex_node.rp.resource import configs, reading
from aks_flex_node.rp.resource.models import Properties
from aks_flex_node.rp.resource.rules import Around
from aks_flex_node.rp.store.store import Conflict, Node

if TYPE_CHECKING:
    from aks_flex_node.rp.nodes.around import Known, Request, Workshop
    from aks_flex_node.rp.resource.reading import Wanted

ATTEMPTS = 5  # at a node that others are writing, too
NOTE = "ARM resource deleted. Node machine lifecycle (stop/start/destroy) must be managed separately."


@dataclass(frozen=True)
class Guard:
    """What a caller says the resource must be like for its write to be done."""

    match: str = ""
    none_match: str = ""
    downgrade: bool = False  # it may get older versions than it has

    def check(self, node: Node | None, name: str) -> None:
        if node is not None and none_match(self.none_match, node.etag):
            raise errors.stale(name)
        if self.match and (node is None or (self.match != "*" and node.etag not in _listed(self.match))):
            raise errors.stale(name)


def none_match(header: str, etag: str) -> bool:
    """Whether If-None-Match names the etag; a mark of weakness does not matter there."""
    return header.strip() == "*" or etag in [each.removeprefix("W/") for each in _listed(header)]


def _listed(header: str) -> list[str]:
    return [each.strip() for each in header.split(",")]


@dataclass(frozen=True)
class Url:
    """Where a machine gets its bundle, until when."""

    url: str
    expires: float

    def document(self) -> dict[str, str]:
        return {"configUrl": self.url, "configUrlExpires": iso(self.expires)}


@dataclass(frozen=True)
class Written:
    node: Node
    created: bool
    url: Url | None


@dataclass(frozen=True)
class Writing:
    shop: Workshop
    notices: Notices = field(default_factory=Notices)

    async def put(
        self, cluster: Known, name: str, body: dict[str, Any], guard: Guard, request: Request, *, url: bool
    ) -> Written:
        for _ in range(ATTEMPTS):
            node = await self.shop.store.node(cluster.id.key, name.lower())
            guard.check(node, name)
            wanted = self._read(cluster, name, body, node, guard)
            try:
                written = await self._write(cluster, name, wanted, node, request, url=url)
            except Conflict:
                continue
            if written.created and not await self.shop.clusters.is_there(cluster.id.key):
                await self.delete(cluster, name, Guard(), request)  # it was removed at this very moment
                raise errors.no_cluster(cluster.id)
            return written
        raise errors.busy(name)

    async def regenerate(self, cluster: Known, name: str, request: Request) -> Written:
        """A new version with a new token and a new URL; the earlier ones are dead."""
        for _ in range(ATTEMPTS):
            node = await self.shop.store.node(cluster.id.key, name.lower())
            if node is None:
                raise errors.no_node(cluster.id, name)
            kept = Properties.model_validate(node.properties)
            wanted = reading.Wanted(kept, configs.allows_downgrade(node.config))
            try:
                return await self._write(cluster, node.name, wanted, node, request, url=True, what="regenerateToken")
            except Conflict:
                continue
        raise errors.busy(name)

    async def delete(self, cluster: Known, name: str, guard: Guard, request: Request) -> dict[str, Any] | None:
        """What was ended; None when there was nothing."""
        shop, key = self.shop, name.lower()
        for _ in range(ATTEMPTS):
            node = await shop.store.node(cluster.id.key, key)
            guard.check(node, name)
            # First the URL, which harms nobody when the rest is not done: without the node, nobody would know of it.
            await shop.delivery.revoke(cluster.id.key, key)
            if node is None:
                return None
            event = request.event(shop.now(), "delete", cluster.id.node(node.name), before=node.properties)
            messages = self.notices.of(node, [changes.deleted(request.caller.name)], shop.now())
            try:
                gone = await shop.store.delete_node(cluster.id.key, key, node.etag, [event], messages)
            except Conflict:
                continue
            if not gone:
                return None
            token = node.join.get("token")
            revoked = await shop.clusters.revoke(cluster.id.key, token) if token else True
            cleanup = {"configUrlRevoked": True, "bootstrapTokenRevoked": revoked, "monitoringDisabled": True}
            if way_of(node):  # also where nothing is noted: it may just have been given, and not been noted yet
                withdrawn = not accesses.takes_leave(node) and await self._withdraw(cluster, node, request)
                cleanup |= {"clusterAccessRevoked": withdrawn} if access_of(node) else {}
            return {"status": "Deleted", "cleanup": cleanup, "note": NOTE}
        raise errors.busy(name)

    async def _withdraw(self, cluster: Known, node: Node, request: Request) -> bool:
        """What cannot be taken now is taken by the cluster's watch."""
        done = await self.shop.clusters.withdraw(cluster.id.key, node.key)
        if done and (access := access_of(node)):
            said = {"identity": access.identity}
            event = request.event(self.shop.now(), "access.withdrawn", cluster.id.node(node.name), **said)
            await self.shop.store.record(event)
        return done

    def _read(self, cluster: Known, name: str, body: dict[str, Any], node: Node | None, guard: Guard) -> Wanted:
        around = Around(
            cluster.facts.version,
            cluster.facts.aad,
            ranges=cluster.facts.taken,
            earlier=_versions(node) if node else None,
            earlier_client=_client(node),
            downgrade=guard.downgrade,
        )
        wanted = reading.read(body, name, around)
        if isinstance(wanted, list):
            raise errors.invalid(wanted)
        return wanted

    async def _write(
        self,
        cluster: Known,
        name: str,
        wanted: Wanted,
        before: Node | None,
        request: Request,
        *,
        url: bool,
        what: str = "",
    ) -> Written:
        """Conflict when somebody else was faster; nothing is left of the attempt then."""
        shop, key = self.shop, name.lower()
        now = shop.now()
        newest = before.version if before else (await shop.store.trace(cluster.id.key, key)).version
        version = max(int(now), newest + 1)
        expires = now + shop.token_seconds
        if url and before and before.secrets and wanted.secret is None and not request.may_see_secrets:
            raise errors.secret_in_bundle(request.caller)
        if not url and before and before.join.get("urlExpires"):
            await shop.delivery.revoke(cluster.id.key, key)  # before it is forgotten that there is one
        token = None
        if url and not wanted.properties.kubernetes_auth.by_identity:
            token = await shop.clusters.mint(cluster.id.key, key, expires)
        node = self._node(cluster, name, wanted, before, version, request)
        node = replace(node, join=_join(before, token.id if token else "", expires if url else 0.0, now))
        node = with_access(with_former_taints(node, before), before)
        document = cluster.id.node(name)
        detail = {"configVersion": str(version), "urlIssued": url, "tokenId": token.id if token else ""}
        told = changed(before.properties if before else {}, node.properties)
        event = request.event(
            now,
            what or ("update" if before else "create"),
            document,
            **detail,
            changed=told,
            secretWritten=wanted.secret is not None,
        )
        try:
            await shop.store.put_node(node, before.etag if before else None, [event], retire=True)
        except Conflict:
            if token:
                await shop.clusters.revoke(cluster.id.key, token.id)
            raise
        delivered = await self._deliver(cluster, node, token.reveal() if token else "", expires) if url else None
        if before and (old := before.join.get("token")):
            await shop.clusters.revoke(cluster.id.key, old)
        if before and access_of(before) and not access_of(node):
            await self._withdraw(cluster, before, request)
        return Written(node, before is None, delivered)

    async def _deliver(self, cluster: Known, node: Node, token: str, expires: float) -> Url:
        secrets = replace(self.shop.open_secrets(node), bootstrap_token=token)
        bundle = configs.bundle(node.config, node.version, secrets)
        url = await self.shop.delivery.put(cluster.id.key, node.key, json.dumps(bundle).encode(), expires)
        return Url(url, expires)

    def _node(
        self, cluster: Known, name: str, wanted: Wanted, before: Node | None, version: int, request: Request
    ) -> Node:
        shop, key = self.shop, name.lower()
        properties = wanted.properties
        kept = before.config["kubernetes"]["version"] if before and not cluster.follow_version else ""
        earlier = _versions(before) if before else None
        chosen = configs.effective_versions(properties, kept or cluster.facts.version, earlier)
        principal = properties.azure_auth.service_principal
        sealed = before.secrets if before and principal and not principal.certificate_on_machine else b""
        if wanted.secret is not None:
            sealed = shop.seal_secret(cluster.id.key, key, wanted.secret)
        ways, downgrade = shop.ways_to(cluster), wanted.downgrade or _is_going_back(before)
        config = configs.config(properties, cluster.id, cluster.facts, key, chosen, ways=ways, downgrade=downgrade)
        now = shop.now()
        return Node(
            cluster=cluster.id.key,
            key=key,
            name=name,
            version=version,
            etag=f'"{version}"',
            properties=wanted.document(),
            config=config,
            secrets=sealed,
            system=_system(before, request, now),
            identity=identity(properties, cluster.id, cluster.facts.tenant_id, key),
            created=before.created if before else now,
            revision=before.revision if before else 0,
        )


def _versions(node: Node) -> dict[str, str]:
    """What the node has, as far as is known. One that went back from what it was told does not have that."""
    wanted = configs.versions_in(node.config)
    conditions = {each["type"]: each["status"] for each in node.status.get("conditions", ())}
    if conditions.get("UpgradeFailed") != "True":
        return wanted
    kubelet = str(node.status.get("kubeletVersion", "")).removeprefix("v")
    return {"kubernetes": kubelet} if kubelet else {}


def _is_going_back(node: Node | None) -> bool:
    """Whether it was told that older versions are meant, and has not taken them yet: a write that comes in between,
    about a label perhaps, does not take that back."""
    if node is None or not configs.allows_downgrade(node.config):
        return False
    return str(node.status.get("appliedConfigVersion", "")) != str(node.version)


def _client(node: Node | None) -> str:
    """The client whose secret is kept."""
    if node is None or not node.secrets:
        return ""
    return str(node.properties["azureAuth"]["servicePrincipal"]["clientId"]).lower()


def _join(before: Node | None, token: str, expires: float, now: float) -> dict[str, Any]:
    """A node that is in the cluster stays so, whatever is written about it. `since` is when this try began."""
    earlier = before.join if before else {}
    joined = earlier.get("state") == "Joined"
    join: dict[str, Any] = {"state": "Joined" if joined else "Created", "since": now}
    if not expires and before:  # no new try: only the URL and the token of the last one are gone
        kept = {key: value for key, value in earlier.items() if key not in {"token", "urlExpires", ACCESS}}
        return {**kept, "state": earlier.get("state", "Created")} if joined else join
    if token:
        join["token"] = token
    if expires:
        join["urlExpires"] = expires
    return join


def _system(before: Node | None, request: Request, now: float) -> dict[str, Any]:
    kind = "Application" if request.caller.kind == "Key" else request.caller.kind
    made = {"createdBy": request.caller.name, "createdByType": kind, "createdAt": exact(now)}
    first = {key: value for key, value in before.system.items() if key.startswith("created")} if before else made
    last = {"lastModifiedBy": request.caller.name, "lastModifiedByType": kind, "lastModifiedAt": exact(now)}
    return {**first, **last}
