"""Changing a node by a form, without undoing what somebody else changes at the same time."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.rp import versions
from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.arm.problems import Problem
from aks_flex_node.rp.dashboard import differences, node_forms, visits
from aks_flex_node.rp.dashboard.node_forms import DAYS, PRINCIPAL, Wrong
from aks_flex_node.rp.dashboard.nodes import COMPONENTS, components, system
from aks_flex_node.rp.dashboard.scopes import Shown
from aks_flex_node.rp.nodes.writing import Guard
from aks_flex_node.rp.resource import reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from aks_flex_node.rp.dashboard.pages import Pages
    from aks_flex_node.rp.dashboard.scopes import Scopes
    from aks_flex_node.rp.dashboard.visits import Visit
    from aks_flex_node.rp.nodes.around import Known, Request
    from aks_flex_node.rp.nodes.reading import Reading
    from aks_flex_node.rp.nodes.writing import Writing
    from aks_flex_node.rp.store.store import Node

Document = dict[str, Any]


@dataclass(frozen=True)
class Theirs:
    """What somebody else has changed since the form was opened."""

    name: str
    before: str
    after: str
    yours: str | None  # where this form says something else about the same thing


@dataclass(frozen=True)
class Sheet:
    """The form as it is shown."""

    values: Mapping[str, str]
    wrong: tuple[Wrong, ...] = ()
    theirs: tuple[Theirs, ...] | None = None  # None as long as nobody else has changed anything
    secret_lost: bool = False  # one was typed, and is not sent back
    downgrade: bool = False  # older versions were said to be meant

    def at(self, name: str) -> list[str]:
        return [each.message for each in self.wrong if each.field == name]

    @property
    def asks_downgrade(self) -> bool:
        return self.downgrade or any(each.message.endswith("tick so below.") for each in self.wrong)


@dataclass(frozen=True)
class Merged:
    properties: Document
    theirs: tuple[Theirs, ...]


@dataclass(frozen=True)
class Editing:
    pages: Pages
    scopes: Scopes
    reading: Reading
    writing: Writing

    async def ask(self, visit: Visit) -> Response:
        where, known, _ = await self.scopes.node(visit, "write")
        node, _ = await self.reading.get(known, where.node)
        return self._form(visit, known, node, Sheet(node_forms.filled(node.properties)))

    async def save(self, visit: Visit) -> Response:
        where, known, request = await self.scopes.node(visit, "write")
        node, _ = await self.reading.get(known, where.node)
        form, downgrade = visit.form, visit.form.get("downgrade") == "yes"
        opened = node.properties if form.get("etag") == node.etag else _opened(form.get("base", ""))
        said = node_forms.read(form, opened)
        sheet = Sheet(node_forms.posted(form), tuple(said.wrong), None, bool(form.get(node_forms.SECRET)), downgrade)
        if said.wrong:
            return self._form(visit, known, node, sheet, opened)
        if form.get("etag") != node.etag:
            return self._raced(visit, known, node, sheet, said.properties, opened)
        if said.properties == node.properties and not downgrade:
            return visits.go(Shown(known.id, 0, "").node(node.name))
        return await self._write(visit, known, node, sheet, said.properties, request)

    async def _write(
        self, visit: Visit, known: Known, node: Node, sheet: Sheet, wanted: Document, request: Request
    ) -> Response:
        guard = Guard(match=node.etag, downgrade=sheet.downgrade)
        try:
            await self.writing.put(known, node.name, {"properties": wanted}, guard, request, url=False)
        except ArmError as error:
            if error.status == 412:  # in the very moment between
                now, _ = await self.reading.get(known, node.name)
                return self._raced(visit, known, now, sheet, wanted, node.properties)
            if error.status != 400:
                raise
            wrong = node_forms.located(_problems(error), visit.form.get("taints", ""))
            return self._form(visit, known, node, replace(sheet, wrong=tuple(wrong)), node.properties)
        return visits.go(Shown(known.id, 0, "").node(node.name))

    def _raced(
        self, visit: Visit, known: Known, node: Node, sheet: Sheet, wanted: Document, opened: Document
    ) -> Response:
        """Both changes together, to be looked at: nothing is written before the person has seen the other's."""
        plain = differences.changed(wanted, {(*PRINCIPAL, "clientSecret"): None})
        both = merged(opened, plain, node.properties)
        shown = replace(sheet, values=node_forms.filled(both.properties), theirs=both.theirs)
        return self._form(visit, known, node, shown)

    def _form(self, visit: Visit, known: Known, node: Node, sheet: Sheet, opened: Document | None = None) -> Response:
        """`opened` is what the person saw at first, while that is not what there is now."""
        etag = node.etag if opened is None else visit.form.get("etag", "")
        status = 409 if sheet.theirs is not None else 400 if sheet.wrong else 200
        return self.pages.show(
            "edit",
            visit,
            status=status,
            node=node,
            here_is=Shown(known.id, 0, "").node(node.name),
            cluster=known.id,
            cluster_version=known.facts.version,
            sheet=sheet,
            values=sheet.values,
            etag=etag,
            base=json.dumps(node.properties if opened is None else opened),
            system=system(node.system),
            components=dict(zip(COMPONENTS, components(node, node.status), strict=True)),
            tested=tested(),
            days=DAYS,
            waits="urlExpires" in node.join,
        )


def merged(opened: Document, wanted: Document, there: Document) -> Merged:
    """What there is now, with what the person changed; what both changed is as the person wants it."""
    mine, others = differences.changes(opened, wanted), differences.changes(opened, there)
    together = differences.changed(there, {path: new for path, (_, new) in mine.items()})
    told = tuple(
        Theirs(
            differences.name_of(path),
            _text(old),
            _text(new),
            _text(mine[path][1]) if path in mine and mine[path][1] != new else None,
        )
        for path, (old, new) in others.items()
    )
    return Merged(together, told)


def tested() -> dict[str, list[str]]:
    """By component, the versions that were tested."""
    rows = versions.TESTED.values()
    return {name: sorted({row[name] for row in rows}, reverse=True) for name in next(iter(rows))}


def _text(value: object) -> str:
    return "" if value is None else differences.text_of(value)


def _opened(text: str) -> Document:
    """What the person saw, as the form brought it back."""
    found = reading.parse(text.encode("utf-8", "replace"))
    return {} if isinstance(found, Problem) else found


def _problems(error: ArmError) -> list[Problem]:
    details = error.details or (error,)
    return [Problem(each.target, each.message) for each in details]
