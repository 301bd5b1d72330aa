"""Runs in az's Python: prints the loaded commands of `az aks flex-node` as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])

from azure.cli.core import get_default_cli
from knack.events import EVENT_INVOKER_POST_CMD_TBL_CREATE

OWN = "aks flex-node"
cli = get_default_cli()
invoker = cli.invocation_cls(cli_ctx=cli, parser_cls=cli.parser_cls, commands_loader_cls=cli.commands_loader_cls)
cli.invocation = invoker
invoker.data["command_string"] = OWN
loader = invoker.commands_loader
own: dict[str, Any] = {}
loaders: dict[str, Any] = {}
for group in (
    (),
    ("pool",),
    ("pool", "enrolment"),
    ("rollout",),
):  # az loads only the commands of the group on the command line
    loader.load_command_table([*OWN.split(), *group, "create"])
    own |= {name: command for name, command in loader.command_table.items() if name.startswith(f"{OWN} ")}
    loaders |= loader.cmd_to_loader_map
loader.command_table.update(own)
loader.cmd_to_loader_map.update(loaders)
required, shared = {}, {"ids"}  # az adds --ids and options of its own to every command
for name, command in own.items():
    loader.command_name = name
    loader.load_arguments(name)
    shared |= command.arguments.keys()
    required[name] = {dest for dest, each in command.arguments.items() if each.type.settings.get("required")}
loader.command_table.clear()
loader.command_table.update(own)
cli.raise_event(EVENT_INVOKER_POST_CMD_TBL_CREATE, commands_loader=loader)  # adds --ids, which replaces names
shown = {}
for name, command in own.items():
    shown[name] = {
        "help": command.help,
        "source": command.command_source.extension_name,
        "confirmation": bool(command.confirmation),
        "no_wait": command.supports_no_wait,
        "arguments": {
            dest: {
                "options": argument.options_list,
                "help": argument.type.settings.get("help"),
                "default": str(argument.type.settings.get("default")),
                "choices": [str(each) for each in argument.type.settings.get("choices") or ()],
                "required": dest in required[name],
                "completer": bool(argument.completer),
                "group": argument.arg_group,
            }
            for dest, argument in command.arguments.items()
            if argument.options_list and dest in shared
        },
    }
print(json.dumps(shown))
