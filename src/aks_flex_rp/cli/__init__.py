"""The command `aks-flex-rp`: parses arguments, prints results, maps errors to exit codes."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from aks_flex_node import __version__
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_node.version_option import VersionOption
from aks_flex_rp.cli import audit_commands, data_commands, output, serve_commands

# name of a group: its module, and its help, which is shown without importing the module
GROUPS = {
    "cluster": ("cluster_commands", "Manage the clusters of the service."),
    "node": ("node_commands", "Manage the flex nodes of a cluster."),
    "pool": ("pool_commands", "Manage pools: one description for many nodes."),
    "rollout": ("rollout_commands", "Roll out revisions of pools in waves."),
    "keys": ("key_commands", "Manage encryption keys. To rotate: add, restart, rotate, prune."),
    "records": ("record_commands", "Review records that others changed in the database."),
    "notifications": ("notification_commands", "List and test webhooks for node events."),
}


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


class LazyGroup(TyperGroup):
    """A group of commands whose module is imported when one of its commands, or their list, is needed."""

    def __init__(self, *, name: str, **options: Any) -> None:
        self._loaded: dict[str, Any] = {}
        super().__init__(name=name, **options)

    @property  # type: ignore[override] # an attribute of the base class, set by its constructor
    def commands(self) -> dict[str, Any]:
        if not self._loaded:
            group = import_module(f"{__name__}.{GROUPS[str(self.name)][0]}").app
            group.rich_markup_mode = self.rich_markup_mode
            self._loaded = dict(typer.main.get_group(group).commands)
        return self._loaded

    @commands.setter
    def commands(self, commands: dict[str, Any]) -> None:
        pass


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


for command in (
    serve_commands.init,
    serve_commands.serve,
    audit_commands.audit,
    data_commands.backup,
    data_commands.restore,
    data_commands.migrate,
):
    app.command()(command)
for group, (_, description) in GROUPS.items():
    app.add_typer(typer.Typer(cls=LazyGroup, help=description, no_args_is_help=True), name=group)


@app.command()
def version(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the version."""
    output.print_result(__version__, {"version": __version__}, json)


@app.command("versions")
def show_versions(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the tested versions of Kubernetes and its components.

    Other versions are allowed, with a warning. A node cannot be newer than its cluster.
    """
    from aks_flex_rp.resource import versions

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
    from aks_flex_node import error_catalog

    text, document = error_catalog.explain(name, "aks_flex_rp", "aks_flex_node")
    output.print_result(output.with_command_name(text), document, json)


def main() -> None:
    app(prog_name=output.command_name())  # also where it runs as `python -m aks_flex_rp`
