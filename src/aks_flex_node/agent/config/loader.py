"""File, environment and flags become one NodeConfig, or all of their problems at once. Only reads.

Flags are stronger than the environment, the environment than the file, and the file than the defaults.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from aks_flex_node.agent.config import files
from aks_flex_node.agent.config.checks import check_together, check_values
from aks_flex_node.agent.config.derived import ca_certificate, kubelet_auth, token
from aks_flex_node.agent.config.documents import parse
from aks_flex_node.agent.config.keys import nearest_above
from aks_flex_node.agent.config.masking import printable, public, without
from aks_flex_node.agent.config.models import NodeConfig
from aks_flex_node.agent.config.problems import Problem, dotted, from_pydantic, invalid
from aks_flex_node.agent.config.secret import Secret
from aks_flex_node.agent.config.sources import (
    EITHER,
    Source,
    from_document,
    from_environment,
    from_flags,
    merge,
    nest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Loaded:
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
        both = {second for first, second in EITHER if first in self.settings}
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
    directory: Path = files.DIRECTORY,
) -> Loaded:
    """The configuration of this machine. Raises ConfigError; `.problems` has them one by one when it is invalid."""
    file = files.choose(path, env, directory)
    others = [from_environment(env), from_flags(flags)]
    if file is None:
        if not any(source.settings or source.entries or source.problems for source in others):
            raise files.missing(directory / "config.yaml")
        return _complete(others, "the environment and flags", None)
    text, mode = files.read_config(file)
    source = from_document(parse(text, str(file)), str(file))
    files.judge_mode(file, mode, source)
    return _complete([source, *others], str(file), file)


def load_text(text: str, name: str, env: Mapping[str, str], flags: Mapping[str, object]) -> Loaded:
    """The same of a text that did not come from a file, such as a bundle that was fetched."""
    source = from_document(parse(text, name), name)
    return _complete([source, from_environment(env), from_flags(flags)], name, None)


def load_ahead(env: Mapping[str, str], flags: Mapping[str, object]) -> NodeConfig:
    """What environment and flags say about fetching: all that is known before the rest is fetched."""
    given = merge([from_environment(env), from_flags(flags)])
    about = {path: value for path, value in given.settings.items() if path.startswith(("proxy.", "artifacts."))}
    return _complete([replace(given, settings=about)], "the environment and flags", None).config


def require_join(config: NodeConfig) -> list[Problem]:
    """What a join still lacks, and nobody can be asked for."""
    kubelet, by_token = config.node.kubelet, kubelet_auth(config) == "bootstrapToken"
    needed = (
        ("node.kubelet.serverURL", kubelet.server_url, "the address of the API server, https://…:443"),
        ("node.kubelet.caCertData", ca_certificate(config), "the cluster's CA certificate; or give caCertFile"),
        (files.TOKEN_FILE, token(config) or not by_token, "a file with the bootstrap token; or give token"),
        ("kubernetes.version", config.kubernetes.version, "the cluster's version, with its patch level"),
    )
    named = config.azure.bootstrap_token.token_file if config.azure.bootstrap_token else None
    lost = {files.TOKEN_FILE: f"names {named}, which is not there, and a join needs it."} if named else {}
    return [
        Problem(path, lost.get(path, f"is missing, and a join needs it: {what}."))
        for path, value, what in needed
        if not value
    ]


def check_join(config: NodeConfig) -> None:
    """Raise when a join lacks something."""
    if problems := require_join(config):
        raise invalid(problems)


def _complete(weaker_first: list[Source], name: str, file: Path | None) -> Loaded:
    merged = merge(weaker_first)
    files.fill_from_files(merged)
    config, wrong = _validate(nest(merged.settings))
    problems = [*merged.problems, *wrong]
    if config is not None:
        problems += check_values(config)
        problems += _unless_told(list(check_together(config)), problems)
    if problems or config is None:
        raise invalid(_ready_to_show(problems, merged), name)
    return Loaded(config, merged.origins, merged.warnings, file, dict(merged.settings))


def _validate(values: dict[str, Any]) -> tuple[NodeConfig | None, list[Problem]]:
    """Take out what is of the wrong type and go on with the rest, so that the rest is checked as well."""
    problems: list[Problem] = []
    while True:
        try:
            return NodeConfig.model_validate(values), problems
        except ValidationError as error:
            details = error.errors(include_url=False)
        problems += [from_pydantic(each) for each in details]
        removed = [_take_out(values, dotted(each["loc"]), is_missing=each["type"] == "missing") for each in details]
        if not any(removed):
            return None, problems


def _take_out(values: dict[str, Any], path: str, *, is_missing: bool) -> bool:
    """Remove the setting at fault; when one is missing, the section that lacks it."""
    key = nearest_above(path)
    fault = key.path if key else path
    *way, name = (fault.rpartition(".")[0] if is_missing and fault == path else fault).split(".")
    place: Any = values
    for each in way:
        place = place.get(each, {})
    return place.pop(name, None) is not None


def _unless_told(problems: list[Problem], told: list[Problem]) -> list[Problem]:
    """What is wrong by itself is not held against its neighbours as well."""
    wrong = {problem.path for problem in told if problem.path}
    return [each for each in problems if not any(path in f"{each.path} {each.reason}" for path in wrong)]


def _ready_to_show(problems: list[Problem], merged: Source) -> list[Problem]:
    secrets = [value.reveal() for value in merged.settings.values() if isinstance(value, Secret)]

    def clean(text: str) -> str:
        return printable(without(public(text) or "", secrets))

    complete = [replace(each, origin=each.origin or _origin(each, merged.origins)) for each in problems]
    return [
        Problem(clean(each.path), clean(each.reason), clean(each.value), clean(each.origin))
        for each in dict.fromkeys(complete)
    ]


def _origin(problem: Problem, origins: Mapping[str, str]) -> str:
    """Where a value came from; of one that was never given, the place of what it clashes with, or of its section."""
    key = nearest_above(problem.path)
    section = problem.path.rpartition(".")[0] + "."
    mentioned = (origin for each, origin in origins.items() if each in problem.reason)
    around = (origin for each, origin in origins.items() if each.startswith(section))
    exact = origins.get(problem.path) or origins.get(key.path if key else "")
    return exact or next(mentioned, "") or next(around, "")
