"""Configuration sources (file, environment, flags) as settings by dotted path, each with its origin, and their merge.
Only names are checked here. Values are validated once, after the merge.
"""

from __future__ import annotations

import json
from dataclasses import field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config.pool_names import convert_pool_value, is_bootstrap_data, split_labels
from aks_flex_node.agent.config.problems import ConfigProblem, section_expected, unknown_key
from aks_flex_node.lean_dataclass import dataclass
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.setting import MACHINE
from aks_flex_node.settings.table import (
    PREFIX,
    ConfigKey,
    ConfigSection,
    aks_names,
    all_entries,
    by_path,
    file_settings,
    find_entry,
    key_tree,
    keys,
)
from aks_flex_node.settings.value_checks import closest_match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aks_flex_node.agent.config.parser import ConfigDocument, KeyPath

# These variables select the configuration. They are not settings.
CONFIG_VARIABLE = "AKS_FLEX_NODE_CONFIG"
URL_VARIABLE = "AKS_FLEX_NODE_CONFIG_URL"

# The deprecated key and its replacement.
DEPRECATED_KEYS = (("azure.arc.autoRegister", "azure.arc.enabled"), ("agent.logDir", "paths.logDir"))
IDENTITY_SECTIONS = ("azure.servicePrincipal.", "azure.workloadIdentity.")
FALSE_WORDS = ("0", "off", "f", "false", "n", "no")
ARC_ENABLED = "azure.arc.enabled"
# These settings describe the Arc machine. If one is set, Arc is enabled unless `azure.arc.enabled` is false.
ARC_MACHINE_KEYS = tuple(
    f"azure.arc.{name}" for name in ("machineName", "resourceGroup", "location", "tags", "autoRoleAssignment")
)


@dataclass
class SettingsSource:
    """The settings of one source: complete values, single map entries, and problems with names."""

    settings: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)  # settings that name a missing file
    removed: set[str] = field(default_factory=set)  # settings of earlier sources that return to their default
    pool_names: dict[str, str] = field(default_factory=dict)  # the name in AKS's bootstrap data, by path
    is_bootstrap_data: bool = False  # a file as AKS prints it

    def put(self, key: ConfigKey, value: object, origin: str, name: str = "") -> None:
        """Sets a value. `name` is the name in the source, which can be one of AKS's bootstrap data."""
        theirs = name if name in aks_names() else ""
        value = convert_pool_value(theirs, value) if theirs else value
        if value == "" and key.kind == "string" and (key.default is None or theirs):
            return  # not set
        if key.path in self.settings and (theirs or key.path in self.pool_names):
            if value != self.settings[key.path]:
                other = self.pool_names.get(key.path, key.path)
                reason = f"is another name of {other}, which has another value. Remove one of them."
                self.problems.append(ConfigProblem(theirs or key.path, reason, origin=origin))
            return
        if key.path in self.settings:
            self.problems.append(ConfigProblem(key.path, "is set twice, under two of its names.", origin=origin))
        if theirs:
            self.pool_names[key.path] = theirs
        self.settings[key.path] = (
            Secret(value) if key.kind == "secret" and isinstance(value, str) and value else value
        )
        self.origins[key.path] = origin


def from_document(document: ConfigDocument, name: str) -> SettingsSource:
    source = SettingsSource()

    def origin(key_path: KeyPath) -> str:
        return f"{name}:{document.lines[key_path]}" if key_path in document.lines else name

    for key_path in document.duplicates:
        path = ".".join(str(each) for each in key_path)
        source.problems.append(ConfigProblem(path, "occurs twice in the file.", origin=origin(key_path)))
    _flatten(document.data, key_tree(), (), source, origin)
    if is_bootstrap_data(document.data):
        source.is_bootstrap_data = True
        labels = source.settings.get("node.labels")
        if isinstance(labels, dict):
            source.settings["node.labels"], others = split_labels(labels)
            source.warnings += [f"The label {each} is left to the cluster: a node cannot set it." for each in others]
    return resolve_alternatives(source)


def from_environment(environment: Mapping[str, str]) -> SettingsSource:
    source = SettingsSource()
    known: dict[str, ConfigKey | ConfigSection] = {each.variable: each for each in all_entries()}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in {CONFIG_VARIABLE, URL_VARIABLE} or not text:
            continue
        if name in known:
            _put_text(source, known[name], text, f"environment {name}")
        else:
            near = closest_match(name, known)
            hint = f"Did you mean {near}?" if near else "Run `aks-flex-node config show` to list all settings."
            source.problems.append(
                ConfigProblem(name, f"is not an environment variable of the agent. {hint}", origin="environment")
            )
    return resolve_alternatives(source)


def from_flags(flags: Mapping[str, object]) -> SettingsSource:
    source = SettingsSource()
    for path, value in flags.items():
        entry, rest = find_entry(path)
        origin = f"flag --set {entry.path if isinstance(entry, ConfigKey) else path}"
        if entry is None:
            source.problems.append(_unknown_flag(path))
        elif value == "" and not rest and isinstance(entry, ConfigKey) and not isinstance(entry.default, str):
            source.removed.add(entry.path)
        elif isinstance(entry, ConfigKey) and rest:
            entry_value = _read_json(value) if not entry.holds_text or entry.path == "registryMirrors" else value
            source.entries.setdefault(entry.path, {})[rest] = entry_value
            source.origins[f"{entry.path}.{rest}"] = f"{origin}.{rest}"
        else:
            _put_text(source, entry, value, origin, path)
    for secret, file in file_settings().items():
        if isinstance(source.settings.get(secret), Secret):
            source.warnings.append(
                f"{secret} was set on the command line, which other users of this machine can "
                f"read. Use {file} instead."
            )
    return resolve_alternatives(source)


def _unknown_flag(path: str) -> ConfigProblem:
    parent, _, name = path.rpartition(".")
    section, _ = find_entry(parent)
    if isinstance(section, ConfigSection):
        return unknown_key(section, name, "flag --set")
    near = closest_match(path, [key.path for key in keys()])
    return ConfigProblem(path, "is not a setting." + (f" Did you mean {near}?" if near else ""), origin="flag --set")


def _put_text(
    source: SettingsSource, entry: ConfigKey | ConfigSection, value: object, origin: str, name: str = ""
) -> None:
    """Sets a value from the environment or flags. Lists, maps and sections are JSON."""
    if isinstance(entry, ConfigKey) and entry.kind not in ("list", "map"):
        source.put(entry, value, origin, name)
        return
    read = _read_json(value)
    if isinstance(read, str):
        example = '["a", "b"]' if isinstance(entry, ConfigKey) and entry.kind == "list" else '{"name": "value"}'
        source.problems.append(ConfigProblem(entry.path, f"must be JSON here, for example {example}.", origin=origin))
    elif isinstance(entry, ConfigKey):
        source.put(entry, read, origin)
    elif isinstance(read, dict):
        _flatten(read, entry, (), source, lambda _: origin)
    else:
        source.problems.append(section_expected(entry, origin))


def _read_json(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (json.JSONDecodeError, RecursionError):
        return value


def _flatten(
    data: Mapping[str, Any],
    section: ConfigSection,
    key_path: KeyPath,
    source: SettingsSource,
    origin: Callable[[KeyPath], str],
) -> None:
    if not data and section.path and not section.is_foreign:
        source.settings.setdefault(section.path, {})
        source.origins[section.path] = origin(key_path)
    for name, value in data.items():
        member_path = (*key_path, name)
        member = section.member(str(name))
        if member is None and section.is_foreign:
            source.warnings.append(f"{section.path}.{name} is not used by this agent.")
        elif member is None:
            source.problems.append(unknown_key(section, str(name), origin(member_path)))
        elif value is None:
            if isinstance(member, ConfigSection) and member.optional:
                source.warnings.append(f"{member.path} is empty and is ignored. Use `{{}}` to set an empty section.")
        elif isinstance(member, ConfigKey):
            source.put(member, value, origin(member_path), f"{section.path}.{name}")
            if member.kind == "map" and isinstance(value, dict):
                source.origins |= {f"{member.path}.{entry}": origin((*member_path, entry)) for entry in value}
        elif isinstance(value, dict):
            _flatten(value, member, member_path, source, origin)
        else:
            source.problems.append(section_expected(member, origin(member_path)))


def resolve_alternatives(source: SettingsSource) -> SettingsSource:
    """Reports alternatives that are both set, and resolves deprecated keys of one source."""
    for first, second in file_settings().items():
        if first in source.settings and second in source.settings:
            reason = f"conflicts with {second}. Set only one of them."
            source.problems.append(ConfigProblem(first, reason, origin=source.origins[first]))
    for older, key in DEPRECATED_KEYS:
        if older not in source.settings:
            continue
        if source.settings.setdefault(key, source.settings[older]) != source.settings.pop(older):
            reason = f"is the deprecated name of {key}, which has another value. Remove it."
            source.problems.append(ConfigProblem(older, reason, origin=source.origins[older]))
        source.origins.setdefault(key, source.origins[older])
    return source


POOL_SETTINGS = frozenset(
    (
        "kubernetes.version",
        "containerd.version",
        "runc.version",
        "cni.version",
        "node.maxPods",
        "node.labels",
        "node.taints",
        "node.kubelet.dnsServiceIP",
        "node.kubelet.serverURL",
        "node.kubelet.caCertData",
    )
)  # of a node, in bootstrap data


def without_pool_settings(source: SettingsSource) -> SettingsSource:
    """Returns a file of bootstrap data without the settings that come from the pool or the Machine."""
    kept = {path: value for path, value in source.settings.items() if path not in POOL_SETTINGS}
    return replace(source, settings=kept, entries={})


def merge_documents(weaker_first: list[SettingsSource]) -> list[SettingsSource]:
    """Prepares several documents for `merge_sources`: a map of a later document adds entries to that of an earlier
    one, instead of replacing it.
    """
    seen: set[str] = set()
    merged = []
    for source in weaker_first:
        maps = {path for path in source.settings if (key := by_path().get(path)) and key.kind == "map"}
        added = {path: source.settings[path] for path in maps & seen if isinstance(source.settings[path], dict)}
        settings = {path: value for path, value in source.settings.items() if path not in added}
        merged.append(replace(source, settings=settings, entries={**source.entries, **added}))
        seen |= maps
    return merged


def merge_sources(weaker_first: list[SettingsSource]) -> SettingsSource:
    """Merges several sources. A later source overrides an earlier one."""
    merged = SettingsSource()
    for source in weaker_first:
        for pair in file_settings().items():
            if any(path in source.settings for path in pair):
                _forget(merged, pair)
        for path in (*source.settings, *source.removed):
            _forget(merged, [path, *(each for each in merged.origins if each.startswith(f"{path}."))])
        merged.settings |= source.settings
        for path, entries in source.entries.items():
            below = merged.settings.get(path)
            merged.settings[path] = {**below, **entries} if isinstance(below, dict) else entries
        merged.origins |= source.origins
        merged.problems += source.problems
        merged.warnings += source.warnings
    return merged


@cache
def machine_paths() -> frozenset[str]:
    """Returns the settings that only this machine may set, and keeps when a provider sends a configuration. Those of
    an Azure identity are not among them: the provider chooses the identity.
    """
    own = (key for key in keys() if key.setting.who == MACHINE and not key.setting.content)
    return frozenset(key.path for key in own if not key.path.startswith(IDENTITY_SECTIONS))


def machine_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in settings.items() if path in machine_paths()}


def complete(sent: Any, own: Any) -> Any:
    """Returns a section of a configuration with what another one sets in addition. An empty text counts as not set,
    as when a configuration is read.
    """
    if isinstance(sent, dict) and isinstance(own, dict):
        return {**sent, **{name: complete(sent.get(name), value) for name, value in own.items()}}
    return own if sent is None or sent == "" else sent


def enable_described_arc(merged: SettingsSource) -> None:
    """Enables Arc if its machine is described. Warns about a description that is not used."""
    described = [path for path in ARC_MACHINE_KEYS if _is_set(merged.settings.get(path))]
    if not described:
        return
    if ARC_ENABLED not in merged.settings:
        merged.settings[ARC_ENABLED] = True
        merged.origins[ARC_ENABLED] = f"implied by {described[0]}"
    elif not _is_set(merged.settings[ARC_ENABLED]):
        merged.warnings.append(f"{ARC_ENABLED} is false, so these settings are not used: {', '.join(described)}.")


def _is_set(value: object) -> bool:
    """Returns whether a value is neither empty nor false, which is a word in the environment and in flags."""
    return bool(value) and str(value).lower() not in FALSE_WORDS


def _forget(source: SettingsSource, paths: Iterable[str]) -> None:
    for path in paths:
        source.settings.pop(path, None)
        source.origins.pop(path, None)


def to_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings as a configuration that can be written as JSON. It contains secrets."""
    return nest({path: value.reveal() if isinstance(value, Secret) else value for path, value in settings.items()})


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Converts dotted paths to nested sections."""
    nested: dict[str, Any] = {}
    for path, value in settings.items():
        *parents, name = path.split(".")
        section = nested
        for each in parents:
            section = section.setdefault(each, {})
        section[name] = section.get(name, {}) if value == {} else value
    return nested
