"""Converts command line options, and the files they name, to node options and properties."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.cli.core.azclierror import FileOperationError, InvalidArgumentValueError

from azext_aks_flex_node.secret_input import UNREADABLE, file_error, read_private
from azext_aks_flex_node.vendored import documents, node_changes
from azext_aks_flex_node.vendored.node_changes import (
    SERVICE_PRINCIPAL,
    NodeOptions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from azext_aks_flex_node.vendored.node_changes import SettingOption

Document = dict[str, Any]


def given_options(args: Document, options: Iterable[SettingOption]) -> NodeOptions:
    """Returns the options of a table on the command line, with the contents of the files that they name."""
    given = {each: args[each.name] for each in options if args.get(each.name) not in (None, [], ())}
    return NodeOptions({option.name: _content(option, value) for option, value in given.items()})


def _content(option: SettingOption, value: Any) -> Any:
    match option.kind:
        case "secret":
            return read_private(value, option.flags[0])
        case "file":
            return read_document(value, option.flags[0])
    return value


def node_options_of(args: Document) -> NodeOptions:
    return given_options(args, node_changes.setting_options())


def properties_from_file(args: Document, *, of_pool: bool = False) -> Document | None:
    """Reads the properties of --file, with or without the ARM envelope."""
    if "file" not in args:
        return None
    try:
        return documents.properties_of(read_document(args["file"], "--file"), of_pool=of_pool)
    except ValueError as error:
        raise InvalidArgumentValueError(f"--file: {error}.", "Check --file.") from None


def read_document(file: str, option: str) -> Document:
    """Reads a JSON or YAML file with a mapping."""
    found = read_value(file, option)
    if not isinstance(found, dict):
        raise InvalidArgumentValueError(f"{option}: {file} is not a mapping.", f"Check {option}.")
    return found


def read_value(file: str, option: str) -> Any:
    """Reads a JSON or YAML file."""
    try:
        content = Path(file).expanduser().read_bytes()
    except UNREADABLE as error:
        raise file_error(file, option, error) from None
    try:
        return documents.parse(content)
    except ValueError as error:
        raise FileOperationError(f"{option}: {file} is invalid: {error}.", f"Check {option}.") from None


def is_secret_missing(before: Document, after: Document) -> bool:
    """Whether the properties have a service principal whose secret is neither set nor stored."""
    if node_changes.auth_method_of(after) != SERVICE_PRINCIPAL:
        return False
    had, has = ((each.get("azureAuth", {}).get(SERVICE_PRINCIPAL) or {}) for each in (before, after))
    known = bool(had) and had.get("clientId") == has.get("clientId") and not had.get("certificateOnMachine")
    return "clientId" in has and not known and not has.get("clientSecret") and not has.get("certificateOnMachine")
