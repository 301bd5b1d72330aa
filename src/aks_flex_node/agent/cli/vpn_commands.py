"""`bootstrap-vpn`, `vpn status`, `vpn remove`: the VPN to the cluster's private network."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.cli.device_prompt import offer_device_sign_in
from aks_flex_node.agent.cli.options import Config, Json, NoInput, Sets, Yes

app = typer.Typer(no_args_is_help=True, help="Show or remove the VPN to the cluster's network.")


def bootstrap_vpn(
    config: Config = None,
    sets: Sets = None,
    auto_provision: Annotated[
        bool, typer.Option("--auto-provision", help="Create the VPN gateway if it does not exist (30 to 45 min).")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Change an existing gateway that has other settings.")
    ] = False,
    renew: Annotated[bool, typer.Option("--renew", help="Renew this machine's certificate now.")] = False,
    no_input: NoInput = False,
) -> None:
    """Connect this machine to the cluster's network by VPN.

    Changes nothing if it is already connected.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.bootstrap import prerequisites
    from aks_flex_node.agent.reconcile.lock import exclusive
    from aks_flex_node.agent.vpn import local_state

    context.require_root()
    offer_device_sign_in(no_input=no_input)
    with exclusive():
        engine = context.command_engine(config, sets)
        prerequisites.connect_vpn(
            engine, terminal.print_message, auto_provision=auto_provision, adopt=adopt, renew=renew
        )
    found = local_state.status(engine.host, engine.config)
    terminal.print_message(f"VPN connected: address {found.get('address')}, gateway {found.get('gateway')}.")


@app.command()
def status(config: Config = None, json: Json = False) -> None:
    """Show the status of the VPN.

    Exits with 0 when it is connected or disabled, and with 1 when it is enabled but not connected.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.vpn import local_state

    context.require_root()
    engine = context.engine_or_default(config)
    found = local_state.status(engine.host, engine.config)
    if json:
        terminal.print_json(found)
    else:
        for key, value in found.items():
            terminal.print_line(f"{key:<12} {_format_value(value)}")
    raise typer.Exit(0 if found["status"] in {"Connected", "disabled"} else 1)


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return f"until {value['expires']} ({value['days']:.0f} days)"
    return "none" if value is None else str(value)


@app.command()
def remove(
    config: Config = None,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Also delete the gateway in Azure if aks-flex-node created it.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Remove the VPN from this machine.

    Also removes this machine's certificate from the gateway.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.bootstrap import prerequisites
    from aks_flex_node.agent.cli.terminal_progress import TerminalProgress
    from aks_flex_node.agent.components.vpn import COMPONENT, record_file
    from aks_flex_node.agent.reconcile.lock import exclusive

    context.require_root()
    engine = context.engine_or_default(config)
    known = engine.host.stat(record_file(engine.config)) or not engine.ledger.owned(COMPONENT.name).empty
    if not known and not gateway:
        terminal.print_message("Nothing to do: aks-flex-node has not set up a VPN on this machine.")
        return
    prerequisites.refuse_vpn_in_use(engine)
    if not yes:
        typer.confirm("The cluster may become unreachable from this machine. Continue?", abort=True, err=True)
    with exclusive():
        remaining = prerequisites.remove_vpn(engine, TerminalProgress(), gateway=gateway)
    for line in remaining:
        terminal.print_line(line)
    if engine.config.azure.vpn.enabled:
        terminal.print_message("The next join or the daemon restores the VPN unless `azure.vpn.enabled` is false.")


def register(parent: typer.Typer) -> None:
    parent.command("bootstrap-vpn")(bootstrap_vpn)
    parent.add_typer(app, name="vpn")
