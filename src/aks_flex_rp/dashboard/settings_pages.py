"""Forms that create or edit a node or a pool: a posted form is shown again with its errors, previewed or written.

Changes of others in the meantime are merged instead of overwritten.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from aks_flex_node.api import kubernetes_rules as kubernetes
from aks_flex_node.api import value_rules
from aks_flex_node.errors import FlexError
from aks_flex_node.settings.api import POOL_NAME
from aks_flex_rp.api import http_messages
from aks_flex_rp.api.authorization import parse_target
from aks_flex_rp.arm.errors import ArmError, Problem, quoted
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import document_diff, setting_fields
from aks_flex_rp.dashboard.node_page import COMPONENTS, components, system
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.dashboard.page_request import redirect
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.dashboard.setting_fields import FieldError, FormSheet
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.nodes.write_permissions import owner_settings
from aks_flex_rp.resource import validation, versions
from aks_flex_rp.store.model import Node
from aks_flex_rp.store.pool_model import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.responses import Response

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.dashboard.join_page import ConfigUrlCookie
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.setting_fields import Document, SettingField
    from aks_flex_rp.nodes.context import ClusterInfo, RequestContext

DESCRIPTION = setting_fields.DESCRIPTION.path
CLUSTER, NAME = "cluster", "name"  # the fields of a new resource that are no settings
ONLY_NEW = Preconditions(if_none_match="*")
NAME_RULES = {"node": kubernetes.node_name, "pool": value_rules.pool_name}
MANAGED = {"continuousMonitoring": True}  # the default of the forms for a new pool, and for a node without one


@dataclass(frozen=True)
class OtherChange:
    """A setting that another user changed after the form was opened."""

    name: str
    before: str
    after: str
    yours: str | None  # the value of this form, when it differs


@dataclass(frozen=True)
class FormSubject:
    """The node or the pool that a form is about."""

    cluster: ClusterInfo
    name: str
    request: RequestContext
    before: Node | Pool | None = None  # None for a new one
    document: Document = field(default_factory=dict)
    conditions: Preconditions = ONLY_NEW

    @property
    def etag(self) -> str:
        return self.before.etag if self.before else ""


@dataclass(frozen=True)
class SettingsPages(DashboardPage, ABC):
    """Serves and saves the forms of one kind of resource."""

    kind: ClassVar[str]
    operation: ClassVar[Operation]
    fields: ClassVar[tuple[SettingField, ...]]

    @abstractmethod
    async def visited(self, visit: PageRequest) -> FormSubject:
        """Returns the resource in the path. Raises ArmError if the user may not write it."""

    @abstractmethod
    async def write(self, visit: PageRequest, subject: FormSubject, document: Document) -> Response: ...

    @abstractmethod
    async def preview(self, subject: FormSubject, document: Document) -> dict[str, Any]:
        """Returns what the preview shows. Raises ArmError if the API would refuse the write."""

    def about(self, before: Node | Pool | None) -> dict[str, Any]:  # noqa: ARG002
        """Returns what only this kind of form shows."""
        return {"waits": False, "notes": {}}

    def path(self, cluster: ClusterId | ShownCluster, name: str) -> str:
        """Returns the ID of the resource, or the path of its page."""
        return cluster.node(name) if self.kind == "node" else cluster.pool(name)

    def page(self, subject: FormSubject) -> str:
        return self.path(ShownCluster(subject.cluster.id), subject.name)

    async def ask_new(self, visit: PageRequest) -> Response:
        clusters = await self.scopes.clusters(visit.caller, self.operation)
        chosen = visit.query.get(CLUSTER, "").lower() or (clusters[0].id.key if len(clusters) == 1 else "")
        values = setting_fields.form_values(MANAGED if self.kind == "pool" else {}, self.fields)
        values |= {CLUSTER: chosen, NAME: visit.query.get(NAME, "")[:63]}
        return await self._form(visit, FormSheet(values), None, None, clusters)

    async def create(self, visit: PageRequest) -> Response:
        """Handles a posted form of a new resource."""
        clusters = await self.scopes.clusters(visit.caller, self.operation)
        name, cluster_id = visit.form.get(NAME, "").strip(), parse_cluster_id(visit.form.get(CLUSTER, ""))
        errors = [] if cluster_id else [FieldError(CLUSTER, "Select a cluster.")]
        if not name:
            errors.append(FieldError(NAME, "Enter a name."))
        elif problem := NAME_RULES[self.kind](name):
            errors.append(FieldError(NAME, f"{quoted(name)} {problem}"))
        subject = None
        # A cluster that the form did not offer is refused as by the API, and audited.
        if cluster_id and (not errors or cluster_id.key not in {each.id.key for each in clusters}):
            resource = self.path(cluster_id, "new" if errors else name)
            try:
                _, cluster, request = await self.scopes.admit(visit, self.operation, resource)
                subject = FormSubject(cluster, name, request)
            except ArmError as error:
                if error.code != "ParentResourceNotFound":
                    raise
                errors = [FieldError(CLUSTER, "The service cannot reach this cluster. Try again later.")]
        return await self._handle(visit, subject, {}, errors, clusters)

    async def ask(self, visit: PageRequest) -> Response:
        subject = await self.visited(visit)
        sheet = FormSheet(setting_fields.form_values(subject.document, self.fields))
        return await self._form(visit, sheet, subject)

    async def save(self, visit: PageRequest) -> Response:
        """Handles a posted form of an existing resource."""
        subject, form = await self.visited(visit), visit.form
        opened = subject.document if form.get("etag") == subject.etag else opened_document(form)
        return await self._handle(visit, subject, opened)

    async def _handle(
        self,
        visit: PageRequest,
        subject: FormSubject | None,
        opened: Document,
        errors: Sequence[FieldError] = (),
        clusters: Sequence[ShownCluster] = (),
    ) -> Response:
        """Shows a posted form again or its preview, or writes the resource."""
        form, parsed = visit.form, setting_fields.parse_form(visit.form, opened, self.fields)
        sheet, document, is_back = self._posted(form), parsed.document, form.get("to") == "back"
        if subject is None or is_back or errors or parsed.errors:
            sheet = sheet if is_back else replace(sheet, errors=(*errors, *parsed.errors))
            return await self._form(visit, sheet, subject, opened, clusters)
        if subject.before and form.get("etag") != subject.etag:
            return await self._conflict(visit, subject, sheet, document, opened)
        if subject.before is None and self.kind == "node" and not document.get(POOL_NAME):
            document = MANAGED | document
        if subject.before and document == subject.document and not sheet.downgrade:
            return redirect(self.page(subject))
        if subject.before:
            conditions = Preconditions(if_match=subject.etag, allow_downgrade=sheet.downgrade)
            subject = replace(subject, conditions=conditions)
        try:
            return await self._submit(visit, subject, sheet, document)
        except ArmError as error:
            if subject.before and error.status == 412:  # changed between the read and the write
                return await self._conflict(visit, await self.visited(visit), sheet, document, opened)
            return await self._form(visit, self._rejected(sheet, error), subject, opened, clusters, error.status)

    def _posted(self, form: Mapping[str, str]) -> FormSheet:
        values = setting_fields.posted_values(form, self.fields)
        values |= {name: form.get(name, "") for name in (CLUSTER, NAME)}
        lost = any(form.get(each.name) for each in self.fields if each.kind == "secret")
        return FormSheet(values, secret_lost=lost, downgrade=form.get("downgrade") == "yes")

    def _rejected(self, sheet: FormSheet, error: ArmError) -> FormSheet:
        """Returns the form with the errors of the API at their fields. Raises an error that is not about the form."""
        problems = setting_fields.problems_of(error)
        if error.status == 412:
            taken = f"The {self.kind} {sheet.values[NAME].strip()} already exists in this cluster."
            found = [FieldError(NAME, f"{taken} Choose another name, or edit that {self.kind}.")]
        elif error.status >= 500:
            found = [FieldError("", error.message)]
        elif error.status in {400, 403} and any(each.target.startswith("properties") for each in problems):
            found = [setting_fields.locate_error(each, sheet.values, self.fields) for each in problems]
        else:
            raise error
        return replace(sheet, errors=tuple(found))

    async def _submit(
        self, visit: PageRequest, subject: FormSubject, sheet: FormSheet, document: Document
    ) -> Response:
        if visit.form.get("to") == "save":
            return await self.write(visit, subject, document)
        shown = await self.preview(subject, document)
        after = document_diff.apply_values(shown["desired"], dict.fromkeys(setting_fields.secret_paths()))
        carried = {name: value for name, value in sheet.values.items() if value}
        if subject.before:
            carried |= {"etag": subject.etag, "base": json.dumps(subject.document)}
        return self.pages.show(
            f"{self.kind}_preview",
            visit,
            cluster=ShownCluster(subject.cluster.id),
            before=subject.before,
            lines=document_diff.setting_lines(subject.document, after),
            secrets=[each for each in self.fields if each.kind == "secret"] if sheet.secret_lost else [],
            carried=carried | ({"downgrade": "yes"} if sheet.downgrade else {}),
            here_is=self.page(subject),
            **shown,
        )

    async def _conflict(
        self, visit: PageRequest, subject: FormSubject, sheet: FormSheet, desired: Document, opened: Document
    ) -> Response:
        """Shows both changes merged. Nothing is written until the user saves the merged form."""
        plain = document_diff.apply_values(desired, dict.fromkeys(setting_fields.secret_paths()))
        merged, conflicts = merge_changes(opened, plain, subject.document)
        values = setting_fields.form_values(merged, self.fields)
        return await self._form(visit, replace(sheet, values=values, conflicts=conflicts), subject)

    async def _form(
        self,
        visit: PageRequest,
        sheet: FormSheet,
        subject: FormSubject | None,
        opened: Document | None = None,
        clusters: Sequence[ShownCluster] = (),
        status: int = 0,
    ) -> Response:
        """Renders the form. `opened` are the settings that the user started from, None for the current ones."""
        before = subject.before if subject else None
        if before is None and not clusters:
            return await self.nowhere(visit, self.kind)
        usual = 409 if sheet.conflicts is not None else 400 if sheet.errors else 200
        cluster = subject.cluster if subject else None
        if cluster is None and sheet.values[CLUSTER] in {each.id.key for each in clusters}:
            cluster = await self.context.clusters.find(sheet.values[CLUSTER])
        version = cluster.facts.version if cluster else ""
        kubernetes = sheet.values["versions-kubernetes"].strip().removeprefix("v") or version
        fitting = {"kubernetes": version, **(versions.tested_components(kubernetes) if cluster else {})}
        rows = versions.TESTED_COMPONENTS.values()
        tested = {f"versions-{name}": {row[name] for row in rows} for name in fitting if name != "kubernetes"}
        base = opened if opened is not None else subject.document if subject else {}
        return self.pages.show(
            f"{self.kind}_form",
            visit,
            status=409 if status == 412 else status or usual,
            sheet=sheet,
            values=sheet.values,
            before=before,
            clusters=clusters,
            cluster=ShownCluster(cluster.id) if cluster else None,
            etag=visit.form.get("etag", "") if opened is not None else subject.etag if subject else "",
            base=json.dumps(base),
            groups=setting_fields.group_fields(self.fields),
            owner_only=[each.path for each in owner_settings() if not each.setting.form],
            is_owner=subject.request.is_owner if subject else None,  # None: depends on the cluster that is selected
            placeholders={f"versions-{name}": version for name, version in fitting.items()},
            suggestions={"versions-kubernetes": [version] if version else [], **tested},
            here_is=self.page(subject) if subject else "",
            defaults={} if before else MANAGED,
            system=system(before.system) if before else {},
            **self.about(before),
        )


@dataclass(frozen=True)
class NodeFormPage(SettingsPages):
    """Serves and saves the forms of a node."""

    url_cookie: ConfigUrlCookie

    kind = "node"
    operation = Operation.WRITE
    fields = setting_fields.setting_fields()

    async def visited(self, visit: PageRequest) -> FormSubject:
        found = await self.node(visit, Operation.WRITE)
        return FormSubject(found.cluster, found.node.name, found.request, found.node, found.node.properties)

    async def write(self, visit: PageRequest, subject: FormSubject, document: Document) -> Response:
        resource, is_new, request = subject.cluster.id.node(subject.name), subject.before is None, subject.request
        if is_new:  # the URL of a node gives the caller its secrets
            may = await self.arm.authorizer.may_see_secrets(visit.caller, parse_target(resource), own=False)
            request = replace(request, may_see_secrets=may)
        order = ({"properties": document}, subject.conditions, request)
        try:
            written = await self.arm.nodes.commands.put(subject.cluster, subject.name, *order, url=is_new)
        except FlexError as error:
            raise http_messages.arm_error(error, visit.request_id) from error
        answer = redirect(f"{self.page(subject)}{'/joining' if is_new else ''}")
        if written.url:
            self.url_cookie.give(answer, visit, resource, written.url)
        return answer

    async def preview(self, subject: FormSubject, document: Document) -> dict[str, Any]:
        order = ({"properties": document}, subject.conditions, subject.request)
        desired = await self.arm.nodes.commands.preview(subject.cluster, subject.name, *order)
        return {
            "node": subject.name,
            "pool": desired.membership,
            "effective": desired.properties.document,
            "desired": document,
        }

    def about(self, before: Node | Pool | None) -> dict[str, Any]:
        if not isinstance(before, Node):
            return super().about(before)
        rows = zip(COMPONENTS, components(before, before.status), strict=True)
        notes = {f"versions-{name}": f"Running: {row.running}." for name, row in rows if row.running}
        return {"waits": before.join.url_expires is not None, "notes": notes}


class PoolFormPage(SettingsPages):
    """Serves and saves the forms of a pool."""

    kind = "pool"
    operation = Operation.WRITE_POOL
    fields = setting_fields.setting_fields(of_pool=True)

    async def visited(self, visit: PageRequest) -> FormSubject:
        found = await self.pool(visit, Operation.WRITE_POOL)
        return FormSubject(found.cluster, found.pool.key, found.request, found.pool, pool_document(found.pool))

    async def write(self, visit: PageRequest, subject: FormSubject, document: Document) -> Response:  # noqa: ARG002
        order = (pool_body(document), subject.conditions, subject.request)
        await self.pool_commands.put(subject.cluster, subject.name, *order)
        return redirect(self.page(subject))

    async def preview(self, subject: FormSubject, document: Document) -> dict[str, Any]:
        order = (pool_body(document), subject.conditions, subject.request)
        after = await self.pool_commands.preview(subject.cluster, subject.name, *order)
        counts = await self.store.count_pool(subject.before) if isinstance(subject.before, Pool) else None
        return {"after": after, "counts": counts, "desired": pool_document(after)}


def pool_document(pool: Pool) -> Document:
    """Returns the template with the description, as one document to compare and to merge."""
    return {**pool.template, **({DESCRIPTION: pool.description} if pool.description else {})}


def pool_body(document: Document) -> Document:
    template = {name: value for name, value in document.items() if name != DESCRIPTION}
    return {"properties": {DESCRIPTION: document.get(DESCRIPTION), "template": template}}


def merge_changes(opened: Document, desired: Document, there: Document) -> tuple[Document, tuple[OtherChange, ...]]:
    """Merges the changes of this form into the current settings. This form wins where both changed a setting.

    Returns the settings with the changes of both users, and what the other one changed.
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


def _text(value: object) -> str:
    return "" if value is None else document_diff.text_of(value)


def opened_document(form: Mapping[str, str]) -> Document:
    """Parses the settings that the form was opened with."""
    found = validation.parse_body(form.get("base", "").encode("utf-8", "replace"))
    return {} if isinstance(found, Problem) else found
