"""`config validate|show|explain|schema|init`: validates, shows, explains and creates configuration files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.cli.options import Config, Json, Sets

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Validate, show, explain and create configuration files."
)


@app.command()
def validate(config: Config = None, sets: Sets = None, json: Json = False) -> None:
    """Validate the configuration and the policy of this machine, and list all problems. Changes nothing.

    Lists the settings that a join would read from Azure, and the requests that return them.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.cluster import discovery
    from aks_flex_node.agent.config.problems import InvalidConfigError
    from aks_flex_node.agent.policy import read_policy, require_usable
    from aks_flex_node.errors import ConfigError, MachineError
    from aks_flex_node.host.real import RealHost

    try:
        loaded = context.load_config(context.ConfigSelection(config, sets))
        discovery.check_join(loaded.config)
        policy = read_policy(RealHost())
        require_usable(policy)
    except (ConfigError, MachineError) as error:
        if json:
            problems = list(error.problems) if isinstance(error, InvalidConfigError) else []
            listed = [_problem(one) for one in problems] or [{"reason": error.message}]
            terminal.print_json({"valid": False, "error": error.name, "problems": listed})
            raise typer.Exit(error.exit_code) from error
        raise
    from_azure = discovery.describe_discovery(loaded.config)
    warnings = [*loaded.warnings, *discovery.dns_warnings(loaded.config)]
    forbidden = policy.violations(loaded.config)
    warnings += [f"The policy of this machine forbids a provider to set {each}." for each in forbidden]
    described = policy.describe() if policy.exists else None
    if json:
        rows = [{"path": path, "request": request} for path, request in from_azure.items()]
        terminal.print_json({"valid": True, "warnings": warnings, "readFromAzure": rows, "policy": described})
        return
    for warning in warnings:
        terminal.print_message(terminal.warning_text(warning))
    names = " with ".join(str(file) for file in loaded.files)
    terminal.print_line(f"{names or 'The configuration'} is valid.")
    if described:
        terminal.print_line(f"The policy of this machine {described}.")
    if from_azure:
        terminal.print_line("A join reads these settings from Azure:")
        terminal.print_table(("SETTING", "REQUEST"), list(from_azure.items()))


def _problem(one: object) -> dict[str, str]:
    return {key: str(getattr(one, key)) for key in ("path", "reason", "value", "origin") if getattr(one, key, None)}


@app.command("show")
def show_(
    config: Config = None,
    sets: Sets = None,
    given: Annotated[bool, typer.Option("--given", help="Omit default values.")] = False,
    json: Json = False,
) -> None:
    """Show every setting and its source. Secrets are masked."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.config.render import setting_rows

    found = setting_rows(context.load_config(context.ConfigSelection(config, sets)), given_only=given)
    if json:
        terminal.print_json([{"key": row.key, "value": row.value, "origin": row.origin} for row in found])
    else:
        terminal.print_table(("KEY", "VALUE", "FROM"), [(row.key, _text(row.value), row.origin) for row in found])


def _text(value: object) -> str:
    import json

    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


@app.command()
def explain(
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="A setting or a section.")] = None,
    json: Json = False,
) -> None:
    """Explain a setting: type, default, who may set it, what it reaches, and what a change of it disturbs.

    Without a key, or with that of a section, lists the settings.

    Example: aks-flex-node config explain node.kubelet.auth
    """
    from aks_flex_node.agent.config.render import describe_setting
    from aks_flex_node.errors import CommandUsageError
    from aks_flex_node.settings.table import ConfigKey, all_entries, find_entry, keys
    from aks_flex_node.settings.value_checks import closest_match

    entry, rest = find_entry(key or "")
    if entry is None or rest:
        near = closest_match(key or "", [each.path for each in all_entries()])
        hint = "List all settings with `aks-flex-node config explain`."
        raise CommandUsageError(
            "setting-unknown", f"{key} is not a setting.", f"Did you mean {near}? {hint}" if near else hint
        )
    rows = [describe_setting(each) for each in ([entry] if isinstance(entry, ConfigKey) else keys(entry))]
    if json:
        terminal.print_json(rows)
    elif isinstance(entry, ConfigKey):
        for name, text in rows[0].items():
            nothing = "as described" if name == "default" and "Default: " in rows[0]["description"] else "none"
            terminal.print_line(f"{name:<12} {text or nothing}")
    else:
        names = ("key", "setBy", "reaches", "disturbs")
        table = [tuple(row[name].partition(":")[0] for name in names) for row in rows]
        terminal.print_table(("KEY", "SET BY", "REACHES", "DISTURBS"), table)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors and pipelines."""
    from aks_flex_node.agent.config.json_schema import json_schema

    terminal.print_json(json_schema())


@app.command()
def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The file to create; prints it by default.")
    ] = None,
) -> None:
    """Create a commented configuration file to fill in."""
    import os

    from aks_flex_node.agent.config.render import config_template
    from aks_flex_node.errors import CommandUsageError

    if file is None:
        sys.stdout.write(config_template())
        return
    try:
        file.parent.mkdir(exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise CommandUsageError(
            "file-exists", f"{file} already exists.", "Choose another path, or move the existing file."
        ) from error
    except OSError as error:
        raise CommandUsageError(
            "file-not-writable", f"{file} cannot be written: {error.strerror}.", "Choose another path."
        ) from error
    with os.fdopen(handle, "w") as out:
        out.write(config_template())
    terminal.print_message(f"Fill in {file}, then run `aks-flex-node config validate --config {file}`.")
