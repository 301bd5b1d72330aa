"""`agent`, `bootstrap`, `plan`, `verify`, `unbootstrap`: the commands that join this machine to the cluster and
take it out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.cli.options import (
    Config,
    ConfigUrl,
    ConfigUrlFile,
    DryRun,
    From,
    HttpToLoopback,
    Json,
    Only,
    Sets,
    Skip,
    Yes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.context import ConfigSelection, DaemonMode
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import ComponentPlan, Engine
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host


def agent(
    config: Config = None,
    config_url: ConfigUrl = None,
    config_url_file: ConfigUrlFile = None,
    http_to_loopback: HttpToLoopback = False,
    sets: Sets = None,
    skip: Skip = None,
    bootstrap_only: Annotated[bool, typer.Option("--bootstrap-only", help="Join, then end.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in this process; no service is installed.")
    ] = False,
) -> None:
    """Join the cluster, then stay and follow the configuration where it asks for that.

    Example: aks-flex-node agent --config /etc/aks-flex-node/config.json

    With a URL from the resource provider nothing else is needed. It is fetched once and kept: later runs do without.
    AKS_FLEX_NODE_CONFIG_URL holds it out of sight of other users.

    Example: aks-flex-node agent --config-url 'https://rp.example:8443/configs/...#ca=sha256:...'
    """
    from aks_flex_node.agent import context

    stays = (
        context.DaemonMode.NONE
        if bootstrap_only
        else context.DaemonMode.FOREGROUND
        if foreground
        else context.DaemonMode.SERVICE
    )
    given = context.config_selection(config, sets, config_url, config_url_file, plain=http_to_loopback)
    settings = _join(given, skip or [], stays=stays)
    if settings.continuous_monitoring and stays is context.DaemonMode.FOREGROUND:
        from aks_flex_node.agent.daemon.controller import run_daemon

        run_daemon()


def bootstrap(
    config: Config = None,
    config_url: ConfigUrl = None,
    config_url_file: ConfigUrlFile = None,
    http_to_loopback: HttpToLoopback = False,
    sets: Sets = None,
    skip: Skip = None,
    only: Only = None,
    start: From = "",
    steps: Annotated[bool, typer.Option("--list", help="Show the steps, and where each lives.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make this machine a node: install, configure, start, and prove that it is Ready.

    Safe to run again: it does what is missing, restarts only what changed, and nothing when all is well.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.components import catalog

    if steps and json:
        return terminal.print_json([vars(step) for step in catalog.BOOTSTRAP_STEPS])
    if steps:
        rows = [(str(step.number), step.title, step.home, step.what) for step in catalog.BOOTSTRAP_STEPS]
        return terminal.print_table(("STEP", "TITLE", "COMPONENT", "WHAT"), rows)
    chosen = catalog.select_components(only or (), start)
    given = context.config_selection(config, sets, config_url, config_url_file, plain=http_to_loopback)
    if dry_run:
        context.require_root()
        _show_plan(context.make_engine(context.load_or_fetch_config(given)[0].config), chosen, json=json)
    else:
        _join(given, skip or [], chosen)
    return None


def plan(config: Config = None, sets: Sets = None, only: Only = None, start: From = "", json: Json = False) -> None:
    """Show what `bootstrap` would change on this machine, as a diff. Changes nothing."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.components import catalog

    chosen = catalog.select_components(only or (), start)
    context.require_root()
    _show_plan(
        context.make_engine(context.load_config(context.ConfigSelection(config, tuple(sets or ()))).config),
        chosen,
        json=json,
    )


def verify(config: Config = None, sets: Sets = None, json: Json = False) -> None:
    """Compare this machine with its configuration: exit 0 when nothing differs, 1 when something does."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.self_update import compared_components
    from aks_flex_node.agent.text import pluralize

    context.require_root(context.READ_STATUS)
    engine = context.make_engine(context.load_config(context.ConfigSelection(config, tuple(sets or ()))).config)
    found = plans_as_data(engine.plan(component) for component in compared_components(engine))
    if json:
        terminal.print_json({"clean": not found, "differences": found})
    else:
        for difference in found:
            terminal.print_line(f"{difference['component']:<12} {difference['what']}")
        repair = f"{pluralize(len(found), 'difference')}; `aks-flex-node bootstrap` repairs."
        terminal.print_message(repair if found else "Nothing differs.")
    raise typer.Exit(1 if found else 0)


def unbootstrap(
    config: Config = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    keep_artifacts: Annotated[
        bool, typer.Option("--keep-artifacts", help="Keep what was downloaded, for the next join.")
    ] = False,
    drain: Annotated[
        float, typer.Option("--drain-timeout", metavar="SECONDS", help="How long pods may take to go.")
    ] = 60.0,
) -> None:
    """Take this machine out of the cluster and leave it as it was before: nothing of the node stays.

    Works from any half-done state, twice, and without a network.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.bootstrap.unbootstrap import plan_unbootstrap, unbootstrap_node
    from aks_flex_node.agent.cli.terminal_progress import TerminalProgress

    context.require_root()
    settings, _ = context.load_config_or_default(context.ConfigSelection(config))
    if dry_run:
        for line in plan_unbootstrap(settings) or ["Nothing to do."]:
            terminal.print_line(line)
        return
    if not yes and not _agreed():
        terminal.print_message("Nothing was done.")
        raise typer.Exit(1)
    unbootstrap_node(settings, TerminalProgress(), keep_artifacts=keep_artifacts, seconds=drain)


def _agreed() -> bool:
    import sys

    if not sys.stdin.isatty():
        from aks_flex_node.errors import CommandUsageError

        raise CommandUsageError(
            "confirmation-required", "Taking a node apart needs a yes.", "There is no terminal to ask on: add --yes."
        )
    return typer.confirm("Take this machine out of its cluster, and remove all that made it a node?")


def _show_plan(engine: Engine, components: Sequence[Component], *, json: bool) -> None:
    plans = [engine.plan(component) for component in components]
    if json:
        terminal.print_json(plans_as_data(plans))
    elif not print_plans(plans, engine.host):
        terminal.print_line("Nothing to do.")


def _join(
    selection: ConfigSelection,
    skip: list[str],
    components: Sequence[Component] | None = None,
    stays: DaemonMode | None = None,
) -> NodeConfig:
    from aks_flex_node.agent.bootstrap.workflow import bootstrap_node
    from aks_flex_node.agent.cli.terminal_progress import TerminalProgress

    return bootstrap_node(selection, TerminalProgress(), skip=skip, components=components, stays=stays)


def register(app: typer.Typer) -> None:
    app.command()(agent)
    app.command()(bootstrap)
    app.command("bootstrap-node", hidden=True)(bootstrap)
    app.command()(plan)
    app.command()(verify)
    app.command()(unbootstrap)
    app.command("reset", help="The same as unbootstrap.")(unbootstrap)


def print_plans(plans: Iterable[ComponentPlan], host: Host) -> int:
    """Print all plans; how many actions there are."""
    from aks_flex_node.agent.reconcile.engine import distinct_actions

    count, shown = 0, ""
    for plan, action in distinct_actions(plans):
        if plan.component != shown:
            terminal.print_line(f"{plan.component}:")
        terminal.print_line(f"  {action.description}")
        for line in file_diff(action, host):
            terminal.print_line(f"      {line}")
        count, shown = count + 1, plan.component
    return count


def file_diff(action: Action, host: Host) -> list[str]:
    """How a file would change; of a secret one, only that it would."""
    import difflib

    from aks_flex_node.host.actions import WriteFile

    if not isinstance(action, WriteFile):
        return []
    if action.secret:
        return ["(its content is secret)"]
    before = (host.read(action.path) or b"").decode(errors="replace").splitlines()
    after = action.content.decode(errors="replace").splitlines()
    lines = difflib.unified_diff(before, after, lineterm="", n=1)
    return [line for line in lines if not line.startswith(("---", "+++"))]


def plans_as_data(plans: Iterable[ComponentPlan]) -> list[dict[str, Any]]:
    from aks_flex_node.agent.reconcile.engine import distinct_actions

    return [
        {"component": plan.component, "action": type(action).__name__, "what": action.description}
        for plan, action in distinct_actions(plans)
    ]
