"""What is wrong with a draft, said at the field where the person wrote it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.api import kubernetes_rules as kubernetes
from aks_flex_node.rp.arm.problems import Problem, path, quoted
from aks_flex_node.rp.dashboard.drafts import FIELDS, METHODS, REVIEW, ROWS, SECRET, VERSIONS, cell

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from aks_flex_node.rp.dashboard.drafts import Draft

IDS = ("sp-client", "mi-client", "mi-principal", "arc-principal")
PLACES = {
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
class Trouble:
    """What is wrong, at a field of the form, or at none ("")."""

    field: str
    message: str

    @property
    def step(self) -> int:
        if self.field.startswith(("label-", "taint-")):
            return 4
        return next((step for step, names in FIELDS.items() if self.field in names), REVIEW)


def located(found: Draft, problems: Iterable[Problem]) -> list[Trouble]:
    """What the API found wrong, where the person wrote it."""
    troubles: list[Trouble] = []
    for problem in problems:
        place = _field(found, problem, {each.field for each in troubles})
        troubles.append(Trouble(place, _plain(place, problem.message)))
    return troubles


def _field(found: Draft, problem: Problem, taken: set[str]) -> str:
    target = problem.target
    if target == "properties.azureAuth.managedIdentity":  # it is only when the node is to be known by it
        return "monitor" if found.monitored else "mi-client"
    row = _label_field(found, problem, taken) or _taint_field(found, target)
    above = (name for place, name in PLACES.items() if target == place or target.startswith(f"{place}."))
    return row or next(above, "")


def _label_field(found: Draft, problem: Problem, taken: set[str]) -> str:
    for number, (key, _) in enumerate(found.labels):
        if problem.target == path("properties", "nodeConfig", "labels", key):
            name = cell("label", "key", number)
            of_key = problem.message.startswith(quoted(key)) and name not in taken
            return name if of_key else cell("label", "value", number)
    return ""


def _taint_field(found: Draft, target: str) -> str:
    sent = [number for number, row in enumerate(found.taints) if row[0]]
    for place, number in enumerate(sent):
        above = path("properties", "nodeConfig", "taints", place)
        if target == above or target.startswith(f"{above}."):
            part = target.removeprefix(above).removeprefix(".")
            return cell("taint", part if part in ROWS["taint"] else "key", number)
    return ""


def _plain(place: str, message: str) -> str:
    """Patterns and the names of properties are for programs."""
    if message.startswith("This property is needed"):
        return "This is needed."
    if message.startswith("The value does not match the pattern"):
        if place in IDS:
            return "This is no id of Entra ID, such as 6dae42f8-4368-4678-94ff-3960e28e3630."
        return "This is no version, such as 1.34.4." if place in VERSIONS else "This is no name or id of a tenant."
    if place == SECRET and message.startswith("The secret is needed"):
        return "The secret is needed. It is kept encrypted, and nobody sees it again."
    if place == "monitor":
        return "For this the service must know the identity: give its client id or object id, a step before."
    return re.sub("`([^`]*)`", r"“\1”", message)


def own_troubles(found: Draft, clusters: Collection[str]) -> list[Trouble]:
    """What only a form can have wrong."""
    troubles = []
    if found["cluster"] not in clusters:
        troubles.append(Trouble("cluster", "Choose the cluster that the node is to join."))
    if wrong := kubernetes.node_name(found["name"]):
        given = f"{quoted(found['name'])} {wrong}" if found["name"] else "Give the node a name."
        troubles.append(Trouble("name", _plain("name", given)))
    if found["method"] not in METHODS:
        troubles.append(Trouble("method", "Choose how the machine shows who it is."))
    keys = [row[0] for row in found.labels]
    for number, key in enumerate(keys):
        if not key:
            troubles.append(Trouble(cell("label", "key", number), "A value needs a key."))
        elif key in keys[:number]:
            troubles.append(Trouble(cell("label", "key", number), f"{quoted(key)} stands here twice."))
    troubles += [
        Trouble(cell("taint", "key", number), "A value needs a key.")
        for number, row in enumerate(found.taints)
        if not row[0]
    ]
    return troubles
