"""Converts command line options, and the files they name, to node options and properties."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import yaml
from azure.cli.core.azclierror import ArgumentUsageError, FileOperationError, InvalidArgumentValueError

from azext_aks_flex_node.arguments import COMPONENTS
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
    """Returns the node options of the command line."""
    file, method = args.get("client_secret_file"), args.get("kubernetes_auth")
    versions = {name: args.get(f"{name}_version") for name in COMPONENTS}
    return NodeOptions(
        auth_method=args.get("auth_method"),
        client_id=args.get("client_id"),
        client_secret=read_private(file, "--client-secret-file") if file else None,
        client_tenant=args.get("client_tenant"),
        principal_id=args.get("principal_id"),
        certificate_on_machine=args.get("certificate_on_machine"),
        kubernetes_auth=None if method is None else {"useAzureAuth": method != BOOTSTRAP_TOKEN, "method": method},
        monitor=args.get("continuous_monitoring"),
        versions={name: version for name, version in versions.items() if version is not None},
        max_pods=args.get("max_pods"),
        kubelet=read_document(args["kubelet_config"], "--kubelet-config") if "kubelet_config" in args else None,
        kubelet_settings=args.get("kubelet_settings", ()),
        drift_policy=args.get("drift_policy"),
        pause=args.get("pause"),
        window_start=args.get("window_start"),
        window_days=args.get("window_days", ()),
        window_minutes=args.get("window_minutes"),
        window_time_zone=args.get("window_time_zone"),
        drain=args.get("drain"),
        drain_timeout=args.get("drain_timeout"),
        health_timeout=args.get("health_timeout"),
        vpn=args.get("vpn"),
        server_url=args.get("server_url"),
        labels=args.get("labels", ()),
        taints=args.get("taints", ()),
        pool=args.get("pool"),
    )


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
