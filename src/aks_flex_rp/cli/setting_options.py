"""The options of commands that are those of a table: of settings, for `node` and `pool`, or of roll-outs."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.api.node_changes import LISTS, NodeOptions, setting_options
from aks_flex_node.api.rollout_options import rollout_options
from aks_flex_rp.cli.command_context import with_options
from aks_flex_rp.cli.property_files import read_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.api.node_changes import SettingOption

    Document = dict[str, Any]

TYPES: dict[str, Any] = {"number": int, "flag": bool, "switch": bool, "file": Path, "gates": Path}
METAVARS = {
    "text": "TEXT",
    "secret": "FILE",
    "number": "N",
    "flag": None,
    "switch": None,
    "file": "FILE",
    "gates": "FILE",
    "share": "SHARE",
    "waves": "SHARE",
    "duration": "TIME",
    "domain": "LABEL[=N]",
    "list": "NAME",
    "map": "KEY=VALUE",
    "section": "KEY=VALUE",
    "paths": "PATH",
    "taints": "KEY=VALUE:EFFECT",
}


def _parameter(option: SettingOption) -> inspect.Parameter:
    kind: Any = list[str] if option.kind in LISTS else TYPES.get(option.kind, str)
    off = option.off or f"--no-{option.flags[0].removeprefix('--')}"
    flags = [f"{option.flags[0]}/{off}", *option.flags[1:]] if option.kind == "flag" else [*option.flags]
    choices = f" One of: {', '.join(option.choices)}." if option.choices and option.kind not in LISTS else ""
    text = option.help + choices + (" Repeatable." if option.kind in LISTS else "")
    annotation: Any = Annotated[
        kind | None, typer.Option(*flags, metavar=METAVARS[option.kind], readable=False, help=text)
    ]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


class _Reader:
    """Collects the given options of a command, with the content of --kubelet-config."""

    def __init__(self, options: Iterable[SettingOption]) -> None:
        self._options = {each.name: each for each in options}
        self.__signature__ = inspect.Signature([_parameter(each) for each in self._options.values()])

    def __call__(self, **given: Any) -> NodeOptions:
        found = NodeOptions({name: value for name, value in given.items() if value not in (None, [])})
        for name, value in found.items():
            if self._options[name].kind == "file":
                found[name] = read_mapping(value, self._options[name].flags[0])
        return found


# Decorators that add the options to a command, which receives them as one argument: `settings`.
with_node_settings = partial(with_options, _Reader(setting_options()), "settings")
with_template_settings = partial(
    with_options, _Reader(each for each in setting_options() if not each.per_node), "settings"
)
with_rollout_options = partial(with_options, _Reader(rollout_options()), "settings")
