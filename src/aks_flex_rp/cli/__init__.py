"""The command `aks-flex-rp`: parses arguments, prints results, maps errors to exit codes."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from aks_flex_node import __version__, error_catalog
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_node.version_option import VersionOption
from aks_flex_rp.cli import (
    audit_commands,
    cluster_commands,
    data_commands,
    key_commands,
    node_commands,
    notification_commands,
    output,
    pool_commands,
    record_commands,
    rollout_commands,
    serve_commands,
)
from aks_flex_rp.resource import versions


class ErrorHandlingGroup(TyperGroup):
    """Prints the errors of all commands and maps them to exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FlexError as error:
            failure = error
        except PermissionError as error:
            failure = _not_permitted(error)
        output.print_error(failure)
        raise typer.Exit(failure.exit_code) from failure


def _not_permitted(error: PermissionError) -> FlexError:
    """The files of a service are readable only for its user."""
    return ConfigError(
        "permission-denied",
        f"Permission denied: {error.filename or 'a file of the service'}.",
        "Run the command as the user of the service (`sudo -u aks-flex-rp aks-flex-rp … --state DIR`) or as root.",
    )


app = typer.Typer(
    name="aks-flex-rp",
    cls=ErrorHandlingGroup,
    help="Resource provider of flex nodes: configuration, join tokens, and status of nodes.",
    epilog="To start, run `aks-flex-rp serve`. It prints the next steps. "
    "Exit codes: 0 success, 1 failed, 2 wrong command line, 3 wrong configuration, 4 unsuitable host, 5 service or "
    "Azure failed, 6 cluster failed, 7 locked, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help does not cut option names
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(version: VersionOption = False) -> None:
    """Resource provider of flex nodes: configuration, join tokens, and status of nodes."""


serve_commands.attach(app)
app.add_typer(cluster_commands.app, name="cluster")
app.add_typer(node_commands.app, name="node")
app.add_typer(pool_commands.app, name="pool")
app.add_typer(rollout_commands.app, name="rollout")
audit_commands.attach(app)
data_commands.attach(app)
app.add_typer(key_commands.app, name="keys")
app.add_typer(record_commands.app, name="records")
app.add_typer(notification_commands.app, name="notifications")


@app.command()
def version(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the version."""
    output.print_result(__version__, {"version": __version__}, json)


@app.command("versions")
def show_versions(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the tested versions of Kubernetes and its components.

    Other versions are allowed, with a warning. A node cannot be newer than its cluster.
    """
    rows = versions.tested_table()
    text = output.format_table([tuple(row.values()) for row in rows], [name.upper() for name in rows[0]])
    also = ", ".join(f"{versions.TITLES[name]} {', '.join(older)}" for name, older in versions.ALSO_TESTED.items())
    document = {
        "tested": rows,
        "alsoTested": {name: list(older) for name, older in versions.ALSO_TESTED.items()},
        "maxMinorVersionsBehindCluster": versions.MAX_KUBELET_SKEW,
    }
    output.print_result(f"{text}\n\nUpgrades are tested from {also}.", document, json)


@app.command()
def explain(
    name: Annotated[str | None, typer.Argument(help="An error name, a condition, a reason or a state.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain an error or a condition: cause, checks, remedy.

    Without a name, lists all names.
    """
    text, document = error_catalog.explain(name, "aks_flex_rp", "aks_flex_node")
    output.print_result(output.with_command_name(text), document, json)


def main() -> None:
    app(prog_name=output.command_name())  # also where it runs as `python -m aks_flex_rp`
