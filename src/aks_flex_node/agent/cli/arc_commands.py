"""`arc register`, `arc status`, `arc unregister`: manages Azure Arc outside of a join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.cli.device_prompt import offer_device_sign_in
from aks_flex_node.agent.cli.options import Config, Json, NoInput, Sets, Yes

if TYPE_CHECKING:
    from aks_flex_node.agent.reconcile.engine import Engine

HELP = "Register this machine with Azure Arc, or unregister it."

app = typer.Typer(help=HELP, no_args_is_help=True)


@app.command()
def register(config: Config = None, sets: Sets = None, no_input: NoInput = False) -> None:
    """Register this machine with Azure Arc.

    Assigns the roles of its identity and waits until they are effective.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.bootstrap import prerequisites
    from aks_flex_node.agent.reconcile.lock import exclusive

    context.require_root()
    offer_device_sign_in(no_input=no_input)
    with exclusive():
        engine = context.command_engine(config, sets)
        prerequisites.register_with_arc(engine, lambda text: terminal.print_message(f"  {text}"))
    terminal.print_message("This machine is registered with Azure Arc.")
    _show(_status(engine))


@app.command()
def status(config: Config = None, json: Json = False) -> None:
    """Show the Azure Arc status of this machine.

    Exits with 0 when it is connected, and with 1 when it is not.
    """
    from aks_flex_node.agent import context

    context.require_root()
    engine = context.engine_or_default(config)
    found = _status(engine)
    if json:
        terminal.print_json(found)
    else:
        _show(found)
    raise typer.Exit(0 if found["status"] == "Connected" else 1)


@app.command()
def unregister(config: Config = None, yes: Yes = False) -> None:
    """Unregister this machine from Azure Arc.

    Removes its role assignments, its resource in Azure, and azcmagent if aks-flex-node installed it.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.arc.registration_state import ArcRecordStore
    from aks_flex_node.agent.bootstrap import prerequisites
    from aks_flex_node.agent.cluster.node_health import has_kubelet_credential
    from aks_flex_node.agent.reconcile.lock import exclusive

    context.require_root()
    engine = context.engine_or_default(config)
    records = ArcRecordStore(engine.host, engine.config)
    if not records.exists:
        terminal.print_message("Nothing to do: this machine was not registered with Azure Arc by aks-flex-node.")
        return
    if has_kubelet_credential(engine.host, engine.config):
        prerequisites.refuse_arc_in_use(engine.config)
    if not yes:
        typer.confirm(f"Unregister {records.current.machine or 'this machine'} from Azure Arc?", abort=True, err=True)
    with exclusive():
        remaining = prerequisites.unregister_from_arc(engine, lambda text: terminal.print_message(f"  {text}"))
    for line in remaining:
        terminal.print_message(f"to be run by an Azure administrator: {line}")
    terminal.print_message("This machine is no longer registered with Azure Arc by aks-flex-node.")


def _status(engine: Engine) -> dict[str, Any]:
    from aks_flex_node.agent.arc import machine_agent

    return machine_agent.status(engine.host, engine.config)


def _show(found: dict[str, Any]) -> None:

    for name, value in found.items():
        text = "  ".join(f"{one} {how}" for one, how in value.items()) if isinstance(value, dict) else str(value)
        terminal.print_line(f"{name:<14} {text}".rstrip())
