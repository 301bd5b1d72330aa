"""Wizard that creates a node: five steps of one form, each validated with the rules of the API."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import FlexError
from aks_flex_rp.api import http_messages
from aks_flex_rp.arm.errors import ArmError, Problem
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import node_draft
from aks_flex_rp.dashboard.edit_form import problems_of
from aks_flex_rp.dashboard.node_draft import (
    DEFAULTS,
    REVIEW,
    SECRET,
    DraftError,
    NodeDraft,
    form_errors,
    locate_draft_errors,
    parse_draft,
)
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.dashboard.page_request import redirect
from aks_flex_rp.nodes.pool_templates import PoolTemplates
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.resource import validation as bodies
from aks_flex_rp.resource import versions
from aks_flex_rp.resource.rules import ValidationContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aks_flex_rp.dashboard.join_page import ConfigUrlCookie
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import ShownCluster
    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.resource.validation import PoolTemplate

STEPS = ("Cluster and name", "Identity", "Versions and settings", "Labels and taints", "Review")
ONLY_NEW = Preconditions(if_none_match="*")


@dataclass(frozen=True)
class WizardForm:
    """One step of the wizard to render."""

    draft: NodeDraft
    step: int = 1
    errors: Sequence[DraftError] = ()
    focus: str = ""  # the field that receives the focus
    status: int = 200

    def wrong(self, name: str) -> str:
        return next((each.message for each in self.errors if each.field == name), "")


@dataclass(frozen=True)
class CreatePage(DashboardPage):
    """Serves the wizard that creates a node."""

    url_cookie: ConfigUrlCookie

    async def show(self, visit: PageRequest) -> Response:
        clusters = await self.scopes.clusters(visit.caller, Operation.WRITE)
        cluster_key = visit.query.get("cluster", "").lower()
        chosen = cluster_key or (clusters[0].id.key if len(clusters) == 1 else "")
        begun = NodeDraft({**DEFAULTS, "cluster": chosen, "name": visit.query.get("name", "")[:63]})
        return await self._page(visit, clusters, WizardForm(begun))

    async def take(self, visit: PageRequest) -> Response:
        """Handles a posted step: navigates, validates or creates the node."""
        clusters = await self.scopes.clusters(visit.caller, Operation.WRITE)
        found, step, to = (
            parse_draft(visit.form),
            _step(visit.form.get("step", "")),
            visit.form.get("to", ""),
        )
        # A cluster that the form did not offer is rejected as by the API, and the attempt audited.
        cluster_id = parse_cluster_id(found["cluster"])
        if cluster_id and cluster_id.key not in {each.id.key for each in clusters}:
            await self.scopes.admit(visit, Operation.WRITE, cluster_id.node(found["name"] or "new"))
        if to == "create" and step == REVIEW:
            return await self._create(visit, clusters, found)
        if (form := navigate(found, step, to)) is None:
            # The next step, or the first step with an error, which may be an earlier one.
            errors = await self._validate(visit, clusters, found)
            form = first_invalid_step(found, [each for each in errors if each.step <= step]) or WizardForm(
                found, min(step + 1, REVIEW)
            )
        return await self._page(visit, clusters, form)

    async def _validate(
        self, visit: PageRequest, clusters: Sequence[ShownCluster], found: NodeDraft
    ) -> list[DraftError]:
        """Validates all fields but the secret, which is entered in the last step."""
        errors = form_errors(found, {each.id.key for each in clusters})
        if any(each.step == 1 for each in errors):
            return errors
        chosen = next(each for each in clusters if each.id.key == found["cluster"])
        try:
            _, known, _ = await self.scopes.admit(visit, Operation.WRITE, chosen.id.node(found["name"]))
        except ArmError as error:
            if error.status != 404:
                raise
            return [DraftError("cluster", "The service cannot reach this cluster. Try again later.")]
        if await self._exists(known, found["name"]):
            errors.append(name_taken(found))
        fields = {each.field for each in errors}
        judged = [
            each
            for each in locate_draft_errors(found, await self._problems(found, known))
            if each.field not in {SECRET, *fields}
        ]
        return [*errors, *judged]

    async def _problems(self, found: NodeDraft, cluster: ClusterInfo) -> list[Problem]:
        templates = PoolTemplates(self.store)
        try:
            template = await templates.for_node(cluster, found.body(), None)
        except ArmError as error:
            return [Problem(error.target, error.message)]
        return validate_draft(found, cluster, template)

    async def _template(self, found: NodeDraft, cluster: ClusterInfo | None) -> str:
        """Returns the template of the chosen pool, as it is shown on the last step."""
        pool = await self.store.pool(cluster.id.key, found["pool"]) if cluster else None
        return json.dumps(pool.template, indent=2, ensure_ascii=False) if pool and found["pool"] else ""

    async def _exists(self, cluster: ClusterInfo, name: str) -> bool:
        try:
            await self.arm.nodes.queries.get(cluster, name)
        except ArmError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def _create(self, visit: PageRequest, clusters: Sequence[ShownCluster], found: NodeDraft) -> Response:
        if errors := form_errors(found, {each.id.key for each in clusters}):
            return await self._page(visit, clusters, first_invalid_step(found, errors) or WizardForm(found, REVIEW))
        chosen = next(each for each in clusters if each.id.key == found["cluster"])
        try:
            where, known, request = await self.scopes.admit(visit, Operation.WRITE, chosen.id.node(found["name"]))
            request = replace(
                request, may_see_secrets=await self.arm.authorizer.may_see_secrets(visit.caller, where, own=False)
            )
            body = found.body(visit.form.get(SECRET, "").strip())
            written = await self.arm.nodes.commands.put(known, where.node, body, ONLY_NEW, request, url=True)
        except ArmError as error:
            if error.status == 403:
                raise
            return await self._page(visit, clusters, rejected_form(found, error))
        except FlexError as error:
            document = http_messages.arm_error(error, visit.request_id)
            return await self._page(visit, clusters, rejected_form(found, document))
        answer = redirect(f"{chosen.node(written.node.name)}/joining")
        if written.url:
            self.url_cookie.give(answer, visit, chosen.id.node(written.node.name), written.url)
        return answer

    async def _page(self, visit: PageRequest, clusters: Sequence[ShownCluster], form: WizardForm) -> Response:
        if not clusters:
            return await self.nowhere(visit, "node")
        chosen = next((each for each in clusters if each.id.key == form.draft["cluster"]), None)
        known = await self.context.clusters.find(chosen.id.key) if chosen else None
        return self.pages.show(
            "create",
            visit,
            status=form.status,
            form=form,
            draft=form.draft,
            wrong=form.wrong,
            titles=STEPS,
            clusters=clusters,
            cluster=chosen,
            template=await self._template(form.draft, known) if form.draft["pool"] else "",
            **wizard_options(form.draft, known),
        )


def wizard_options(found: NodeDraft, cluster: ClusterInfo | None) -> dict[str, Any]:
    """Returns the options that the wizard offers for this cluster."""
    version = cluster.facts.version if cluster else ""
    chosen = found["kubernetes"].removeprefix("v") or version
    server = versions.parse_version(version)
    return {
        "cluster_version": version,
        "oldest": f"{server.major}.{server.minor - versions.MAX_KUBELET_SKEW}" if server else "",
        "tested": versions.TESTED_COMPONENTS,
        "goes_with": versions.tested_components(chosen),
        "entra": cluster is None or cluster.facts.aad is not False,
        "cell_name": node_draft.cell,
        "effects": node_draft.EFFECTS,
        "components": node_draft.COMPONENTS,
        "full": {kind: len(rows) >= node_draft.MAX_ROWS[kind] for kind, rows in _rows(found).items()},
    }


def validate_draft(found: NodeDraft, cluster: ClusterInfo, template: PoolTemplate | None = None) -> list[Problem]:
    """Validates the draft with the rules of the API."""
    context = ValidationContext(cluster.facts.version, cluster.facts.aad, reserved_ranges=cluster.facts.taken)
    judged = bodies.validate_body(found.body(), found["name"], context, template)
    return judged if isinstance(judged, list) else []


def navigate(found: NodeDraft, step: int, to: str) -> WizardForm | None:
    """Returns the step that a button other than Next leads to, without validation. Returns None for Next."""
    if to == "back":
        return WizardForm(found, max(step - 1, 1))
    if to.isdecimal():
        return WizardForm(found, _step(to))
    verb, _, rest = to.partition("-")
    kind, _, number = rest.partition("-")
    if verb == "add" and kind in node_draft.ROWS:
        more = found.with_row(kind)
        return WizardForm(more, 4, focus=node_draft.cell(kind, "key", len(_rows(more)[kind]) - 1))
    if verb == "drop" and kind in node_draft.ROWS and number in map(str, range(node_draft.MAX_ROWS[kind])):
        return WizardForm(found.without_row(kind, int(number)), 4, focus=f"add-{kind}")
    return None


def first_invalid_step(found: NodeDraft, form_errors: Sequence[DraftError], status: int = 400) -> WizardForm | None:
    """Returns the first step with an error, with all errors of that step."""
    if not form_errors:
        return None
    first = min(each.step for each in form_errors)
    return WizardForm(found, first, [each for each in form_errors if each.step == first], status=status)


def rejected_form(found: NodeDraft, error: ArmError) -> WizardForm:
    """Returns the step with the errors of the API's response."""
    if error.status == 412:
        return WizardForm(found, 1, [name_taken(found)], status=409)
    form_errors = locate_draft_errors(found, problems_of(error))
    return first_invalid_step(found, form_errors, error.status) or WizardForm(found, REVIEW, status=error.status)


def name_taken(found: NodeDraft) -> DraftError:
    """Returns the error for a node name that already exists."""
    message = f"The node {found['name']} already exists in this cluster. Choose another name, or edit that node."
    return DraftError("name", message)


def _rows(found: NodeDraft) -> dict[str, tuple[node_draft.DraftRow, ...]]:
    return {"label": found.labels, "taint": found.taints}


def _step(text: str) -> int:
    return int(text) if text in {str(number) for number in range(1, REVIEW + 1)} else 1
