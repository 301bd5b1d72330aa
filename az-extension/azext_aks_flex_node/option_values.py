"""Converts command line options, and the files they name, to node options and properties."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import yaml
from azure.cli.core.azclierror import ArgumentUsageError, FileOperationError, InvalidArgumentValueError

from azext_aks_flex_node.secret_input import UNREADABLE, file_error, read_private
from azext_aks_flex_node.vendored import node_changes
from azext_aks_flex_node.vendored.node_changes import (
    BOOTSTRAP_TOKEN,
    NO_IDENTITY,
    SERVICE_PRINCIPAL,
    NodeChangeError,
    NodeOptions,
    UnusedOptionsError,
)
from azext_aks_flex_node.vendored.rollout_options import parse_gates

Document = dict[str, Any]


def node_options_of(args: Document) -> NodeOptions:
    """Returns the options of settings on the command line, with the contents of the files that they name."""
    names = [option.name for option in node_changes.setting_options()]
    options = NodeOptions({name: args[name] for name in names if args.get(name) not in (None, [], ())})
    if file := options.get("client_secret"):
        options["client_secret"] = read_private(file, "--client-secret-file")
    if "kubelet_config" in args:
        options["kubelet_config"] = read_document(args["kubelet_config"], "--kubelet-config")
    return options


def apply_options(properties: Document, options: NodeOptions) -> Document:
    """Applies options to properties. Raises az errors for invalid options."""
    try:
        return node_changes.apply_options(properties, options)
    except UnusedOptionsError as error:
        method = BOOTSTRAP_TOKEN if error.value == NO_IDENTITY else error.value
        raise ArgumentUsageError(f"A node whose method is {method} {error.reason}.", error.hint) from None
    except NodeChangeError as error:
        text = f"--{error.option}: {error.value!r} {error.reason}."
        raise InvalidArgumentValueError(text, error.hint) from None


def properties_from_file(args: Document) -> Document | None:
    """Reads the properties of --file, with or without the ARM envelope."""
    if "file" not in args:
        return None
    found = read_document(args["file"], "--file")
    properties = node_changes.writable_properties(found) if isinstance(found.get("properties"), dict) else found
    malformed = node_changes.malformed_path(properties)
    if malformed:
        raise InvalidArgumentValueError(f"--file: {malformed} has the wrong type.", "Check --file.")
    return properties


def read_gates(file: str) -> list[Document]:
    """Reads the gates of a roll-out. Raises RolloutOptionError if the file has no list of them."""
    return parse_gates(_json_value(_read_yaml(file, "--gates-file")), file)


def read_document(file: str, option: str) -> Document:
    """Reads a JSON or YAML file with a mapping."""
    found = _read_yaml(file, option)
    if not isinstance(found, dict):
        raise InvalidArgumentValueError(f"{option}: {file} is not a mapping.", f"Check {option}.")
    return dict(_json_value(found))


def _read_yaml(file: str, option: str) -> Any:
    try:
        return yaml.safe_load(Path(file).expanduser().read_bytes())
    except yaml.YAMLError:
        raise FileOperationError(f"{option}: {file} is neither JSON nor YAML.", f"Check {option}.") from None
    except UNREADABLE as error:
        raise file_error(file, option, error) from None


def _json_value(value: Any) -> Any:
    """Converts YAML values to JSON: dates to strings, and drops null values, which the service treats as absent."""
    if isinstance(value, dict):
        return {str(name): _json_value(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    return value.isoformat() if isinstance(value, date) else value


def is_secret_missing(before: Document, after: Document) -> bool:
    """Whether the properties have a service principal whose secret is neither set nor stored."""
    if node_changes.auth_method_of(after) != SERVICE_PRINCIPAL:
        return False
    had, has = ((each.get("azureAuth", {}).get(SERVICE_PRINCIPAL) or {}) for each in (before, after))
    known = bool(had) and had.get("clientId") == has.get("clientId") and not had.get("certificateOnMachine")
    return not known and not has.get("clientSecret") and not has.get("certificateOnMachine")
