"""`agent`, `bootstrap`, `plan`, `verify`, `unbootstrap`: the commands that join this machine to the cluster and
remove it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.cli.device_prompt import offer_device_sign_in
from aks_flex_node.agent.cli.options import (
    AksPool,
    Config,
    ConfigUrl,
    ConfigUrlFile,
    DryRun,
    From,
    HttpToLoopback,
    Json,
    NoInput,
    Only,
    Sets,
    Skip,
    SkipPhase,
    Yes,
)
from aks_flex_node.host.host import Host, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aks_flex_node.agent.bootstrap.phases import ChosenPhases
    from aks_flex_node.agent.context import ConfigSelection, DaemonMode
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import ComponentPlan, Engine
    from aks_flex_node.host.actions import Action


def agent(
    config: Config = None,
    config_url: ConfigUrl = None,
    config_url_file: ConfigUrlFile = None,
    http_to_loopback: HttpToLoopback = False,
    aks_pool: AksPool = None,
    sets: Sets = None,
    skip: Skip = None,
    skip_phase: SkipPhase = None,
    bootstrap_only: Annotated[bool, typer.Option("--bootstrap-only", help="Join without the daemon.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run the daemon in this process instead of as a service.")
    ] = False,
    no_input: NoInput = False,
) -> None:
    """Join the cluster and start the daemon.

    The daemon repairs drift, renews the VPN certificate and keeps status and metrics. If the configuration enables
    continuous monitoring, it also applies the configuration of the node's resource.

    Example: aks-flex-node agent --config /etc/aks-flex-node/config.json

    A URL from the resource provider replaces the file. The configuration is fetched once and stored, so later runs do
    not need the URL. The URL is a secret: pass it in standard input, because sudo logs arguments.

    Example: echo 'https://rp.example:8443/configs/...#ca=sha256:...' | aks-flex-node agent --config-url-file -

    A flex node pool of AKS also replaces the file, or a file adds to it. The pool's settings are read from Azure, as
    the identity in the configuration or as the user of `az login`.

    Example: aks-flex-node agent --aks-pool /subscriptions/.../managedClusters/NAME/agentPools/POOL
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.bootstrap import phases

    daemon_mode = (
        context.DaemonMode.NONE
        if bootstrap_only
        else context.DaemonMode.FOREGROUND
        if foreground
        else context.DaemonMode.SERVICE
    )
    selection = context.config_selection(
        config, sets, config_url, config_url_file, plain=http_to_loopback, aks_pool=aks_pool
    )
    offer_device_sign_in(no_input=no_input)
    _join(selection, skip, phases.choose_phases(skip=skip_phase or ()), daemon_mode)
    if daemon_mode is context.DaemonMode.FOREGROUND:
        from aks_flex_node.agent.cli.internal_commands import run_daemon_command

        run_daemon_command()


def bootstrap(
    config: Config = None,
    config_url: ConfigUrl = None,
    config_url_file: ConfigUrlFile = None,
    http_to_loopback: HttpToLoopback = False,
    aks_pool: AksPool = None,
    sets: Sets = None,
    skip: Skip = None,
    skip_phase: SkipPhase = None,
    only: Only = None,
    start: From = "",
    listed: Annotated[bool, typer.Option("--list", help="List the phases of a join.")] = False,
    dry_run: DryRun = False,
    no_input: NoInput = False,
    json: Json = False,
) -> None:
    """Join this machine to the cluster as a worker node.

    Installs, configures and starts all components, and waits until the node is Ready. Safe to run again: applies only
    what differs and restarts only services whose inputs changed.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.bootstrap import phases

    if listed:
        rows = [(phase.name, phase.title, "yes" if phase.optional else "no") for phase in phases.JOIN_PHASES]
        if json:
            terminal.print_json(
                [{"name": name, "title": title, "optional": text == "yes"} for name, title, text in rows]
            )
        else:
            terminal.print_table(("PHASE", "TITLE", "OPTIONAL"), rows)
        return
    chosen = phases.choose_phases(only or (), start, skip_phase or ())
    selection = context.config_selection(
        config, sets, config_url, config_url_file, plain=http_to_loopback, aks_pool=aks_pool
    )
    if dry_run:
        from aks_flex_node.agent.bootstrap.sources.selection import select_source
        from aks_flex_node.agent.cli.terminal_progress import TerminalProgress
        from aks_flex_node.host.real import RealHost

        context.require_root()
        loaded = select_source(RealHost(), selection, TerminalProgress()).preview(TerminalProgress())
        _show_plan(context.make_engine(loaded.config), chosen.components, json=json)
    else:
        offer_device_sign_in(no_input=no_input)
        _join(selection, skip, chosen)


def plan(config: Config = None, sets: Sets = None, only: Only = None, start: From = "", json: Json = False) -> None:
    """Show what `bootstrap` would change, as a diff. Changes nothing."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.bootstrap.phases import choose_phases

    chosen = choose_phases(only or (), start)
    context.require_root()
    _show_plan(context.command_engine(config, sets), chosen.components, json=json)


def check_join(engine: Engine) -> None:
    """Raises InvalidConfigError if settings are missing that the join of this machine requires."""
    from aks_flex_node.agent.cluster import discovery, node_health
    from aks_flex_node.agent.reconcile import node_state

    host, config = engine.host, engine.config
    is_joined = node_state.load(host, config).phase is node_state.Phase.NODE_JOINED
    discovery.check_join(config, is_node=is_joined or node_health.has_kubelet_credential(host, config))


def missing_credential(engine: Engine) -> list[dict[str, str]]:
    """Returns the difference of a joined node without a readable credential, which its kubelet or daemon renews."""
    from aks_flex_node.agent.cluster.node_health import has_kubelet_credential
    from aks_flex_node.agent.config.resolved import kubelet_credential_file
    from aks_flex_node.agent.reconcile import node_state

    state = node_state.load(engine.host, engine.config)
    if state.phase is not node_state.Phase.NODE_JOINED or has_kubelet_credential(engine.host, engine.config):
        return []
    path = kubelet_credential_file(engine.config)
    return [{"component": "kubelet", "action": "", "what": f"{path} is missing or damaged"}]


def verify(config: Config = None, sets: Sets = None, json: Json = False) -> None:
    """Compare this machine with its configuration.

    Exits with 0 when nothing differs, with 1 when something differs, and with 4
    when this machine is not a node.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.drift.detection import blocked_services
    from aks_flex_node.agent.self_update import compared_components
    from aks_flex_node.agent.text import pluralize

    context.require_root()
    selection = context.ConfigSelection(config, sets)
    context.require_installation(context.load_config_or_default(selection)[0])
    engine = context.make_engine(context.load_config(selection).config)
    check_join(engine)
    plans = [engine.plan(component) for component in compared_components(engine)]
    blocked = [
        {"component": plan.component, "action": "", "what": why}
        for plan in plans
        for _, why in blocked_services(plan)
    ]
    found = [*plans_as_data(plans), *blocked, *missing_credential(engine)]
    if json:
        terminal.print_json({"clean": not found, "differences": found})
    else:
        for difference in found:
            terminal.print_line(f"{difference['component']:<12} {difference['what']}")
        first = "Remove the cause, then run" if blocked else "Run"
        repair = f"{pluralize(len(found), 'difference')}. {first} `aks-flex-node bootstrap` to repair."
        terminal.print_message(repair if found else "No differences.")
    raise typer.Exit(1 if found else 0)


def unbootstrap(
    config: Config = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    keep_artifacts: Annotated[
        bool, typer.Option("--keep-artifacts", help="Keep downloaded artifacts for the next join.")
    ] = False,
    drain: Annotated[
        float, typer.Option("--drain-timeout", metavar="SECONDS", help="Time limit for draining pods.")
    ] = 60.0,
) -> None:
    """Remove the node and restore this machine to its prior state.

    Can be run in any state of the machine, repeatedly, and without a network.
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
    if not yes and not _confirmed():
        terminal.print_message("Nothing was changed.")
        raise typer.Exit(1)
    unbootstrap_node(settings, TerminalProgress(), keep_artifacts=keep_artifacts, seconds=drain)


def _confirmed() -> bool:
    import sys

    if not sys.stdin.isatty():
        from aks_flex_node.errors import CommandUsageError

        raise CommandUsageError(
            "confirmation-required", "Removing a node requires confirmation.", "Add --yes to run without a terminal."
        )
    return typer.confirm("Remove this machine from its cluster, and remove all node components?")


def _show_plan(engine: Engine, components: Sequence[Component], *, json: bool) -> None:
    check_join(engine)
    plans = [engine.plan(component) for component in components]
    if json:
        terminal.print_json(plans_as_data(plans))
    elif not print_plans(plans, engine.host):
        terminal.print_line("Nothing to do.")


def _join(
    selection: ConfigSelection,
    skipped_checks: Sequence[str] | None,
    chosen: ChosenPhases,
    daemon_mode: DaemonMode | None = None,
) -> None:
    from aks_flex_node.agent import public_status
    from aks_flex_node.agent.bootstrap.workflow import bootstrap_node
    from aks_flex_node.agent.cli.terminal_progress import TerminalProgress

    try:
        bootstrap_node(
            selection,
            TerminalProgress(),
            skipped_checks=skipped_checks or (),
            chosen=chosen,
            daemon_mode=daemon_mode,
        )
    finally:
        public_status.refresh()


def agent_floor(
    version: Annotated[
        str, typer.Option("--set", metavar="VERSION", help="Permit self-updates to this version and later ones.")
    ] = "",
    json: Json = False,
) -> None:
    """Show the oldest version that a self-update may install.

    It is the newest version that has run on this machine. A provider cannot lower it.
    """
    from aks_flex_node.agent import context, self_update
    from aks_flex_node.host.real import RealHost

    context.require_root()
    context.require_node()
    if version:
        import re

        from aks_flex_node.settings.base import VERSION_PATTERN

        if not re.match(VERSION_PATTERN, version):
            raise typer.BadParameter(f"{version!r} is not a version. Use a version like 1.2.3.", param_hint="--set")
        self_update.lower_floor(RealHost(), context.config_in_effect(), version)
    floor = self_update.read_floor(RealHost())
    if json:
        terminal.print_json({"floor": floor})
    else:
        terminal.print_line(floor or "No version has been recorded yet.")


def register(app: typer.Typer) -> None:
    app.command("agent-floor")(agent_floor)
    app.command()(agent)
    app.command()(bootstrap)
    app.command("bootstrap-node", hidden=True)(bootstrap)
    app.command()(plan)
    app.command()(verify)
    app.command()(unbootstrap)
    app.command("reset", help="Alias of unbootstrap.")(unbootstrap)


def print_plans(plans: Iterable[ComponentPlan], host: Host) -> int:
    """Prints all plans; returns the number of actions."""
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
    """Returns the diff of a file that the action would write; hides the content of secret files."""
    import difflib

    from aks_flex_node.host.actions import WriteFile

    if not isinstance(action, WriteFile):
        return []
    if action.secret:
        return ["(secret content)"]
    before = read_text(host, action.path).splitlines()
    after = action.content.decode(errors="replace").splitlines()
    lines = difflib.unified_diff(before, after, lineterm="", n=1)
    return [line for line in lines if not line.startswith(("---", "+++"))]


def plans_as_data(plans: Iterable[ComponentPlan]) -> list[dict[str, Any]]:
    from aks_flex_node.agent.reconcile.engine import distinct_actions

    return [
        {"component": plan.component, "action": type(action).__name__, "what": action.description}
        for plan, action in distinct_actions(plans)
    ]
