"""Form of a pool: its description and template as form fields, form fields as a template, and errors by field. Pure.

The settings of the template have the fields of the edit form of a node.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm.errors import Problem
from aks_flex_rp.dashboard import document_diff, edit_form
from aks_flex_rp.dashboard.document_diff import DiffLine
from aks_flex_rp.dashboard.edit_form import REST, FieldError, problems_of
from aks_flex_rp.resource.effective import changed_values
from aks_flex_rp.resource.view import format_taint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aks_flex_rp.arm.errors import ArmError
    from aks_flex_rp.dashboard.edit_form import ParsedForm
    from aks_flex_rp.store.pool_model import Pool

Document = dict[str, Any]
CLUSTER, NAME, DESCRIPTION = "cluster", "name", "description"
OWN_FIELDS = (CLUSTER, NAME, DESCRIPTION)  # the other fields are those of a node
POOL_NAME = re.compile(r"[a-z][a-z0-9]{0,11}")
TEMPLATE = "properties.template"


def pool_document(pool: Pool) -> Document:
    """Returns the template with the description, as one document to compare and to merge."""
    return {**pool.template, **({DESCRIPTION: pool.description} if pool.description else {})}


def pool_values(document: Document) -> dict[str, str]:
    """Returns the form fields of a pool."""
    template = {name: value for name, value in document.items() if name != DESCRIPTION}
    return {**edit_form.form_fields(template), DESCRIPTION: str(document.get(DESCRIPTION, ""))}


def posted_values(form: Mapping[str, str]) -> dict[str, str]:
    """Returns the fields of a posted form to show again, unchanged but without secrets."""
    return {**edit_form.posted_fields(form), **{name: form.get(name, "") for name in OWN_FIELDS}}


def parse_pool(form: Mapping[str, str], opened: Document) -> ParsedForm:
    """Parses a posted form to description and template. `opened` is the document that the form was opened with."""
    parsed = edit_form.parse_form(form, opened, of_pool=True)
    if parsed.document.pop(DESCRIPTION, None) is not None:
        parsed.errors.append(FieldError(REST, f"Set {DESCRIPTION} in its field above."))
    if described := form.get(DESCRIPTION, "").strip():
        parsed.document[DESCRIPTION] = described
    return parsed


def locate_pool_errors(problems: Iterable[Problem], taints: str = "") -> list[FieldError]:
    """Maps validation problems of the API to form fields."""
    found = []
    for each in problems:
        if each.target.startswith(f"{TEMPLATE}."):
            moved = Problem(each.target.replace(TEMPLATE, "properties", 1), each.message)
            found += edit_form.locate_errors([moved], taints)
        else:
            found.append(FieldError(DESCRIPTION if each.target.endswith(DESCRIPTION) else "", each.message))
    return found


def name_errors(name: str) -> list[FieldError]:
    """Returns the errors of the name of a new pool."""
    if not name:
        return [FieldError(NAME, "Enter a name.")]
    if POOL_NAME.fullmatch(name):
        return []
    message = f"“{name[:80]}” is not a valid pool name. Use a letter, then up to 11 lowercase letters and digits."
    return [FieldError(NAME, message)]


def rejection_errors(error: ArmError, form: Mapping[str, str], name: str) -> list[FieldError]:
    """Returns the errors of the API at their fields. Raises the error if it is not about the form."""
    if error.status == 412:
        message = f"The pool {name} already exists in this cluster. Choose another name, or edit that pool."
        return [FieldError(NAME, message)]
    if error.code == "ParentResourceNotFound":
        return [FieldError(CLUSTER, "The service cannot reach this cluster. Try again later.")]
    problems = problems_of(error)
    if error.status not in {400, 403} or not any(each.target.startswith("properties") for each in problems):
        raise error
    return locate_pool_errors(problems, form.get("taints", ""))


def preview_lines(before: Pool | None, after: Pool) -> list[DiffLine]:
    """Returns what a write changes. `before` is None for a new pool."""
    was = before.description if before else ""
    described = [DiffLine(DESCRIPTION, was, after.description)] if was != after.description else []
    return [*described, *template_lines(changed_values(before.template if before else {}, after.template))]


def template_lines(changes: Mapping[str, Sequence[object]]) -> list[DiffLine]:
    """Returns the changes of a template, one line per value, and a taint as kubectl writes it."""
    values = {path: (_plain(path, old), _plain(path, new)) for path, (old, new) in changes.items()}
    return document_diff.diff_lines(values)


def _plain(path: str, value: object) -> object:
    return format_taint(value) if isinstance(value, dict) and path.startswith("nodeConfig.taints[") else value
