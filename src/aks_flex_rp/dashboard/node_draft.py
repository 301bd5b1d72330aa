"""Draft of a new node: form fields, the request body they make, and validation problems by field.

The form carries the draft from step to step. Nothing is stored until the node is created. The secret is entered in
the last step and is never carried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.api import kubernetes_rules as kubernetes
from aks_flex_rp.arm.errors import Problem, json_path, quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping


TOKEN, PRINCIPAL, MANAGED, ARC = "bootstrapToken", "servicePrincipal", "managedIdentity", "arc"
METHODS = (TOKEN, PRINCIPAL, MANAGED, ARC)
COMPONENTS = ("containerd", "runc", "cni", "npd")
VERSIONS = ("kubernetes", *COMPONENTS)
SECRET = "secret"  # noqa: S105 - the name of a field
REVIEW = 5
DRIFT_DEFAULT = "repair"  # of the API
FIELDS: Mapping[int, tuple[str, ...]] = {
    1: ("cluster", "name", "pool"),
    2: ("method", "kubelet", "sp-client", "sp-proof", "sp-tenant", "mi-client", "mi-principal", "arc-principal"),
    3: (*VERSIONS, "monitor", "drift", "pods"),
    4: (),  # labels and taints, which are rows
    REVIEW: (SECRET,),
}
DEFAULTS = {"method": TOKEN, "kubelet": TOKEN, "sp-proof": "secret", "monitor": "yes", "drift": DRIFT_DEFAULT}
ROWS = {"label": ("key", "value"), "taint": ("key", "value", "effect")}
MAX_ROWS = {"label": 40, "taint": 20}  # limits the number of form fields
MAX_FIELD_LENGTH = 2048  # longer values are truncated
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

DraftRow = tuple[str, ...]


@dataclass(frozen=True)
class NodeDraft:
    """Field values of the wizard, with rows for labels and taints."""

    values: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULTS))
    labels: tuple[DraftRow, ...] = ()
    taints: tuple[DraftRow, ...] = ()

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    def carried(self, step: int) -> Iterator[tuple[str, str]]:
        """Yields the fields of all other steps, which the form carries as hidden fields."""
        for number, names in FIELDS.items():
            if number not in {step, REVIEW}:
                yield from ((name, self[name]) for name in names if self[name])
        if step != 4:
            yield from self.cells()

    def cells(self) -> Iterator[tuple[str, str]]:
        for kind, rows in (("label", self.labels), ("taint", self.taints)):
            for number, row in enumerate(rows):
                yield from ((cell(kind, part, number), text) for part, text in zip(ROWS[kind], row, strict=True))

    def with_row(self, kind: str) -> NodeDraft:
        rows = self.labels if kind == "label" else self.taints
        return self._rows(kind, (*rows, _empty(kind)) if len(rows) < MAX_ROWS[kind] else rows)

    def without_row(self, kind: str, number: int) -> NodeDraft:
        rows = self.labels if kind == "label" else self.taints
        return self._rows(kind, (*rows[:number], *rows[number + 1 :]))

    def _rows(self, kind: str, rows: tuple[DraftRow, ...]) -> NodeDraft:
        return replace(self, labels=rows) if kind == "label" else replace(self, taints=rows)

    @property
    def monitored(self) -> bool:
        """Whether the node is managed, by its key or by its Azure identity."""
        return self["monitor"] == "yes"

    @property
    def needs_secret(self) -> bool:
        return self["method"] == PRINCIPAL and self["sp-proof"] != "certificate"

    def body(self, secret: str = "") -> dict[str, Any]:
        """Returns the request body for the API, without empty fields."""
        node = {
            "labels": {key: value for key, value in self.labels if key},
            "taints": [_taint(row) for row in self.taints if row[0]],
            "maxPods": _number(self["pods"]),
            "driftPolicy": "" if self["drift"] == DRIFT_DEFAULT else self["drift"],
        }
        properties = {
            "poolName": self["pool"],
            **({} if self.inherits_identity else self._identity(secret)),
            "versions": _without_empty({name: self[name] for name in VERSIONS}),
            "nodeConfig": _without_empty(node),
        }
        return {"properties": _without_empty(properties)}

    @property
    def inherits_identity(self) -> bool:
        """Whether the node takes its identity and management from its pool, because it has none of its own."""
        return bool(self["pool"]) and self["method"] == TOKEN

    def _identity(self, secret: str) -> dict[str, Any]:
        return {
            "continuousMonitoring": self.monitored,
            "azureAuth": self._azure(secret),
            "kubernetesAuth": {"method": TOKEN if self["method"] == TOKEN else self["kubelet"]},
        }

    def _azure(self, secret: str) -> dict[str, Any]:
        method = self["method"]
        if method == TOKEN:
            return {}
        credential = {"clientSecret": secret} if self.needs_secret else {"certificateOnMachine": True}
        blocks: dict[str, dict[str, Any]] = {
            PRINCIPAL: {"clientId": self["sp-client"], **credential, "clientTenant": self["sp-tenant"]},
            MANAGED: {"clientId": self["mi-client"], "principalId": self["mi-principal"]},
            ARC: {"principalId": self["arc-principal"]},
        }
        block = _without_empty(blocks.get(method, {}))
        return {"method": method, **({method: block} if block or method == PRINCIPAL else {})}


def parse_draft(form: Mapping[str, str]) -> NodeDraft:
    """Reads the draft from a posted form. Strips whitespace around values."""
    plain = {name: text.strip()[:MAX_FIELD_LENGTH] for name, text in form.items()}
    names = [name for step, names in FIELDS.items() if step != REVIEW for name in names]
    values = {name: plain[name] for name in names if plain.get(name)}
    return NodeDraft(values, _read_rows(plain, "label"), _read_rows(plain, "taint"))


def cell(kind: str, part: str, number: int) -> str:
    """Returns the field name of a cell, for example `label-key-0`."""
    return f"{kind}-{part}-{number}"


def _read_rows(form: Mapping[str, str], kind: str) -> tuple[DraftRow, ...]:
    """Returns the rows with a key or a value."""
    numbers = range(MAX_ROWS[kind])
    rows = [tuple(form.get(cell(kind, part, number), "") for part in ROWS[kind]) for number in numbers]
    return tuple(row for row in rows if any(row[:2]))


def _empty(kind: str) -> DraftRow:
    return ("", "") if kind == "label" else ("", "", EFFECTS[0])


def _taint(row: DraftRow) -> dict[str, str]:
    key, value, effect = row
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def _number(text: str) -> int | str:
    """Returns an integer, or the text unchanged for the API to reject."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _without_empty(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if value not in ("", {}, [])}


FIELDS_BY_PATH = {
    "properties.poolName": "pool",
    "properties.azureAuth.method": "method",
    "properties.azureAuth.servicePrincipal.clientId": "sp-client",
    "properties.azureAuth.servicePrincipal.clientSecret": SECRET,
    "properties.azureAuth.servicePrincipal.clientTenant": "sp-tenant",
    "properties.azureAuth.managedIdentity.clientId": "mi-client",
    "properties.azureAuth.managedIdentity.principalId": "mi-principal",
    "properties.azureAuth.arc.principalId": "arc-principal",
    "properties.kubernetesAuth": "kubelet",
    "properties.nodeConfig.driftPolicy": "drift",
    "properties.nodeConfig.maxPods": "pods",
    **{f"properties.versions.{name}": name for name in VERSIONS},
}


@dataclass(frozen=True)
class DraftError:
    """An error message at a form field; the field is empty for an error of the whole form."""

    field: str
    message: str

    @property
    def step(self) -> int:
        if self.field.startswith(("label-", "taint-")):
            return 4
        return next((step for step, names in FIELDS.items() if self.field in names), REVIEW)


def locate_draft_errors(found: NodeDraft, problems: Iterable[Problem]) -> list[DraftError]:
    """Maps validation problems of the API to form fields."""
    form_errors: list[DraftError] = []
    for problem in problems:
        field = _field(found, problem, {each.field for each in form_errors})
        form_errors.append(DraftError(field, _plain(field, problem.message)))
    return form_errors


def _field(found: NodeDraft, problem: Problem, taken: set[str]) -> str:
    target = problem.target
    if target == "properties.azureAuth.managedIdentity":  # reported only when the node needs its identity
        return "monitor" if found.monitored else "mi-client"
    row = _label_field(found, problem, taken) or _taint_field(found, target)
    above = (name for path, name in FIELDS_BY_PATH.items() if target == path or target.startswith(f"{path}."))
    return row or next(above, "")


def _label_field(found: NodeDraft, problem: Problem, taken: set[str]) -> str:
    for number, (key, _) in enumerate(found.labels):
        if problem.target == json_path("properties", "nodeConfig", "labels", key):
            name = cell("label", "key", number)
            of_key = problem.message.startswith(quoted(key)) and name not in taken
            return name if of_key else cell("label", "value", number)
    return ""


def _taint_field(found: NodeDraft, target: str) -> str:
    sent = [number for number, row in enumerate(found.taints) if row[0]]
    for index, number in enumerate(sent):
        above = json_path("properties", "nodeConfig", "taints", index)
        if target == above or target.startswith(f"{above}."):
            part = target.removeprefix(above).removeprefix(".")
            return cell("taint", part if part in ROWS["taint"] else "key", number)
    return ""


def _plain(path: str, message: str) -> str:
    """Rewrites a message of the API without property names."""
    if re.match("This property is (needed|required)", message):
        return "This field is required."
    if path == SECRET and "certificateOnMachine" in message:
        return "Enter the client secret. It is stored encrypted and is never shown."
    if path == "monitor":
        return "A managed node requires an identity. Enter its client ID or object ID in the previous step."
    return re.sub("`([^`]*)`", r"“\1”", message)


def form_errors(found: NodeDraft, clusters: Collection[str]) -> list[DraftError]:
    """Returns the errors that the API does not check."""
    errors = []
    if found["cluster"] not in clusters:
        errors.append(DraftError("cluster", "Select a cluster."))
    if problem := kubernetes.node_name(found["name"]):
        message = f"{quoted(found['name'])} {problem}" if found["name"] else "Enter a node name."
        errors.append(DraftError("name", _plain("name", message)))
    if found["method"] not in METHODS:
        errors.append(DraftError("method", "Select an authentication method."))
    keys = [row[0] for row in found.labels]
    for number, key in enumerate(keys):
        if not key:
            errors.append(DraftError(cell("label", "key", number), "Enter a key."))
        elif key in keys[:number]:
            errors.append(DraftError(cell("label", "key", number), f"The key {quoted(key)} is duplicated."))
    errors += [
        DraftError(cell("taint", "key", number), "Enter a key.")
        for number, row in enumerate(found.taints)
        if not row[0]
    ]
    return errors
