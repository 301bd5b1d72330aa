"""Edit page of a node: merges concurrent changes instead of overwriting them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm.errors import ArmError, Problem
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import document_diff, edit_form, page_request
from aks_flex_rp.dashboard.edit_form import DAYS, PRINCIPAL, FieldError
from aks_flex_rp.dashboard.node_page import COMPONENTS, components, system
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.nodes.commands import Preconditions
from aks_flex_rp.resource import validation, versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from aks_flex_rp.dashboard.page_renderer import PageRenderer
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import DashboardScopes
    from aks_flex_rp.nodes.commands import NodeCommands
    from aks_flex_rp.nodes.context import ClusterInfo, RequestContext
    from aks_flex_rp.nodes.queries import NodeQueries
    from aks_flex_rp.store.model import Node

Document = dict[str, Any]


@dataclass(frozen=True)
class OtherChange:
    """What somebody else has changed since the form was opened."""

    name: str
    before: str
    after: str
    yours: str | None  # where this form says something else about the same thing


@dataclass(frozen=True)
class EditSheet:
    """The form as it is shown."""

    values: Mapping[str, str]
    wrong: tuple[FieldError, ...] = ()
    theirs: tuple[OtherChange, ...] | None = None  # None as long as nobody else has changed anything
    secret_lost: bool = False  # one was typed, and is not sent back
    downgrade: bool = False  # older versions were said to be meant

    def at(self, name: str) -> list[str]:
        return [each.message for each in self.wrong if each.field == name]

    @property
    def asks_downgrade(self) -> bool:
        return self.downgrade or any(each.message.endswith("tick so below.") for each in self.wrong)


@dataclass(frozen=True)
class MergedProperties:
    properties: Document
    theirs: tuple[OtherChange, ...]


@dataclass(frozen=True)
class EditPage:
    pages: PageRenderer
    scopes: DashboardScopes
    reading: NodeQueries
    writing: NodeCommands

    async def ask(self, page_request: PageRequest) -> Response:
        where, known, _ = await self.scopes.node(page_request, Operation.WRITE)
        node, _ = await self.reading.get(known, where.node)
        return self._form(page_request, known, node, EditSheet(edit_form.form_fields(node.properties)))

    async def save(self, visit: PageRequest) -> Response:
        where, known, request = await self.scopes.node(visit, Operation.WRITE)
        node, _ = await self.reading.get(known, where.node)
        form, downgrade = visit.form, visit.form.get("downgrade") == "yes"
        opened = node.properties if form.get("etag") == node.etag else _opened(form.get("base", ""))
        parsed = edit_form.parse_form(form, opened)
        sheet = EditSheet(
            edit_form.posted_fields(form), tuple(parsed.wrong), None, bool(form.get(edit_form.SECRET)), downgrade
        )
        if parsed.wrong:
            return self._form(visit, known, node, sheet, opened)
        if form.get("etag") != node.etag:
            return self._raced(visit, known, node, sheet, parsed.properties, opened)
        if parsed.properties == node.properties and not downgrade:
            return page_request.redirect(ShownCluster(known.id, 0, "").node(node.name))
        return await self._write(visit, known, node, sheet, parsed.properties, request)

    async def _write(
        self,
        visit: PageRequest,
        cluster: ClusterInfo,
        node: Node,
        sheet: EditSheet,
        desired: Document,
        request: RequestContext,
    ) -> Response:
        preconditions = Preconditions(if_match=node.etag, allow_downgrade=sheet.downgrade)
        try:
            await self.writing.put(cluster, node.name, {"properties": desired}, preconditions, request, url=False)
        except ArmError as error:
            if error.status == 412:  # in the very moment between
                now, _ = await self.reading.get(cluster, node.name)
                return self._raced(visit, cluster, now, sheet, desired, node.properties)
            if error.status != 400:
                raise
            wrong = edit_form.locate_errors(_problems(error), visit.form.get("taints", ""))
            return self._form(visit, cluster, node, replace(sheet, wrong=tuple(wrong)), node.properties)
        return page_request.redirect(ShownCluster(cluster.id, 0, "").node(node.name))

    def _raced(
        self,
        page_request: PageRequest,
        cluster: ClusterInfo,
        node: Node,
        sheet: EditSheet,
        desired: Document,
        opened: Document,
    ) -> Response:
        """Both changes together, to be looked at: nothing is written before the person has seen the other's."""
        plain = document_diff.apply_values(desired, {(*PRINCIPAL, "clientSecret"): None})
        both = merge_changes(opened, plain, node.properties)
        shown = replace(sheet, values=edit_form.form_fields(both.properties), theirs=both.theirs)
        return self._form(page_request, cluster, node, shown)

    def _form(
        self,
        page_request: PageRequest,
        cluster: ClusterInfo,
        node: Node,
        sheet: EditSheet,
        opened: Document | None = None,
    ) -> Response:
        """`opened` is what the person saw at first, while that is not what there is now."""
        etag = node.etag if opened is None else page_request.form.get("etag", "")
        status = 409 if sheet.theirs is not None else 400 if sheet.wrong else 200
        return self.pages.show(
            "edit",
            page_request,
            status=status,
            node=node,
            here_is=ShownCluster(cluster.id, 0, "").node(node.name),
            cluster=cluster.id,
            cluster_version=cluster.facts.version,
            sheet=sheet,
            values=sheet.values,
            etag=etag,
            base=json.dumps(node.properties if opened is None else opened),
            system=system(node.system),
            components=dict(zip(COMPONENTS, components(node, node.status), strict=True)),
            tested=tested(),
            days=DAYS,
            waits=node.join.url_expires is not None,
        )


def merge_changes(opened: Document, desired: Document, there: Document) -> MergedProperties:
    """What there is now, with what the person changed; what both changed is as the person wants it."""
    mine, others = document_diff.diff(opened, desired), document_diff.diff(opened, there)
    together = document_diff.apply_values(there, {path: new for path, (_, new) in mine.items()})
    conflicts = tuple(
        OtherChange(
            document_diff.name_of(path),
            _text(old),
            _text(new),
            _text(mine[path][1]) if path in mine and mine[path][1] != new else None,
        )
        for path, (old, new) in others.items()
    )
    return MergedProperties(together, conflicts)


def tested() -> dict[str, list[str]]:
    """By component, the versions that were tested."""
    rows = versions.TESTED_COMPONENTS.values()
    return {name: sorted({row[name] for row in rows}, reverse=True) for name in next(iter(rows))}


def _text(value: object) -> str:
    return "" if value is None else document_diff.text_of(value)


def _opened(text: str) -> Document:
    """What the person saw, as the form brought it back."""
    found = validation.parse_body(text.encode("utf-8", "replace"))
    return {} if isinstance(found, Problem) else found


def _problems(error: ArmError) -> list[Problem]:
    details = error.details or (error,)
    return [Problem(each.target, each.message) for each in details]
