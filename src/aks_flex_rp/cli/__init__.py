"""The command `aks-flex-rp`: parses arguments, prints results, maps errors to exit codes."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from aks_flex_node import __version__, error_catalog
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_rp.cli import (
    audit_commands,
    cluster_commands,
    data_commands,
    key_commands,
    node_commands,
    notification_commands,
    output,
    serve_commands,
)


class ErrorHandlingGroup(TyperGroup):
    """Where every error comes out: told to the person, and turned into its exit code."""

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
    """What a service keeps is for its own user alone."""
    return ConfigError(
        "permission-denied",
        f"{error.filename or 'A file'} is not for the user that runs this command.",
        "Run it as the user of the service: `sudo -u aks-flex-rp aks-flex-rp …`, or as root.",
    )


app = typer.Typer(
    name="aks-flex-rp",
    cls=ErrorHandlingGroup,
    help="The resource provider of flex nodes: makes their configuration, lets them join once, keeps them in sight.",
    epilog="Start with `aks-flex-rp serve`; it says what to do next. "
    "Exit codes: 0 done, 1 failed, 2 wrong words, 3 configuration, 5 the service or Azure, 6 the cluster, 7 busy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve_commands.attach(app)
app.add_typer(cluster_commands.app, name="cluster")
app.add_typer(node_commands.app, name="node")
audit_commands.attach(app)
data_commands.attach(app)
app.add_typer(key_commands.app, name="keys")
app.add_typer(notification_commands.app, name="notifications")


@app.command()
def version(json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Say which version this is."""
    output.print_result(__version__, {"version": __version__}, json)


@app.command()
def explain(
    name: Annotated[str | None, typer.Argument(help="An error name, a condition, a reason or a state.")] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Explain an error or a condition: cause, checks, remedy.

    Without a name, lists all names.
    """
    text, document = error_catalog.explain(name, "aks_flex_rp", "aks_flex_node")
    output.print_result(text, document, json)


def main() -> None:
    app()
