"""`bootstrap-vpn`, `vpn status`, `vpn remove`: the way to a cluster's private network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.agent.cli.options import Config, Json, Sets, Yes
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aks_flex_node.agent.engine.engine import Engine

app = typer.Typer(no_args_is_help=True, help="The VPN to the cluster's network.")


def bootstrap_vpn(
    config: Config = None,
    sets: Sets = None,
    auto_provision: Annotated[
        bool, typer.Option("--auto-provision", help="Make the VPN gateway when there is none (30 to 45 min).")
    ] = False,
    adopt: Annotated[bool, typer.Option("--adopt", help="Change a gateway that exists with other settings.")] = False,
    renew: Annotated[bool, typer.Option("--renew", help="Make a new certificate for this machine now.")] = False,
) -> None:
    """Connect this machine with the cluster's network by VPN; done already, it changes nothing."""
    from aks_flex_node.agent.cli import door, screen
    from aks_flex_node.agent.engine.locking import alone
    from aks_flex_node.agent.joining import begin
    from aks_flex_node.agent.vpn import looking
    from aks_flex_node.agent.vpn.connection import Connection
    from aks_flex_node.agent.watching import Watcher

    door.require_root("connect this machine by VPN")
    with alone():
        engine = _engine(config, sets)
        if not engine.config.azure.vpn.enabled:
            raise ConfigError(
                "vpn-not-enabled",
                "The configuration wants no VPN (azure.vpn.enabled), so the next join would take it away again.",
                "Set azure.vpn.enabled: true.",
            )
        begin(engine, Watcher())
        door.open_log(engine)
        Connection(engine, screen.say, make=auto_provision, adopt=adopt, renew=renew).run()
    found = looking.status(engine.host, engine.config)
    screen.say(f"The VPN is up: this machine is {found.get('address')} behind {found.get('gateway')}.")


def _engine(config: Path | None, sets: Sequence[str] | None = None) -> Engine:
    from aks_flex_node.agent.cli import door

    return door.engine(door.load(door.Given(config, tuple(sets or ()))).config)


@app.command()
def status(config: Config = None, json: Json = False) -> None:
    """Show how the VPN is: exit 0 when it is connected or not wanted, 1 when it should be and is not."""
    from aks_flex_node.agent.cli import door, screen
    from aks_flex_node.agent.vpn import looking

    door.require_root(door.LOOK)
    settings, _ = door.load_leniently(door.Given(config))
    engine = door.engine(settings)
    found = looking.status(engine.host, engine.config)
    if json:
        screen.facts(found)
    else:
        for key, value in found.items():
            screen.show(f"{key:<12} {_words(value)}")
    raise typer.Exit(0 if found["status"] in {"Connected", "disabled"} else 1)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return f"until {value['expires']} ({value['days']:.0f} days)"
    return "none" if value is None else str(value)


@app.command()
def remove(
    config: Config = None,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="The gateway in Azure, too, if it was made from here.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Take the VPN off this machine, and this machine off the gateway."""
    from aks_flex_node.agent.cli import door, screen
    from aks_flex_node.agent.components.vpn import COMPONENT, record_file
    from aks_flex_node.agent.engine.locking import alone
    from aks_flex_node.agent.vpn import farewell
    from aks_flex_node.agent.vpn.connection import Connection

    door.require_root("take the VPN off this machine")
    settings, _ = door.load_leniently(door.Given(config))
    engine = door.engine(settings)
    known = engine.host.look(record_file(engine.config)) or not engine.ledger.owned(COMPONENT.name).empty
    if not known and not gateway:
        screen.say("Nothing to do: this machine has no VPN of aks-flex-node.")
        return
    refuse_in_use(engine)
    if not yes:
        typer.confirm("The cluster may not be reachable from here any more. Go on?", abort=True, err=True)
    with alone():
        connection = Connection(engine, screen.say)
        if gateway:
            farewell.remove_gateway(connection.book, engine.config, connection.world, screen.say)
        left = connection.take_back()
        engine.remove(COMPONENT, screen.warn)
        connection.forget_phase()
    for line in left:
        screen.show(line)
    if engine.config.azure.vpn.enabled:
        screen.say("The next join, or the agent that stays, brings it back, unless azure.vpn.enabled is false.")


def refuse_in_use(engine: Engine) -> None:
    """A node that is to be behind the VPN would be lost without it."""
    from aks_flex_node.agent.engine import state
    from aks_flex_node.errors import MachineError

    known = state.read(engine.host, f"{engine.config.paths.data_dir}/state.json")
    if known.phase == state.Phase.NODE_JOINED.value and engine.config.azure.vpn.enabled:
        raise MachineError(
            "vpn-in-use",
            f"Node {known.node} reaches its cluster through this VPN, and would be lost without it.",
            "End the node: `aks-flex-node unbootstrap`, which takes the VPN away, too. Or let it reach the cluster "
            "in another way first: azure.vpn.enabled false, and `bootstrap`.",
        )


def register(parent: typer.Typer) -> None:
    parent.command("bootstrap-vpn")(bootstrap_vpn)
    parent.add_typer(app, name="vpn")
