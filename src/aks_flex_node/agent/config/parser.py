"""Parses the text of a configuration file, JSON or YAML, and records the line of each key."""

from __future__ import annotations

import json
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import ConfigError
from aks_flex_node.lean_dataclass import dataclass
from aks_flex_node.settings.table import ConfigKey, ConfigSection, key_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    import yaml

KeyPath = tuple[str | int, ...]
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,\n]')


@dataclass
class ConfigDocument:
    """A parsed file, the line of each key, and duplicate keys."""

    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    duplicates: list[KeyPath] = field(default_factory=list)

    def record_key(self, key_path: KeyPath, line: int) -> None:
        if key_path in self.lines:
            self.duplicates.append(key_path)
        self.lines[key_path] = line


def parse_config(text: str, name: str) -> ConfigDocument:
    """Parses JSON (by name or first character) or YAML. Unwraps a bundle, `{"config": …}`."""
    is_json = name.endswith(".json") or (text.lstrip()[:1] == "{" and not name.endswith((".yaml", ".yml")))
    try:
        document = _parse_json(text, name) if is_json else parse_yaml(text, name)
    except RecursionError:
        document = None
    if document is None:
        raise ConfigError(
            "config-syntax",
            f"{name} is nested too deeply.",
            "Check the file: a configuration has at most five levels.",
        )
    document.data.pop("$schema", None)  # for editors only
    inner = document.data.get("config")
    if not isinstance(inner, dict) or set(document.data) - {"config", "configVersion"}:
        return document
    lines = {
        key_path[1:]: line
        for key_path, line in document.lines.items()
        if key_path[:1] == ("config",) and key_path[1:]
    }
    repeated = [key_path[1:] for key_path in document.duplicates if key_path[1:]]
    return ConfigDocument(inner, lines, repeated)


def _check_top(data: object, name: str) -> dict[str, Any]:
    if isinstance(data, dict):
        return data
    raise ConfigError(
        "config-syntax",
        f"{name} does not contain settings, but a plain value or a list.",
        "Create a file with `aks-flex-node config init`.",
    )


def _parse_json(text: str, name: str) -> ConfigDocument:
    try:
        data = json.loads(text)
        problem = None
    except json.JSONDecodeError as error:
        problem = (f"{name}:{error.lineno}:{error.colno}", error.msg)
    except ValueError:  # Python rejects numbers with thousands of digits
        problem = (name, "it contains a number that is too long")
    if problem:  # outside of `except`, so that no traceback includes the text of the file
        where, cause = problem
        raise ConfigError(
            "config-syntax",
            f"{where} is not JSON: {cause}.",
            "JSON allows no comments and no comma after the last entry.",
        )
    document = ConfigDocument(_check_top(data, name))
    for key_path, line in _json_keys(text):
        document.record_key(key_path, line)
    return document


def _json_keys(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Yields every key of a valid JSON text with its line."""
    line = 1
    key_path: list[str | int] = []
    naming: list[bool] = []  # for each open bracket: whether the next string is a key
    for mark in _TOKENS.findall(text):
        if mark == "\n":
            line += 1
        elif mark in "{[":
            naming.append(mark == "{")
            key_path.append(0 if mark == "[" else "")
        elif mark in "}]":
            naming.pop()
            key_path.pop()
        elif mark == ",":
            naming[-1] = isinstance(key_path[-1], str)
            key_path[-1] = key_path[-1] + 1 if isinstance(key_path[-1], int) else ""
        elif mark == ":":
            naming[-1] = False
        elif naming and naming[-1]:
            key_path[-1] = json.loads(mark)
            yield tuple(key_path), line


def parse_yaml(text: str, name: str) -> ConfigDocument:
    import yaml

    document = ConfigDocument({})
    problem = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            _prepare(node, (), key_tree(), document, set())
            document.data = _check_top(loader.construct_document(node), name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        message = error.problem or error.context or "it cannot be read"
        # Without quotations of the file, which can contain secrets. Single characters and token names remain.
        problem = (where, re.sub(r"'(?!<)[^']{2,}'|\"[^\"]{2,}\"", "…", message))
    except (yaml.YAMLError, ValueError):
        problem = (name, "it contains characters or values that YAML does not allow")
    if problem:
        where, cause = problem
        raise ConfigError(
            "config-syntax",
            f"{where} is not YAML: {cause}.",
            "Indent with spaces, and quote values that contain `: `, `#` or `%`.",
        )
    return document


def _prepare(
    node: yaml.Node,
    key_path: KeyPath,
    entry: ConfigSection | ConfigKey | None,
    document: ConfigDocument,
    seen: set[int],
) -> None:
    """Records lines, and marks scalars of string settings as strings, so that `1.30` is not 1.3."""
    import yaml

    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag.endswith(":merge"):
                _prepare(value, key_path, entry, document, seen)
                continue
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
            inner = (*key_path, str(key.value))
            document.record_key(inner, key.start_mark.line + 1)
            _prepare(value, inner, _step(entry, str(key.value), top=not key_path), document, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, each in enumerate(node.value):
            _prepare(each, (*key_path, index), entry, document, seen)
    elif isinstance(entry, ConfigKey) and entry.holds_text and not node.tag.endswith(":null"):
        node.tag = "tag:yaml.org,2002:str"


def _step(entry: ConfigSection | ConfigKey | None, name: str, *, top: bool) -> ConfigSection | ConfigKey | None:
    if isinstance(entry, ConfigSection):
        return key_tree() if top and name == "config" else entry.member(name)
    return entry
