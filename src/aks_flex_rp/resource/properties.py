"""The properties of a node, and of the template of a pool: read from a request by the table of settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_node.api.node_changes import value_at
from aks_flex_node.redaction import redact
from aks_flex_node.settings import value_checks
from aks_flex_node.settings.api import AUTH_METHODS, ApiSetting, api_settings, api_tree
from aks_flex_node.settings.setting import CLUSTER, CREDENTIALS, IMAGES, MACHINE, PROGRAMS
from aks_flex_node.settings.table import keys
from aks_flex_rp.arm.errors import MAX_DETAILS, Problem, json_path, quoted, unknown_property

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_node.settings.setting import Setting
    from aks_flex_node.settings.value_checks import Violation

Document = dict[str, Any]
IdentityMethod = Literal["exec", "certificate"]
NO_IDENTITY = "none"
MAY_HOLD_SECRET = (CREDENTIALS, CLUSTER, PROGRAMS, IMAGES)  # a secret at the wrong place, or a password in a URL


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

    @cached_property
    def auth_method(self) -> str:
        return str(self.at("azureAuth.method") or NO_IDENTITY)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The settings of the node's Azure identity."""
        return self.at(f"azureAuth.{self.auth_method}") or {}

    @property
    def join_method(self) -> str | None:
        method: str | None = self.at("kubernetesAuth.method")
        return method

    @cached_property
    def by_identity(self) -> IdentityMethod | None:
        """Returns how the Azure identity is used to join, or None if the node joins with a token."""
        method = self.join_method
        if method is None and self.at("kubernetesAuth.useAzureAuth"):
            return "certificate"
        return "exec" if method == "exec" else "certificate" if method == "certificate" else None

    @property
    def versions(self) -> Mapping[str, str]:
        return self.document.get("versions") or {}


def read_properties(document: Document) -> tuple[Properties, list[Problem]]:
    """Returns what is valid of the properties, and what the table says of the rest."""
    problems: list[Problem] = []
    valid = _section(document, api_tree(), ("properties",), problems)
    problems += _missing(document)
    principal = value_at(valid, "azureAuth.servicePrincipal")
    secret = principal.pop("clientSecret", None) if principal else None
    return Properties({name: value for name, value in valid.items() if value != {}}, secret), problems


def _section(
    document: Document, tree: Mapping[str, Any], above: tuple[str, ...], problems: list[Problem]
) -> Document:
    valid: Document = {}
    for name, value in document.items():
        entry = tree.get(name)
        if isinstance(entry, ApiSetting):
            if found := _violations(entry, value):
                problems += [_problem((*above, name), each, entry.setting) for each in found]
            else:
                valid[name] = value
        elif entry is None:
            problems.append(_unknown(tree if len(problems) < MAX_DETAILS else {}, *above, name))
        elif isinstance(value, dict):
            valid[name] = _section(value, entry, (*above, name), problems)
        else:
            problems.append(Problem(json_path(*above, name), "The value must be an object."))
    return valid


def _unknown(known: Mapping[str, Any], *path: str) -> Problem:
    own = ".".join(path[1:]).replace("nodeConfig.", "node.", 1)
    setters = {key.setting.who for key in keys() if known and f"{key.path}.".startswith(f"{own}.")}
    if setters == {MACHINE}:
        return Problem(json_path(*path), "Only the administrator of the machine can set it. Remove it.")
    return unknown_property(known, *path)


def _missing(document: Document) -> Iterator[Problem]:
    """Yields the settings that a given section needs."""
    for path in required_settings():
        above, _, name = path.rpartition(".")
        section = value_at(document, above)
        if isinstance(section, dict) and name not in section:
            yield Problem(f"properties.{path}", "This property is needed and is missing.")


@cache
def required_settings() -> tuple[str, ...]:
    return tuple(path for path, each in api_settings().items() if each.required)


def _violations(entry: ApiSetting, value: object) -> list[Violation]:
    converted, found = value_checks.convert(entry.shape, value)
    wrong = {each.steps for each in found} if found else ()
    if () in wrong:
        return found
    of_rules = value_checks.violations(entry.setting, converted, sent=True)
    return found + [each for each in of_rules if each.steps not in wrong] if found else of_rules


def _problem(path: tuple[str, ...], violation: Violation, setting: Setting) -> Problem:
    shown, what = violation.value, "The value"
    if setting.reaches in MAY_HOLD_SECRET:
        shown = ""
    if isinstance(shown, str) and shown:
        what = quoted(redact(shown))
    elif isinstance(shown, bool | int | float):
        what = json.dumps(shown)
    return Problem(json_path(*path, *violation.steps), f"{what} {violation.reason}")


def config_values(properties: Properties) -> Iterator[tuple[str, Any]]:
    """Yields the path in the configuration of the agent and the value of each setting that goes there unchanged."""
    yield from _config_values(properties.document, api_tree())


def _config_values(document: Mapping[str, Any], tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        entry = tree[name]
        if not isinstance(entry, ApiSetting):
            yield from _config_values(value, entry)
        elif entry.config_path:
            yield entry.config_path, value


def other_methods(properties: Properties) -> Iterator[Problem]:
    """Refuses the settings of another Azure identity than the chosen one."""
    given = properties.at("azureAuth") or {}
    for method in AUTH_METHODS:
        if method in given and method != properties.auth_method:
            yield Problem(
                json_path("properties", "azureAuth", method),
                f"These settings are for method {method}, but the method is {properties.auth_method}.",
            )
