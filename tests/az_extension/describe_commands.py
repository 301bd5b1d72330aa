"""Runs in az's Python: prints the loaded commands of `az aks flex-node` as JSON."""

from __future__ import annotations

import json
import sys

sys.path.insert(0, sys.argv[1])

from azure.cli.core import get_default_cli

OWN = "aks flex-node"
cli = get_default_cli()
invoker = cli.invocation_cls(cli_ctx=cli, parser_cls=cli.parser_cls, commands_loader_cls=cli.commands_loader_cls)
cli.invocation = invoker
invoker.data["command_string"] = OWN
loader = invoker.commands_loader
loader.load_command_table([*OWN.split(), "create"])
shown = {}
for name, command in loader.command_table.items():
    if not name.startswith(f"{OWN} "):
        continue
    loader.command_name = name
    loader.load_arguments(name)
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
                "required": bool(argument.type.settings.get("required")),
                "completer": bool(argument.completer),
                "group": argument.arg_group,
            }
            for dest, argument in command.arguments.items()
            if argument.options_list
        },
    }
print(json.dumps(shown))
