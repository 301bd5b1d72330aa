"""The wizard that makes a node: five steps of one form, each judged by the rules of the API before the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import FlexError
from aks_flex_node.rp import versions
from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.arm.ids import cluster_id
from aks_flex_node.rp.arm.problems import Problem
from aks_flex_node.rp.dashboard import drafts, visits
from aks_flex_node.rp.dashboard.drafts import DEFAULTS, REVIEW, SECRET, Draft, draft
from aks_flex_node.rp.dashboard.troubles import Trouble, located, own_troubles
from aks_flex_node.rp.nodes.writing import Guard
from aks_flex_node.rp.resource import reading as bodies
from aks_flex_node.rp.resource.rules import Around
from aks_flex_node.rp.serving import requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aks_flex_node.rp.dashboard.joining_commands import Handing
    from aks_flex_node.rp.dashboard.pages import Pages
    from aks_flex_node.rp.dashboard.scopes import Scopes, Shown
    from aks_flex_node.rp.dashboard.visits import Visit
    from aks_flex_node.rp.nodes.around import Known
    from aks_flex_node.rp.nodes.writing import Written
    from aks_flex_node.rp.serving.arm import Arm

STEPS = ("Cluster and name", "Identity", "Versions and settings", "Labels and taints", "Review")
ONLY_NEW = Guard(none_match="*")


@dataclass(frozen=True)
class Form:
    """A step of the form, as it is to be shown."""

    draft: Draft
    step: int = 1
    troubles: Sequence[Trouble] = ()
    focus: str = ""  # the field that a person goes on at
    status: int = 200

    def wrong(self, name: str) -> str:
        return next((each.message for each in self.troubles if each.field == name), "")


@dataclass(frozen=True)
class Creating:
    pages: Pages
    scopes: Scopes
    arm: Arm
    handing: Handing

    async def show(self, visit: Visit) -> Response:
        clusters = await self.scopes.clusters(visit.caller, "write")
        asked = visit.query.get("cluster", "").lower()
        chosen = asked or (clusters[0].id.key if len(clusters) == 1 else "")
        begun = Draft({**DEFAULTS, "cluster": chosen, "name": visit.query.get("name", "")[:63]})
        return await self._page(visit, clusters, Form(begun))

    async def take(self, visit: Visit) -> Response:
        """A step that was filled in, and where to go from it."""
        clusters = await self.scopes.clusters(visit.caller, "write")
        found, step, to = draft(visit.form), _step(visit.form.get("step", "")), visit.form.get("to", "")
        await self._refuse_strangers(visit, clusters, found)
        if to == "create" and step == REVIEW:
            return await self._create(visit, clusters, found)
        if (form := turned(found, step, to)) is None:
            form = await self._judged(visit, clusters, found, step)
        return await self._page(visit, clusters, form)

    async def _refuse_strangers(self, visit: Visit, clusters: Sequence[Shown], found: Draft) -> None:
        """Who names a cluster that the form did not offer is told so as by the API, and noted in the audit."""
        asked = cluster_id(found["cluster"])
        if asked and asked.key not in {each.id.key for each in clusters}:
            await self.scopes.new_node(visit, asked, found["name"] or "new")

    async def _judged(self, visit: Visit, clusters: Sequence[Shown], found: Draft, step: int) -> Form:
        """The next step; or the first one with something wrong, which may be an earlier one."""
        troubles = await self._troubles(visit, clusters, found)
        return wrong(found, [each for each in troubles if each.step <= step]) or Form(found, min(step + 1, REVIEW))

    async def _troubles(self, visit: Visit, clusters: Sequence[Shown], found: Draft) -> list[Trouble]:
        """The secret is not there yet, and not missed."""
        troubles = own_troubles(found, {each.id.key for each in clusters})
        if any(each.step == 1 for each in troubles):
            return troubles
        chosen = next(each for each in clusters if each.id.key == found["cluster"])
        try:
            _, known, _ = await self.scopes.new_node(visit, chosen.id, found["name"])
        except ArmError as error:
            if error.status != 404:
                raise
            return [Trouble("cluster", "The service does not reach this cluster at the moment.")]
        if await self._is_there(known, found["name"]):
            troubles.append(taken(found))
        told = {each.field for each in troubles}
        judged = [each for each in located(found, judge(found, known)) if each.field not in {SECRET, *told}]
        return [*troubles, *judged]

    async def _is_there(self, known: Known, name: str) -> bool:
        try:
            await self.arm.reading.get(known, name)
        except ArmError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def _create(self, visit: Visit, clusters: Sequence[Shown], found: Draft) -> Response:
        if troubles := own_troubles(found, {each.id.key for each in clusters}):
            return await self._page(visit, clusters, wrong(found, troubles) or Form(found, REVIEW))
        chosen = next(each for each in clusters if each.id.key == found["cluster"])
        try:
            written = await self._write(visit, chosen, found)
        except ArmError as error:
            if error.status == 403:
                raise
            return await self._page(visit, clusters, refused(found, error))
        except FlexError as error:
            said = requests.failure(error, visit.request_id)
            return await self._page(visit, clusters, refused(found, said))
        answer = visits.go(f"{chosen.node(written.node.name)}/joining")
        if written.url:
            self.handing.give(answer, visit, chosen.id.node(written.node.name), written.url)
        return answer

    async def _write(self, visit: Visit, chosen: Shown, found: Draft) -> Written:
        where, known, request = await self.scopes.new_node(visit, chosen.id, found["name"])
        request = replace(request, may_see_secrets=await self.arm.doors.may_see_secrets(visit.caller, where))
        body = found.body(visit.form.get(SECRET, "").strip())
        return await self.arm.writing.put(known, where.node, body, ONLY_NEW, request, url=True)

    async def _page(self, visit: Visit, clusters: Sequence[Shown], form: Form) -> Response:
        if not clusters:
            some = bool(await self.scopes.clusters(visit.caller))
            return self.pages.show("create_nowhere", visit, some=some)
        chosen = next((each for each in clusters if each.id.key == form.draft["cluster"]), None)
        known = await self.arm.doors.shop.clusters.find(chosen.id.key) if chosen else None
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
            **about(form.draft, known),
        )


def about(found: Draft, known: Known | None) -> dict[str, Any]:
    """What there is to choose from, in this cluster."""
    version = known.facts.version if known else ""
    chosen = found["kubernetes"].removeprefix("v") or version
    server = versions.read(version)
    return {
        "cluster_version": version,
        "oldest": f"{server.major}.{server.minor - versions.OLDEST_BY}" if server else "",
        "tested": versions.TESTED,
        "goes_with": versions.defaults(chosen),
        "entra": known is None or known.facts.aad is not False,
        "cell_name": drafts.cell,
        "effects": drafts.EFFECTS,
        "components": drafts.COMPONENTS,
        "full": {kind: len(rows) >= drafts.MOST_ROWS[kind] for kind, rows in _rows(found).items()},
    }


def judge(found: Draft, known: Known) -> list[Problem]:
    """As the API will when it is sent."""
    around = Around(known.facts.version, known.facts.aad, ranges=known.facts.taken)
    judged = bodies.read(found.body(), found["name"], around)
    return judged if isinstance(judged, list) else []


def turned(found: Draft, step: int, to: str) -> Form | None:
    """Where a button other than Next leads; what is wrong with the step may stay so for now."""
    if to == "back":
        return Form(found, max(step - 1, 1))
    if to.isdecimal():
        return Form(found, _step(to))
    verb, _, rest = to.partition("-")
    kind, _, number = rest.partition("-")
    if verb == "add" and kind in drafts.ROWS:
        more = found.with_row(kind)
        return Form(more, 4, focus=drafts.cell(kind, "key", len(_rows(more)[kind]) - 1))
    if verb == "drop" and kind in drafts.ROWS and number in map(str, range(drafts.MOST_ROWS[kind])):
        return Form(found.without_row(kind, int(number)), 4, focus=f"add-{kind}")
    return None


def wrong(found: Draft, troubles: Sequence[Trouble], status: int = 400) -> Form | None:
    """The first step that has something wrong, with all that is wrong there."""
    if not troubles:
        return None
    first = min(each.step for each in troubles)
    return Form(found, first, [each for each in troubles if each.step == first], status=status)


def refused(found: Draft, error: ArmError) -> Form:
    """Why the API did not take it."""
    if error.status == 412:
        return Form(found, 1, [taken(found)], status=409)
    problems = [Problem(each.target, each.message) for each in error.details] or [
        Problem(error.target, error.message)
    ]
    troubles = located(found, problems)
    return wrong(found, troubles, error.status) or Form(found, REVIEW, status=error.status)


def taken(found: Draft) -> Trouble:
    where = f"There is a node {found['name']} in this cluster already."
    return Trouble("name", f"{where} Choose another name; or change that node, on its own page.")


def _rows(found: Draft) -> dict[str, tuple[drafts.Row, ...]]:
    return {"label": found.labels, "taint": found.taints}


def _step(text: str) -> int:
    return int(text) if text in {str(number) for number in range(1, REVIEW + 1)} else 1
