"""Edit page of a node: merges concurrent changes instead of overwriting them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm.errors import ArmError, Problem
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import document_diff, edit_form
from aks_flex_rp.dashboard.edit_form import DAYS, PRINCIPAL, FieldError
from aks_flex_rp.dashboard.node_page import COMPONENTS, components, system
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.dashboard.page_request import redirect
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.resource import validation, versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from aks_flex_rp.dashboard.page import VisitedNode
    from aks_flex_rp.dashboard.page_request import PageRequest

Document = dict[str, Any]


@dataclass(frozen=True)
class OtherChange:
    """A setting that another user changed after the form was opened."""

    name: str
    before: str
    after: str
    yours: str | None  # the value of this form, when it differs


@dataclass(frozen=True)
class EditSheet:
    """Values, errors and conflicts of the edit form to render."""

    values: Mapping[str, str]
    errors: tuple[FieldError, ...] = ()
    conflicts: tuple[OtherChange, ...] | None = None  # None when the node was not changed meanwhile
    secret_lost: bool = False  # a secret was posted, and is not rendered again
    downgrade: bool = False  # the user allowed a downgrade

    def at(self, name: str) -> list[str]:
        return [each.message for each in self.errors if each.field == name]

    @property
    def asks_downgrade(self) -> bool:
        return self.downgrade or any(each.message.endswith(edit_form.ALLOW_DOWNGRADE) for each in self.errors)


class EditPage(DashboardPage):
    """Serves and saves the edit form of a node."""

    async def ask(self, visit: PageRequest) -> Response:
        found = await self.node(visit, Operation.WRITE)
        return self._form(visit, found, EditSheet(edit_form.form_fields(found.node.properties)))

    async def save(self, visit: PageRequest) -> Response:
        found = await self.node(visit, Operation.WRITE)
        node, form, downgrade = found.node, visit.form, visit.form.get("downgrade") == "yes"
        opened = node.properties if form.get("etag") == node.etag else opened_document(form)
        parsed = edit_form.parse_form(form, opened)
        sheet = EditSheet(
            edit_form.posted_fields(form), tuple(parsed.errors), None, bool(form.get(edit_form.SECRET)), downgrade
        )
        if parsed.errors:
            return self._form(visit, found, sheet, opened)
        if form.get("etag") != node.etag:
            return self._conflict(visit, found, sheet, parsed.document, opened)
        if parsed.document == node.properties and not downgrade:
            return redirect(found.page)
        order = ({"properties": parsed.document}, Preconditions(if_match=node.etag, allow_downgrade=downgrade))
        try:
            await self.arm.nodes.commands.put(found.cluster, node.name, *order, found.request, url=False)
        except ArmError as error:
            if error.status == 412:  # changed between the read and the write
                now = await self.node(visit, Operation.WRITE)
                return self._conflict(visit, now, sheet, parsed.document, node.properties)
            if error.status != 400:
                raise
            errors = edit_form.locate_errors(edit_form.problems_of(error), form.get("taints", ""))
            return self._form(visit, found, replace(sheet, errors=tuple(errors)), node.properties)
        return redirect(found.page)

    def _conflict(
        self, visit: PageRequest, found: VisitedNode, sheet: EditSheet, desired: Document, opened: Document
    ) -> Response:
        """Shows both changes merged. Nothing is written until the user saves the merged form."""
        plain = document_diff.apply_values(desired, {(*PRINCIPAL, "clientSecret"): None})
        merged, conflicts = merge_changes(opened, plain, found.node.properties)
        shown = replace(sheet, values=edit_form.form_fields(merged), conflicts=conflicts)
        return self._form(visit, found, shown)

    def _form(
        self, visit: PageRequest, found: VisitedNode, sheet: EditSheet, opened: Document | None = None
    ) -> Response:
        """Renders the form. `opened` are the properties that the user started from, None for the current ones."""
        node = found.node
        return self.pages.show(
            "edit",
            visit,
            status=409 if sheet.conflicts is not None else 400 if sheet.errors else 200,
            **found.about,
            cluster_version=found.cluster.facts.version,
            sheet=sheet,
            values=sheet.values,
            etag=node.etag if opened is None else visit.form.get("etag", ""),
            base=json.dumps(node.properties if opened is None else opened),
            system=system(node.system),
            components=dict(zip(COMPONENTS, components(node, node.status), strict=True)),
            tested=tested(),
            days=DAYS,
            waits=node.join.url_expires is not None,
        )


def merge_changes(opened: Document, desired: Document, there: Document) -> tuple[Document, tuple[OtherChange, ...]]:
    """Merges the changes of this form into the current properties. This form wins where both changed a setting.

    Returns the properties with the changes of both users, and what the other one changed.
    """
    mine, others = document_diff.diff(opened, desired), document_diff.diff(opened, there)
    merged = document_diff.apply_values(there, {path: new for path, (_, new) in mine.items()})
    conflicts = tuple(
        OtherChange(
            document_diff.name_of(path),
            _text(old),
            _text(new),
            _text(mine[path][1]) if path in mine and mine[path][1] != new else None,
        )
        for path, (old, new) in others.items()
    )
    return merged, conflicts


def tested() -> dict[str, list[str]]:
    """Returns the tested versions of each component."""
    rows = versions.TESTED_COMPONENTS.values()
    return {name: sorted({row[name] for row in rows}, reverse=True) for name in next(iter(rows))}


def _text(value: object) -> str:
    return "" if value is None else document_diff.text_of(value)


def opened_document(form: Mapping[str, str]) -> Document:
    """Parses the properties that the form was opened with."""
    found = validation.parse_body(form.get("base", "").encode("utf-8", "replace"))
    return {} if isinstance(found, Problem) else found
