"""Reads the properties of nodes, pools and roll-outs from files of JSON or YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.api.node_changes import POOL_NAME
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.api.node_changes import NodeOptions

    Document = dict[str, Any]

MANAGED = {"continuousMonitoring": True}  # the default of this command line for nodes and pools


def read_properties(file: Path | None, options: NodeOptions, *, of_pool: bool = False) -> Document:
    """Returns the properties of a file, or of a new resource without one. A file with what the API has around them,
    as `show --json` prints it, and a node of a pool do not get the default of this command line.
    """
    from aks_flex_node.api import documents

    document = read_mapping(file, "--file") if file else {}
    try:
        properties = documents.properties_of(document, of_pool=of_pool)
    except ValueError as error:
        raise _invalid_file(file, str(error), "--file") from None
    in_pool = options.get("pool", properties.get(POOL_NAME))
    return properties if in_pool or "properties" in document else MANAGED | properties


def read_mapping(file: Path, option: str) -> Document:
    """Reads a JSON or YAML file that contains a mapping."""
    document = read_document(file, option)
    if not isinstance(document, dict):
        raise _invalid_file(file, "it is not a mapping", option)
    return document


def read_document(file: Path, option: str) -> object:
    """Reads a JSON or YAML file."""
    from aks_flex_node.api import documents

    try:
        return documents.parse(file.read_bytes())
    except OSError as error:
        raise _invalid_file(file, str(error.strerror), option) from None
    except ValueError as error:
        raise _invalid_file(file, str(error), option) from None


def _invalid_file(file: Path | None, why: str, option: str) -> ConfigError:
    return ConfigError("node-file-invalid", f"{file} is invalid: {why}.", f"Check `{option}`.")
