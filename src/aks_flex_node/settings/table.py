"""The table of settings, derived from the models: each with its path, type, default, variable and entry."""

from __future__ import annotations

from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from msgspec import NODEFAULT

from aks_flex_node.api.kubernetes_rules import RESERVED_KUBELET_OPTIONS
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.base import PATH_PATTERN, ConfigModel, FieldType, default_of, model_fields
from aks_flex_node.settings.models import NodeConfig
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.setting import MACHINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from msgspec.structs import FieldInfo

    from aks_flex_node.settings.setting import Setting

PREFIX = "AKS_FLEX_NODE_"
DESIGN_NAMES = {
    "azure.servicePrincipal.tenantId": "clientTenant"
}  # names in the configuration of the design documents

ValueKind = Literal["string", "secret", "choice", "integer", "number", "boolean", "list", "map"]
_KINDS: dict[object, ValueKind] = {
    str: "string",
    Secret: "secret",
    Literal: "choice",
    int: "integer",
    float: "number",
    bool: "boolean",
    tuple: "list",
    dict: "map",
}


@frozen
class ConfigKey:
    """One setting."""

    path: str
    attributes: tuple[str, ...]
    shape: FieldType
    kind: ValueKind
    type: str
    holds_text: bool  # all values below it are strings, regardless of how YAML would parse them
    default: object
    required: bool
    setting: Setting

    @property
    def annotation(self) -> Any:
        return self.shape.annotation

    @property
    def description(self) -> str:
        return self.setting.help

    @property
    def variable(self) -> str:
        return variable(self.attributes)

    @property
    def is_sensitive(self) -> bool:
        """Returns whether the value must never appear in messages: a secret, or a path that might be a secret by
        mistake.
        """
        return self.kind == "secret" or self.path.endswith(("tokenFile", "SecretFile", "clientCertificateFile"))


@frozen
class ConfigSection:
    """A group of settings."""

    path: str
    attributes: tuple[str, ...]
    model: type[ConfigModel]
    description: str
    optional: bool
    members: Mapping[str, ConfigSection | ConfigKey] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    # Settings of other sections under the names of AKS's bootstrap data.
    pool_names: dict[str, ConfigSection | ConfigKey] = field(default_factory=dict)

    @property
    def variable(self) -> str:
        return variable(self.attributes)

    @property
    def is_foreign(self) -> bool:
        """Returns whether the section occurs only in AKS's bootstrap data."""
        return not self.members

    def member(self, name: str) -> ConfigSection | ConfigKey | None:
        return self.members.get(self.spellings.get(name, "")) or self.pool_names.get(name)


def variable(attributes: tuple[str, ...]) -> str:
    return PREFIX + "__".join(attributes).upper()


@cache
def key_tree() -> ConfigSection:
    root = _section(NodeConfig, "", (), "", optional=False)
    for key in keys(root):
        if not key.setting.aks:
            continue
        *parents, name = key.setting.aks.split(".")
        section = root
        for parent in parents:
            inner = section.member(parent)
            if not isinstance(inner, ConfigSection):
                path = f"{section.path}.{parent}".lstrip(".")
                inner = section.pool_names[parent] = ConfigSection(path, (), ConfigModel, "", optional=False)
            section = inner
        section.pool_names[name] = key
    return root


@cache
def aks_names() -> dict[str, str]:
    """Returns the settings that have a name of their own in the bootstrap data of an AKS pool, by that name."""
    return {key.setting.aks: key.path for key in keys() if key.setting.aks}


def keys(section: ConfigSection | None = None) -> Iterator[ConfigKey]:
    """Yields all settings in the order of the models."""
    for member in (section or key_tree()).members.values():
        if isinstance(member, ConfigKey):
            yield member
        else:
            yield from keys(member)


def sections(section: ConfigSection | None = None) -> Iterator[ConfigSection]:
    """Yields all sections below this one, outer sections first."""
    for member in (section or key_tree()).members.values():
        if isinstance(member, ConfigSection):
            yield member
            yield from sections(member)


def all_entries() -> list[ConfigKey | ConfigSection]:
    return [*keys(), *sections()]


@cache
def by_path() -> dict[str, ConfigKey]:
    return {key.path: key for key in keys()}


@cache
def file_settings() -> dict[str, str]:
    """Returns the settings that name a file, by the setting whose value it contains. A source sets only one of both,
    and a later source overrides both.
    """
    return {key.setting.content: key.path for key in keys() if key.setting.content}


def find_entry(path: str) -> tuple[ConfigSection | ConfigKey | None, str]:
    """Returns the entry at a dotted path, and the rest of the path: the name of a map entry."""
    entry: ConfigSection | ConfigKey | None = key_tree()
    rest = path
    while rest and isinstance(entry, ConfigSection):
        name, _, rest = rest.partition(".")
        entry = entry.member(name)
    if isinstance(entry, ConfigKey) and rest and entry.kind != "map":
        return None, rest
    return entry, rest


def nearest_above(path: str) -> ConfigKey | None:
    """Returns the setting that contains this path, which can be inside a list or a map."""
    known = by_path()
    ends = [len(path), *(at for at in range(len(path) - 1, 0, -1) if path[at] in ".[")]
    return next((known[path[:end]] for end in ends if path[:end] in known), None)


def _section(
    model: type[ConfigModel], path: str, attributes: tuple[str, ...], meaning: str, *, optional: bool
) -> ConfigSection:
    members: dict[str, ConfigSection | ConfigKey] = {}
    spellings: dict[str, str] = {}
    for info, shape in model_fields(model):
        name = info.encode_name
        members[name] = _member(info, shape, f"{path}.{name}".lstrip("."), (*attributes, info.name))
        spellings |= dict.fromkeys((name, info.name, DESIGN_NAMES.get(members[name].path, name)), name)
    return ConfigSection(path, attributes, model, meaning, optional, members, spellings)


def _member(info: FieldInfo, shape: FieldType, path: str, attributes: tuple[str, ...]) -> ConfigSection | ConfigKey:
    if is_model(shape.inner):
        meaning = shape.metadata_value("description") or ""
        return _section(shape.inner, path, attributes, meaning, optional=shape.optional)
    if shape.setting is None:
        raise TypeError(f"{path} has no entry in the table of settings: who may set it, and what it reaches.")
    if shape.origin is dict and shape.setting.rule and not shape.setting.name_rules:
        raise TypeError(f"{path} has a rule for its values, but none for its names, so it would be free JSON.")
    default = default_of(info)
    return ConfigKey(
        path,
        attributes,
        shape,
        _KINDS[shape.origin or shape.inner],
        describe_type(shape),
        _holds_text(shape),
        None if default is NODEFAULT else default,
        default is NODEFAULT,
        shape.setting,
    )


def is_model(inner: Any) -> bool:
    return isinstance(inner, type) and issubclass(inner, ConfigModel)


def _holds_text(shape: FieldType) -> bool:
    if shape.item:
        return _holds_text(shape.item)
    if is_model(shape.inner):
        return all(_holds_text(each) for _, each in model_fields(shape.inner))
    return shape.inner in (str, Secret) or bool(shape.choices)


def describe_type(shape: FieldType) -> str:
    """Returns type and bounds of a setting for people."""
    kind = _KINDS[shape.origin or shape.inner]
    if shape.choices:
        return ", ".join(f"`{choice}`" for choice in shape.choices)
    least, above, most = shape.metadata_value("ge"), shape.metadata_value("gt"), shape.metadata_value("le")
    is_path = shape.pattern == PATH_PATTERN
    parts = ["path" if is_path else "true or false" if kind == "boolean" else str(kind)]
    parts += [f"from {least}"] if least is not None else []
    parts += [f"above {above:g}"] if above is not None else []
    parts += [f"to {most}"] if most is not None else []
    return " ".join(parts)


def value_at(config: NodeConfig, key: ConfigKey) -> object:
    """Returns the value of a key, or None if a parent section is not set."""
    value: object = config
    for attribute in key.attributes:
        value = getattr(value, attribute, None)
    return value


def reserved_kubelet_option(name: str) -> str | None:
    """Returns why a provider cannot set this option of the kubelet, in any spelling, or None if it can."""
    return reserved_kubelet_options().get(name.lower())


@cache
def reserved_kubelet_options() -> dict[str, str]:
    alone = {MACHINE: ", only by the administrator of the machine"}
    of_keys = [key for key in keys() if key.setting.kubelet]
    own = {key.setting.kubelet: f"is set by {key.path}{alone.get(key.setting.who, '')}" for key in of_keys}
    listed = {option: why for why, options in RESERVED_KUBELET_OPTIONS.items() for option in options.split()}
    return {option.lower(): why for option, why in (own | listed).items()}
