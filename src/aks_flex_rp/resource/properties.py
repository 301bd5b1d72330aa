"""The properties of a node, and of the template of a pool: read from a request by the table of settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_node.api.node_changes import value_at
from aks_flex_node.redaction import redact
from aks_flex_node.settings import checking
from aks_flex_node.settings.api import AUTH_METHODS, ApiSetting, api_settings, api_tree
from aks_flex_node.settings.setting import CREDENTIALS
from aks_flex_rp.arm.errors import Problem, json_path, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_node.settings.checking import Violation

Document = dict[str, Any]
IdentityMethod = Literal["exec", "certificate"]
NO_IDENTITY = "none"


@dataclass(frozen=True)
class Properties:
    """Valid properties, without the secret of the service principal."""

    document: Mapping[str, Any]
    secret: str | None = field(default=None, repr=False)

    def at(self, path: str) -> Any:
        """Returns the value at a path of the table, or None."""
        return value_at(self.document, path)

    @property
    def is_managed(self) -> bool:
        return bool(self.document.get("continuousMonitoring"))

    @property
    def auth_method(self) -> str:
        return str(self.at("azureAuth.method") or NO_IDENTITY)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The settings of the node's Azure identity."""
        return self.at(f"azureAuth.{self.auth_method}") or {}

    @property
    def join_method(self) -> str | None:
        method: str | None = self.at("kubernetesAuth.method")
        return method

    @property
    def by_identity(self) -> IdentityMethod | None:
        """Returns how the Azure identity is used to join, or None if the node joins with a token."""
        if self.join_method is None:
            return "certificate" if self.at("kubernetesAuth.useAzureAuth") else None
        return "exec" if self.join_method == "exec" else "certificate" if self.join_method == "certificate" else None

    @property
    def versions(self) -> Mapping[str, str]:
        return self.document.get("versions") or {}


def read_properties(document: Document) -> tuple[Properties, list[Problem]]:
    """Returns what is valid of the properties, and what the table says of the rest."""
    problems: list[Problem] = []
    valid = _section(document, api_tree(), ("properties",), problems)
    principal = value_at(valid, "azureAuth.servicePrincipal")
    secret = principal.pop("clientSecret", None) if principal else None
    return Properties({name: value for name, value in valid.items() if value != {}}, secret), problems


def _section(
    document: Document, tree: Mapping[str, Any], above: tuple[str, ...], problems: list[Problem]
) -> Document:
    valid: Document = {}
    for name, value in document.items():
        path, entry = (*above, name), tree.get(name)
        if entry is None:
            problems.append(Problem(json_path(*path), "Unknown property. Correct its name, or remove it."))
        elif isinstance(entry, ApiSetting):
            found = list(_violations(entry, value))
            is_shown = entry.setting.reaches != CREDENTIALS  # a secret may be in the wrong place
            problems += [_problem((*path, *each.steps), each, is_shown) for each in found]
            valid |= {} if found else {name: value}
        elif isinstance(value, dict):
            valid[name] = _section(value, entry, path, problems)
        else:
            problems.append(Problem(json_path(*path), "The value must be an object."))
    for name, entry in tree.items():
        if isinstance(entry, ApiSetting) and entry.required and name not in document:
            problems.append(Problem(json_path(*above, name), "This property is needed and is missing."))
    return valid


def _violations(entry: ApiSetting, value: object) -> Iterator[Violation]:
    converted, found = checking.convert(entry.annotation, value)
    yield from found
    wrong = {each.steps for each in found}
    of_rules = () if () in wrong else checking.violations(entry.setting, converted, sent=True)
    yield from (each for each in of_rules if each.steps not in wrong)


def _problem(path: tuple[str | int, ...], violation: Violation, is_shown: bool) -> Problem:
    shown = violation.value if is_shown else ""
    what = "The value"
    if isinstance(shown, str) and shown:
        what = quoted(redact(shown))
    elif isinstance(shown, bool | int | float):
        what = json.dumps(shown)
    return Problem(json_path(*path), f"{what} {violation.reason}")


def config_values(properties: Properties) -> Iterator[tuple[str, Any]]:
    """Yields the path in the configuration of the agent and the value of each setting that goes there unchanged."""
    for entry in api_settings().values():
        value = properties.at(entry.path) if entry.config_path else None
        if value is not None:
            yield entry.config_path, value


def other_methods(properties: Properties) -> Iterator[Problem]:
    """Refuses the settings of another Azure identity than the chosen one."""
    for method in AUTH_METHODS:
        if properties.at(f"azureAuth.{method}") is not None and method != properties.auth_method:
            yield Problem(
                json_path("properties", "azureAuth", method),
                f"These settings are for method {method}, but the method is {properties.auth_method}.",
            )
