"""The tree of known configuration keys, derived from the models: name, type, default, description, environment
variable.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AliasChoices
from pydantic_core import PydanticUndefined

from aks_flex_node.agent.config.base_model import ConfigModel, Path
from aks_flex_node.agent.config.models import NodeConfig
from aks_flex_node.agent.config.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

PREFIX = "AKS_FLEX_NODE_"

ValueKind = Literal["text", "secret", "choice", "whole number", "number", "switch", "list", "map"]
_KINDS: dict[object, ValueKind] = {
    str: "text",
    Secret: "secret",
    Literal: "choice",
    int: "whole number",
    float: "number",
    bool: "switch",
    tuple: "list",
    dict: "map",
}


@dataclass(frozen=True)
class ConfigKey:
    """One setting."""

    path: str
    attributes: tuple[str, ...]
    kind: ValueKind
    type: str
    holds_text: bool  # everything below it is text, however YAML would read it
    default: object
    required: bool
    description: str
    aliases: tuple[str, ...]

    @property
    def variable(self) -> str:
        return variable(self.attributes)

    @property
    def is_sensitive(self) -> bool:
        """A value that is never shown when it is wrong: a secret, or what may be one in the place of its file."""
        return self.kind == "secret" or self.path.endswith(("tokenFile", "SecretFile", "clientCertificateFile"))


@dataclass(frozen=True)
class ConfigSection:
    """A group of settings."""

    path: str
    attributes: tuple[str, ...]
    description: str
    optional: bool
    members: Mapping[str, ConfigSection | ConfigKey] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)

    @property
    def variable(self) -> str:
        return variable(self.attributes)

    def member(self, name: str) -> ConfigSection | ConfigKey | None:
        return self.members.get(self.spellings.get(name, ""))


def variable(attributes: tuple[str, ...]) -> str:
    return PREFIX + "__".join(attributes).upper()


@cache
def key_tree() -> ConfigSection:
    return _section(NodeConfig, "", (), "", optional=False)


def keys(section: ConfigSection | None = None) -> Iterator[ConfigKey]:
    """Every setting, in the order of the models."""
    for member in (section or key_tree()).members.values():
        if isinstance(member, ConfigKey):
            yield member
        else:
            yield from keys(member)


def sections(section: ConfigSection | None = None) -> Iterator[ConfigSection]:
    """Every section below this one, outer ones first."""
    for member in (section or key_tree()).members.values():
        if isinstance(member, ConfigSection):
            yield member
            yield from sections(member)


def all_entries() -> list[ConfigKey | ConfigSection]:
    return [*keys(), *sections()]


@cache
def by_path() -> dict[str, ConfigKey]:
    return {key.path: key for key in keys()}


def find_entry(path: str) -> tuple[ConfigSection | ConfigKey | None, str]:
    """What a dotted path leads to, and what is left of the path: the name of an entry when it is a map."""
    place: ConfigSection | ConfigKey | None = key_tree()
    rest = path
    while rest and isinstance(place, ConfigSection):
        name, _, rest = rest.partition(".")
        place = place.member(name)
    if isinstance(place, ConfigKey) and rest and place.kind != "map":
        return None, rest
    return place, rest


def nearest_above(path: str) -> ConfigKey | None:
    """The setting that this path, which may lead into a list or a map, belongs to."""
    known = by_path()
    return next((known[path[:end]] for end in _ends(path) if path[:end] in known), None)


def _ends(path: str) -> list[int]:
    return [len(path), *(at for at in range(len(path) - 1, 0, -1) if path[at] in ".[")]


def _section(
    model: type[ConfigModel], path: str, attributes: tuple[str, ...], meaning: str, *, optional: bool
) -> ConfigSection:
    members: dict[str, ConfigSection | ConfigKey] = {}
    spellings: dict[str, str] = {}
    for attribute, info in model.model_fields.items():
        name = info.serialization_alias or info.alias or attribute
        members[name] = _member(info, f"{path}.{name}".lstrip("."), (*attributes, attribute))
        spellings |= dict.fromkeys((name, attribute, *_older(info, name)), name)
    return ConfigSection(path, attributes, meaning, optional, members, spellings)


def _member(info: FieldInfo, path: str, attributes: tuple[str, ...]) -> ConfigSection | ConfigKey:
    inner, optional = _unwrap(info.annotation)
    meaning = info.description or ""
    if isinstance(inner, type) and issubclass(inner, ConfigModel):
        return _section(inner, path, attributes, meaning, optional=optional)
    default = info.get_default(call_default_factory=True, validated_data={})
    required = default is PydanticUndefined
    kind = _KINDS[get_origin(inner) or inner]
    return ConfigKey(
        path,
        attributes,
        kind,
        _type(inner, kind, info),
        _holds_text(inner),
        None if required else default,
        required,
        meaning,
        _older(info, path.rpartition(".")[2]),
    )


def _unwrap(annotation: Any) -> tuple[Any, bool]:
    """The type itself, without what annotates it, and whether None is allowed as well."""
    if get_origin(annotation) is Annotated:
        return _unwrap(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        inner = next(each for each in get_args(annotation) if each is not type(None))
        return _unwrap(inner)[0], True
    return annotation, False


def _older(info: FieldInfo, name: str) -> tuple[str, ...]:
    if not isinstance(info.validation_alias, AliasChoices):
        return ()
    return tuple(str(each) for each in info.validation_alias.choices if each != name and "_" not in str(each))


def _holds_text(inner: Any) -> bool:
    if get_origin(inner) is dict:
        return _holds_text(_unwrap(get_args(inner)[1])[0])
    if get_origin(inner) is tuple:
        return _holds_text(_unwrap(get_args(inner)[0])[0])
    if isinstance(inner, type) and issubclass(inner, ConfigModel):
        return all(_holds_text(_unwrap(each.annotation)[0]) for each in inner.model_fields.values())
    return inner in (str, Secret) or get_origin(inner) is Literal


def _type(inner: Any, kind: ValueKind, info: FieldInfo) -> str:
    if kind == "choice":
        return ", ".join(f"`{choice}`" for choice in get_args(inner))
    limits = {
        name: getattr(each, name) for each in info.metadata for name in ("ge", "gt", "le") if hasattr(each, name)
    }
    is_path = Path in get_args(info.annotation) or any(getattr(each, "pattern", "") == "^/" for each in info.metadata)
    words = ["path" if is_path else "true or false" if kind == "switch" else str(kind)]
    words += [f"from {limits['ge']}"] if "ge" in limits else []
    words += [f"above {limits['gt']:g}"] if "gt" in limits else []
    words += [f"to {limits['le']}"] if "le" in limits else []
    return " ".join(words)
