"""Form of a pool: creates one, or edits its template, after a preview of the revision that it makes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import edit_form, pool_form
from aks_flex_rp.dashboard.edit_form import DAYS, FieldError
from aks_flex_rp.dashboard.edit_page import EditSheet, merge_changes, opened_document, tested
from aks_flex_rp.dashboard.node_page import COMPONENTS, ComponentRow, system
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.dashboard.page_request import redirect
from aks_flex_rp.dashboard.pool_form import CLUSTER, DESCRIPTION, NAME, POOL_NAME
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.nodes.write_permissions import owner_settings
from aks_flex_rp.resource import versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.nodes.context import ClusterInfo, RequestContext
    from aks_flex_rp.store.pool_model import Pool

Document = dict[str, Any]
ONLY_NEW = Preconditions(if_none_match="*")
NEW_TEMPLATE = {"continuousMonitoring": True}  # as the wizard suggests for a node


@dataclass(frozen=True)
class EditedPool:
    """The pool that a form is about."""

    cluster: ClusterInfo
    name: str
    before: Pool | None  # None for a new one
    request: RequestContext

    @property
    def page(self) -> str:
        return ShownCluster(self.cluster.id).pool(self.name)

    @property
    def document(self) -> Document:
        return pool_form.pool_document(self.before) if self.before else {}


class PoolFormPage(DashboardPage):
    """Serves and saves the form of a pool."""

    async def ask_new(self, visit: PageRequest) -> Response:
        clusters = await self.scopes.clusters(visit.caller, Operation.WRITE_POOL)
        if not clusters:
            return await self.nowhere(visit, "pool")
        named = visit.query.get(CLUSTER, "").lower()
        chosen = named or (clusters[0].id.key if len(clusters) == 1 else "")
        values = {**edit_form.form_fields(NEW_TEMPLATE), CLUSTER: chosen, NAME: "", DESCRIPTION: ""}
        return await self._new_form(visit, clusters, EditSheet(values))

    async def create(self, visit: PageRequest) -> Response:
        """Handles a posted form of a new pool: shows it again, its preview, or creates the pool."""
        clusters = await self.scopes.clusters(visit.caller, Operation.WRITE_POOL)
        sheet = EditSheet(pool_form.posted_values(visit.form))
        name, cluster_id = sheet.values[NAME].strip(), parse_cluster_id(sheet.values[CLUSTER])
        if cluster_id and cluster_id.key not in {each.id.key for each in clusters}:
            # Refused as by the API, and audited.
            pool = cluster_id.pool(name if POOL_NAME.fullmatch(name) else "new")
            await self.scopes.admit(visit, Operation.WRITE_POOL, pool)
        if visit.form.get("to") == "back" or not clusters:
            return await self._new_form(visit, clusters, sheet)
        parsed = pool_form.parse_pool(visit.form, {})
        errors = [*pool_form.name_errors(name), *parsed.errors]
        if cluster_id is None:
            errors.insert(0, FieldError(CLUSTER, "Select a cluster."))
        if errors or cluster_id is None:
            return await self._new_form(visit, clusters, replace(sheet, errors=tuple(errors)))
        try:
            _, known, request = await self.scopes.admit(visit, Operation.WRITE_POOL, cluster_id.pool(name))
            return await self._submit(visit, EditedPool(known, name, None, request), sheet, parsed.document, ONLY_NEW)
        except ArmError as error:
            rejected = replace(sheet, errors=tuple(pool_form.rejection_errors(error, visit.form, name)))
            return await self._new_form(visit, clusters, rejected, 409 if error.status == 412 else error.status)

    async def ask(self, visit: PageRequest) -> Response:
        edited = await self._edited(visit)
        return await self._edit_form(visit, edited, EditSheet(pool_form.pool_values(edited.document)))

    async def save(self, visit: PageRequest) -> Response:
        """Handles a posted form of a pool: shows it again, its preview, or writes the pool."""
        edited, form = await self._edited(visit), visit.form
        etag = edited.before.etag if edited.before else ""
        opened = edited.document if form.get("etag") == etag else opened_document(form)
        sheet, parsed = EditSheet(pool_form.posted_values(form)), pool_form.parse_pool(form, opened)
        if form.get("to") == "back":
            return await self._edit_form(visit, edited, sheet, opened)
        if parsed.errors:
            return await self._edit_form(visit, edited, replace(sheet, errors=tuple(parsed.errors)), opened)
        if form.get("etag") != etag:
            return await self._conflict(visit, edited, parsed.document, opened)
        if parsed.document == edited.document:
            return redirect(edited.page)
        return await self._change(visit, edited, sheet, parsed.document)

    async def _change(self, visit: PageRequest, edited: EditedPool, sheet: EditSheet, desired: Document) -> Response:
        form, opened = visit.form, edited.document
        try:
            return await self._submit(visit, edited, sheet, desired, Preconditions(if_match=form.get("etag", "")))
        except ArmError as error:
            if error.status == 412:  # changed between the read and the write
                return await self._conflict(visit, await self._edited(visit), desired, opened)
            rejected = replace(sheet, errors=tuple(pool_form.rejection_errors(error, form, edited.name)))
            return await self._edit_form(visit, edited, rejected, opened, error.status)

    async def _edited(self, visit: PageRequest) -> EditedPool:
        found = await self.pool(visit, Operation.WRITE_POOL)
        return EditedPool(found.cluster, found.pool.key, found.pool, found.request)

    async def _submit(
        self,
        visit: PageRequest,
        edited: EditedPool,
        sheet: EditSheet,
        document: Document,
        preconditions: Preconditions,
    ) -> Response:
        """Writes the pool, or shows what it would change. Raises ArmError if the API would refuse it."""
        template = {name: value for name, value in document.items() if name != DESCRIPTION}
        body = {"properties": {DESCRIPTION: document.get(DESCRIPTION), "template": template}}
        order = (edited.cluster, edited.name, body, preconditions, edited.request)
        if visit.form.get("to") == "save":
            await self.pool_commands.put(*order)
            return redirect(edited.page)
        after = await self.pool_commands.preview(*order)
        return await self._preview(visit, edited, sheet, after)

    async def _preview(self, visit: PageRequest, edited: EditedPool, sheet: EditSheet, after: Pool) -> Response:
        before = edited.before
        carried = {name: value for name, value in sheet.values.items() if value}
        if before:
            carried |= {"etag": visit.form.get("etag", ""), "base": json.dumps(edited.document)}
        return self.pages.show(
            "pool_preview",
            visit,
            cluster=ShownCluster(edited.cluster.id),
            after=after,
            before=before,
            counts=await self.pool_commands.counts(before) if before else None,
            lines=pool_form.preview_lines(before, after),
            carried=carried,
            form_page=f"{edited.page}/edit" if before else "/ui/pools/new",
            here_is=edited.page if before else "/ui/pools",
        )

    async def _conflict(
        self, visit: PageRequest, edited: EditedPool, desired: Document, opened: Document
    ) -> Response:
        """Shows both changes merged. Nothing is written until the user saves the merged form."""
        merged, conflicts = merge_changes(opened, desired, edited.document)
        return await self._edit_form(visit, edited, EditSheet(pool_form.pool_values(merged), conflicts=conflicts))

    async def _edit_form(
        self,
        visit: PageRequest,
        edited: EditedPool,
        sheet: EditSheet,
        opened: Document | None = None,
        status: int = 0,
    ) -> Response:
        """Renders the form. `opened` is what the user started from, None for the pool as it is."""
        pool = edited.before
        etag = visit.form.get("etag", "") if opened is not None else pool.etag if pool else ""
        usual = 409 if sheet.conflicts is not None else 400 if sheet.errors else 200
        return self.pages.show(
            "pool_form",
            visit,
            status=status or usual,
            pool=pool,
            here_is=edited.page,
            cluster=ShownCluster(edited.cluster.id),
            clusters=(),
            etag=etag,
            base=json.dumps(edited.document if opened is None else opened),
            system=system(pool.system) if pool else {},
            is_owner=edited.request.is_owner,
            **form_options(sheet, edited.cluster),
        )

    async def _new_form(
        self, visit: PageRequest, clusters: Sequence[ShownCluster], sheet: EditSheet, status: int = 0
    ) -> Response:
        chosen = next((each for each in clusters if each.id.key == sheet.values[CLUSTER]), None)
        known = await self.context.clusters.find(chosen.id.key) if chosen else None
        return self.pages.show(
            "pool_form",
            visit,
            status=status or (400 if sheet.errors else 200),
            pool=None,
            here_is="/ui/pools",
            cluster=None,
            clusters=clusters,
            etag="",
            base="",
            system={},
            is_owner=None,  # depends on the cluster that the form selects
            **form_options(sheet, known),
        )


def form_options(sheet: EditSheet, cluster: ClusterInfo | None) -> dict[str, Any]:
    """Returns what the form shows besides the pool itself."""
    version = cluster.facts.version if cluster else ""
    chosen = sheet.values["version-kubernetes"].strip().removeprefix("v") or version
    desired = {"kubernetes": version, **versions.tested_components(chosen)}
    return {
        "sheet": sheet,
        "values": sheet.values,
        "cluster_version": version,
        "components": {
            name: ComponentRow(label, desired.get(name, ""), chosen=False, running="")
            for name, label in COMPONENTS.items()
        },
        "tested": tested(),
        "days": DAYS,
        "owner_properties": [each.path for each in owner_settings()],
    }
