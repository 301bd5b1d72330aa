"""The options of `node` and `pool` commands that set a setting: those of the table of settings."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.api import node_changes
from aks_flex_node.api.node_changes import NodeChangeError, NodeOptions, UnusedOptionsError, setting_options
from aks_flex_node.errors import CommandUsageError
from aks_flex_rp.cli.command_context import with_options
from aks_flex_rp.cli.property_files import read_mapping

if TYPE_CHECKING:
    from aks_flex_node.api.node_changes import SettingOption

    Document = dict[str, Any]

TYPES: dict[str, Any] = {"text": str, "secret": str, "number": int, "flag": bool}  # others can be repeated
METAVARS = {
    "text": "TEXT",
    "secret": "FILE",
    "number": "N",
    "flag": None,
    "list": "NAME",
    "map": "KEY=VALUE",
    "section": "KEY=VALUE",
    "taints": "KEY=VALUE:EFFECT",
}
KUBELET_CONFIG = inspect.Parameter(
    "kubelet_config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="All settings of the kubelet as JSON or YAML."),
    ],
)
# The errors of options, by option.
ERRORS = {
    "labels": "label-invalid",
    "taints": "taint-invalid",
    "kubelet-settings": "kubelet-setting-invalid",
    "window-days": "weekday-invalid",
    "auth-method": "auth-method-invalid",
}


def _parameter(option: SettingOption) -> inspect.Parameter:
    kind: Any = TYPES.get(option.kind, list[str])
    off = option.off or f"--no-{option.flags[0].removeprefix('--')}"
    flags = [f"{option.flags[0]}/{off}", *option.flags[1:]] if kind is bool else [*option.flags]
    choices = f" One of: {', '.join(option.choices)}." if option.choices else ""
    text = option.help + choices + (" Repeatable." if option.kind not in TYPES else "")
    annotation: Any = Annotated[kind | None, typer.Option(*flags, metavar=METAVARS[option.kind], help=text)]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


class _Reader:
    """Collects the given options of a command."""

    def __init__(self, *, of_pool: bool) -> None:
        options = [each for each in setting_options() if not (of_pool and each.per_node)]
        self.__signature__ = inspect.Signature([*map(_parameter, options), KUBELET_CONFIG])

    def __call__(self, kubelet_config: Path | None, **given: Any) -> NodeOptions:
        kubelet = read_mapping(kubelet_config, "--kubelet-config") if kubelet_config else None
        options = {**given, "kubelet_config": kubelet}
        return NodeOptions({name: value for name, value in options.items() if value not in (None, [])})


# Decorators that add the options to a command, which receives them as one argument: `settings`.
with_node_settings = partial(with_options, _Reader(of_pool=False), "settings")
with_template_settings = partial(with_options, _Reader(of_pool=True), "settings")


def apply_options(properties: Document, options: NodeOptions) -> Document:
    """Applies options to properties. Raises CommandUsageError for invalid options."""
    try:
        return node_changes.apply_options(properties, options)
    except UnusedOptionsError as error:
        text = f"A node whose method is {error.value} {error.reason}."
        raise CommandUsageError("auth-options-mismatch", text, error.hint) from None
    except NodeChangeError as error:
        text = f"{error.value!r} {error.reason}."
        raise CommandUsageError(ERRORS[error.option], text, error.hint) from None
