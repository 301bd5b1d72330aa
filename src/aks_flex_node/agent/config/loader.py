"""Loads the configuration: merges file, environment and flags, validates the result and reports all problems at once.
Only reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config import files
from aks_flex_node.agent.config.conversion import convert_settings
from aks_flex_node.agent.config.keys import nearest_above
from aks_flex_node.agent.config.parser import parse_config
from aks_flex_node.agent.config.problems import ConfigProblem, invalid_config_error
from aks_flex_node.agent.config.resolved import ca_certificate, join_token, kubelet_auth
from aks_flex_node.agent.config.secret import Secret
from aks_flex_node.agent.config.sources import (
    ALTERNATIVES,
    ConfigSource,
    from_document,
    from_environment,
    from_flags,
    merge_sources,
    nest,
)
from aks_flex_node.agent.config.validation import check_combinations, check_values
from aks_flex_node.agent.redaction import redact, redact_values
from aks_flex_node.agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aks_flex_node.agent.config.models import NodeConfig


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, where each setting that was given came from, and what is worth a warning."""

    config: NodeConfig
    origins: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    file: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict, repr=False)  # all that was given, by path, with secrets

    def text(self, leave_out: str = "-") -> str:
        """All that was given, as one document that loads to the same. It holds secrets.

        What starts with `leave_out` is left out, unless the file says it.
        """
        both = {second for first, second in ALTERNATIVES if first in self.settings}
        passing = {path for path in self.settings if path.startswith(leave_out) and not self._is_in_file(path)}
        given = {path: _revealed(value) for path, value in self.settings.items() if path not in both | passing}
        return json.dumps({"config": nest(given)}, indent=1) + "\n"

    def _is_in_file(self, path: str) -> bool:
        return self.file is not None and self.origins.get(path, "").startswith(f"{self.file}:")


def _revealed(value: object) -> object:
    return value.reveal() if isinstance(value, Secret) else value


def load(
    path: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    directory: Path = files.CONFIG_DIRECTORY,
) -> LoadedConfig:
    """The configuration of this machine. Raises ConfigError; `.problems` has them one by one when it is invalid."""
    file = files.find_config(path, env, directory)
    others = [from_environment(env), from_flags(flags)]
    if file is None:
        if not any(source.settings or source.entries or source.problems for source in others):
            raise files.config_missing_error(directory / "config.yaml")
        return _complete(others, "the environment and flags", None)
    text, mode = files.read_config(file)
    source = from_document(parse_config(text, str(file)), str(file))
    files.check_mode(file, mode, source)
    return _complete([source, *others], str(file), file)


def load_text(text: str, name: str, env: Mapping[str, str], flags: Mapping[str, object]) -> LoadedConfig:
    """The same of a text that did not come from a file, such as a bundle that was fetched."""
    source = from_document(parse_config(text, name), name)
    return _complete([source, from_environment(env), from_flags(flags)], name, None)


def load_fetch_settings(env: Mapping[str, str], flags: Mapping[str, object]) -> NodeConfig:
    """What environment and flags say about fetching: all that is known before the rest is fetched."""
    given = merge_sources([from_environment(env), from_flags(flags)])
    about = {path: value for path, value in given.settings.items() if path.startswith(("proxy.", "artifacts."))}
    return _complete([replace(given, settings=about)], "the environment and flags", None).config


def missing_for_join(config: NodeConfig) -> list[ConfigProblem]:
    """What a join still lacks, and nobody can be asked for."""
    kubelet, by_token = config.node.kubelet, kubelet_auth(config) == "bootstrapToken"
    needed = (
        ("node.kubelet.serverURL", kubelet.server_url, "the address of the API server, https://…:443"),
        ("node.kubelet.caCertData", ca_certificate(config), "the cluster's CA certificate; or give caCertFile"),
        (files.TOKEN_FILE, join_token(config) or not by_token, "a file with the bootstrap token; or give token"),
        ("kubernetes.version", config.kubernetes.version, "the cluster's version, with its patch level"),
    )
    named = config.azure.bootstrap_token.token_file if config.azure.bootstrap_token else None
    lost = {files.TOKEN_FILE: f"names {named}, which is not there, and a join needs it."} if named else {}
    return [
        ConfigProblem(path, lost.get(path, f"is missing, and a join needs it: {what}."))
        for path, value, what in needed
        if not value
    ]


def check_join(config: NodeConfig) -> None:
    """Raise when a join lacks something."""
    if problems := missing_for_join(config):
        raise invalid_config_error(problems)


def _complete(weaker_first: list[ConfigSource], name: str, file: Path | None) -> LoadedConfig:
    merged = merge_sources(weaker_first)
    files.load_secret_files(merged)
    config, wrong = convert_settings(merged.settings)
    problems = [*merged.problems, *wrong, *check_values(config)]
    problems += _unless_told(list(check_combinations(config)), problems)
    if problems:
        raise invalid_config_error(_ready_to_show(problems, merged), name)
    return LoadedConfig(config, merged.origins, merged.warnings, file, dict(merged.settings))


def _unless_told(problems: list[ConfigProblem], known: list[ConfigProblem]) -> list[ConfigProblem]:
    """What is wrong by itself is not held against its neighbours as well."""
    wrong = {problem.path for problem in known if problem.path}
    return [each for each in problems if not any(path in f"{each.path} {each.reason}" for path in wrong)]


def _ready_to_show(problems: list[ConfigProblem], merged: ConfigSource) -> list[ConfigProblem]:
    secrets = [value.reveal() for value in merged.settings.values() if isinstance(value, Secret)]

    def clean(text: str) -> str:
        return printable(redact_values(redact(text) or "", secrets))

    complete = [replace(each, origin=each.origin or _origin(each, merged.origins)) for each in problems]
    return [
        ConfigProblem(clean(each.path), clean(each.reason), clean(each.value), clean(each.origin))
        for each in dict.fromkeys(complete)
    ]


def _origin(problem: ConfigProblem, origins: Mapping[str, str]) -> str:
    """Where a value came from; of one that was never given, the place of what it clashes with, or of its section."""
    key = nearest_above(problem.path)
    section = problem.path.rpartition(".")[0] + "."
    mentioned = (origin for each, origin in origins.items() if each in problem.reason)
    around = (origin for each, origin in origins.items() if each.startswith(section))
    exact = origins.get(problem.path) or origins.get(key.path if key else "")
    return exact or next(mentioned, "") or next(around, "")
