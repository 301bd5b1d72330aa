"""Loads the configuration: merges file, environment and flags, validates the result and reports all problems
together. Read-only.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config import files
from aks_flex_node.agent.config.conversion import convert_settings
from aks_flex_node.agent.config.parser import parse_config
from aks_flex_node.agent.config.problems import ConfigProblem, invalid_config_error
from aks_flex_node.agent.config.resolved import (
    ca_certificate,
    has_azure_identity,
    join_token,
    kubelet_auth,
)
from aks_flex_node.agent.config.sources import (
    SettingsSource,
    enable_described_arc,
    from_document,
    from_environment,
    from_flags,
    machine_paths,
    machine_settings,
    merge_documents,
    merge_sources,
    to_config,
    without_pool_settings,
)
from aks_flex_node.agent.config.validation import (
    check_azure,
    check_combinations,
    check_encrypted,
    check_remote_settings,
    check_values,
)
from aks_flex_node.agent.paths import APPLIED_CONFIG, CURRENT_CONFIG, NEXT_CONFIG, STAGING_CONFIG
from aks_flex_node.agent.text import printable
from aks_flex_node.errors import ConfigError
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.redaction import redact, redact_values
from aks_flex_node.settings import base
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.table import file_settings, nearest_above

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aks_flex_node.settings.models import NodeConfig

STORED_CONFIGS = frozenset({APPLIED_CONFIG, CURRENT_CONFIG, NEXT_CONFIG, STAGING_CONFIG})


@frozen
class LoadedConfig:
    """A configuration, the origin of each setting, and warnings."""

    config: NodeConfig
    origins: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    file: Path | None = None  # the first one
    files: tuple[Path, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict, repr=False)  # of all sources, by path, with secrets

    def text(self, leave_out: str = "-", *, without_token: bool = False) -> str:
        """Returns all settings as one document that loads to the same configuration. It contains secrets.

        Settings that start with `leave_out` are omitted, unless they are set in the file. The bootstrap token is
        omitted if `without_token` is set.
        """
        both = {file for content, file in file_settings().items() if content in self.settings}
        omitted = {
            path
            for path in self.settings
            if path.startswith(leave_out)
            and not any(self.origins.get(path, "").startswith(f"{file}:") for file in self.files)
        }
        if without_token:
            omitted |= {path for path in self.settings if path.startswith("azure.bootstrapToken")}
        given = {path: value for path, value in self.settings.items() if path not in both | omitted}
        return json.dumps({"config": to_config(given)}, indent=1) + "\n"


def load(
    path: Path | Sequence[Path],
    env: Mapping[str, str] = {},
    flags: Mapping[str, object] = {},
    base: Sequence[SettingsSource] = (),
    last: Sequence[SettingsSource] = (),
) -> LoadedConfig:
    """Loads a configuration. Several files are merged: a later one overrides an earlier one. All override `base`, and
    `last` overrides all. Raises ConfigError, or InvalidConfigError with all `problems`.
    """
    chosen = [path] if isinstance(path, Path) else list(path)
    others = [from_environment(env), from_flags(flags), *last]
    if not chosen:
        if not base and not any(source.settings or source.entries or source.problems for source in others):
            raise files.config_missing_error(files.CONFIG_DIRECTORY / "config.yaml")
        return _complete([*base, *others], "the environment and flags", ())
    documents = [_parse_document(*files.read_config(file), file) for file in chosen]
    if base:  # read from the pool, so newer than a file of bootstrap data
        documents = [without_pool_settings(each) if each.is_bootstrap_data else each for each in documents]
    names = ", ".join(str(file) for file in chosen)
    return _complete([*merge_documents([*base, *documents]), *others], names, tuple(chosen))


def _parse_document(text: str, mode: int, file: Path) -> SettingsSource:
    source = from_document(parse_config(text, str(file)), str(file))
    files.check_mode(file, mode, source)
    return source


def load_content(content: bytes, mode: int, file: Path) -> LoadedConfig:
    """Loads a configuration file whose content was read already."""
    source = _parse_document(files.decode_config(file, content), mode, file)
    return _complete([source], str(file), (file,))


def load_text(
    text: str,
    name: str,
    env: Mapping[str, str] = {},
    flags: Mapping[str, object] = {},
    own: Sequence[SettingsSource] = (),
) -> LoadedConfig:
    """Loads a configuration from a text, such as a fetched bundle. `own` are settings of this machine."""
    source = from_document(parse_config(text, name), name)
    return _complete([source, *own, from_environment(env), from_flags(flags)], name)


def load_machine_settings(current: str, file: Path | None) -> list[SettingsSource]:
    """Loads the settings that only this machine may set from its configuration in effect, which can be damaged, and
    from a file. Warns about other settings of the file.
    """
    found = []
    with suppress(ConfigError):
        stored = from_document(parse_config(current, CURRENT_CONFIG), CURRENT_CONFIG)
        found.append(replace(stored, problems=[], warnings=[], entries={}))  # perhaps of another version of the agent
    if file:
        source = _parse_document(*files.read_config(file), file)
        if others := [path for path in source.settings if path not in machine_paths()]:
            source.warnings.append(f"The provider decides {', '.join(others)}, so {file} does not.")
        found.append(source)
    return [
        replace(each, settings=machine_settings(each.settings), origins=machine_settings(each.origins))
        for each in found
    ]


def refuse_local_settings(text: str, name: str, current: str = "") -> None:
    """Raises InvalidConfigError if a configuration from another machine sets what only this one may set. Settings
    that the current configuration has as well are its own.
    """
    own = from_document(parse_config(current, CURRENT_CONFIG), CURRENT_CONFIG).settings if current else {}
    refuse_source(from_document(parse_config(text, name), name), name, own)


def refuse_source(source: SettingsSource, name: str, own: Mapping[str, object]) -> None:
    """Raises InvalidConfigError if settings from another machine are those that only this one may set."""
    if problems := list(check_remote_settings(source.settings, own)):
        raise invalid_config_error(_printable_problems(problems, source), name)


def load_fetch_settings(
    env: Mapping[str, str], flags: Mapping[str, object], own: Sequence[SettingsSource] = ()
) -> NodeConfig:
    """Loads the settings of this machine that are needed to fetch the rest: proxy, artifacts, paths, and how long a
    machine that enrols waits.
    """
    given = merge_sources([*own, from_environment(env), from_flags(flags)])
    needed = ("proxy.", "artifacts.", "paths.", "agent.approvalSeconds")
    about = {path: value for path, value in given.settings.items() if path.startswith(needed)}
    return _complete([replace(given, settings=about)], "the environment and flags").config


def with_join_method(loaded: LoadedConfig, applied: NodeConfig | None) -> LoadedConfig:
    """Completes a configuration that has an identity, but neither a token nor `auth`: the node joins with its
    identity, by `certificate`. A joined node keeps its method, which the applied configuration has.
    """
    config = loaded.config
    given = config.node.kubelet.auth or config.azure.bootstrap_token or config.azure.target_agent_pool_name
    if given or not has_azure_identity(config):
        return loaded
    # A join by an identity stores its method, so a node without one has joined by a token.
    method = (applied.node.kubelet.auth or "bootstrapToken") if applied else "certificate"
    if method == "bootstrapToken":
        return loaded
    key = "node.kubelet.auth"
    completed = base.replace(
        config, node=base.replace(config.node, kubelet=base.replace(config.node.kubelet, auth=method))
    )
    return replace(
        loaded,
        config=completed,
        settings={**loaded.settings, key: method},
        origins={**loaded.origins, key: "implied by the Azure identity"},
    )


def missing_for_join(config: NodeConfig, *, is_node: bool = False) -> list[ConfigProblem]:
    """Returns the settings that a join needs and that are neither set nor discoverable. A node has its credential."""
    kubelet, by_token = config.node.kubelet, kubelet_auth(config) == "bootstrapToken" and not is_node
    needed = (
        ("node.kubelet.serverURL", kubelet.server_url, "the URL of the API server, https://…:443"),
        ("node.kubelet.caCertData", ca_certificate(config), "the CA certificate of the cluster, or set caCertFile"),
        (files.TOKEN_FILE, join_token(config) or not by_token, "a file with the bootstrap token, or set token"),
        ("kubernetes.version", config.kubernetes.version, "the version of the cluster, with its patch version"),
    )
    path = config.azure.bootstrap_token.token_file if config.azure.bootstrap_token else None
    lost = {files.TOKEN_FILE: f"is {path}, which does not exist. A join needs it."} if path else {}
    missing = [
        ConfigProblem(path, lost.get(path, f"is missing. A join needs it: {meaning}."))
        for path, value, meaning in needed
        if not value
    ]
    return missing if is_node else [*missing, *check_azure(config)]


def check_join(config: NodeConfig, *, is_node: bool) -> None:
    """Raises InvalidConfigError if a setting that a join needs is missing."""
    if problems := missing_for_join(config, is_node=is_node):
        raise invalid_config_error(problems)


def _complete(weaker_first: list[SettingsSource], name: str, named: tuple[Path, ...] = ()) -> LoadedConfig:
    merged = merge_sources(weaker_first)
    enable_described_arc(merged)
    files.load_secret_files(merged)
    config, wrong = convert_settings(merged.settings)
    problems = [*merged.problems, *wrong, *check_values(config)]
    if name not in STORED_CONFIGS:
        problems += check_encrypted(config)
    # Combinations that involve a setting which is invalid on its own are omitted.
    invalid = {problem.path for problem in problems if problem.path}
    combined = list(check_combinations(config))
    problems += [each for each in combined if not any(path in f"{each.path} {each.reason}" for path in invalid)]
    if problems:
        raise invalid_config_error(_printable_problems(problems, merged), name)
    file = named[0] if named else None
    return LoadedConfig(config, merged.origins, merged.warnings, file, named, dict(merged.settings))


def _printable_problems(problems: list[ConfigProblem], merged: SettingsSource) -> list[ConfigProblem]:
    secrets = [value.reveal() for value in merged.settings.values() if isinstance(value, Secret)]

    def clean(text: str) -> str:
        return printable(redact_values(redact(text) or "", secrets))

    complete = [replace(each, origin=each.origin or _origin(each, merged.origins)) for each in problems]
    return [
        ConfigProblem(clean(each.path), clean(each.reason), clean(each.value), clean(each.origin))
        for each in dict.fromkeys(complete)
    ]


def _origin(problem: ConfigProblem, origins: Mapping[str, str]) -> str:
    """Returns the origin of a setting. If it is not set, returns the origin of a conflicting setting or of its
    section.
    """
    key = nearest_above(problem.path)
    section = problem.path.rpartition(".")[0] + "."
    mentioned = (origin for each, origin in origins.items() if each in problem.reason)
    around = (origin for each, origin in origins.items() if each.startswith(section))
    exact = origins.get(problem.path) or origins.get(key.path if key else "")
    return exact or next(mentioned, "") or next(around, "")
