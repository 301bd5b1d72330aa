"""Reads the properties of nodes, pools and roll-outs from files of JSON or YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.api import node_changes
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    Document = dict[str, Any]


def read_properties(file: Path | None) -> Document | None:
    """Reads properties from a file, with or without the ARM envelope."""
    if file is None:
        return None
    document = read_mapping(file, "--file")
    inner = document.get("properties", document)
    if not isinstance(inner, dict):
        raise _invalid_file(file, "properties")
    made = node_changes.writable_properties(document) if "properties" in document else inner
    malformed = node_changes.malformed_path(made)
    if malformed:
        raise _invalid_file(file, malformed)
    return made


def read_mapping(file: Path, option: str) -> Document:
    """Reads a JSON or YAML file that contains a mapping."""
    document = read_document(file, option)
    if not isinstance(document, dict):
        raise ConfigError("node-file-invalid", f"{file} is invalid: it is not a mapping.", f"Check `{option}`.")
    return document


def read_document(file: Path, option: str) -> object:
    """Reads a JSON or YAML file."""
    import yaml

    try:
        return yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is neither JSON nor YAML"
        raise ConfigError("node-file-invalid", f"{file} is invalid: {why}.", f"Check `{option}`.") from None


def _invalid_file(file: Path, path: str) -> ConfigError:
    why = f"{path} has the wrong type"
    return ConfigError("node-file-invalid", f"{file} is invalid: {why}.", "Check `--file`.")
