"""Commands `rollout …`: bring the nodes of a pool to a revision in waves, and follow, pause and end that."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.api.node_changes import NodeOptions
from aks_flex_node.api.node_summary import printable
from aks_flex_node.api.rollout_options import invalid_name, rollout_properties
from aks_flex_node.api.rollout_summary import (
    SUCCEEDED,
    end_text,
    progress_text,
    state_text,
    wave_text,
)
from aks_flex_node.api.table_rows import gate_row, rollout_node_row, rollout_row
from aks_flex_node.errors import FlexError
from aks_flex_rp.cli import output
from aks_flex_rp.cli.command_context import PoolName, ServiceOptions, YesOption, with_service
from aks_flex_rp.cli.node_write_commands import given_options
from aks_flex_rp.cli.property_files import read_document
from aks_flex_rp.cli.setting_options import with_rollout_options
from aks_flex_rp.rollouts.states import NodeState

if TYPE_CHECKING:
    from aks_flex_rp.api_client import Resource

    Document = dict[str, Any]

app = typer.Typer()


def checked_name(name: str) -> str:
    """Refuses a name that no roll-out can have: in a URL, it could lead to another resource."""
    if reason := invalid_name(name):
        raise typer.BadParameter(f"{name!r} {reason}")
    return name


RolloutName = Annotated[
    str, typer.Option("--name", "-n", metavar="NAME", callback=checked_name, help="Name of the roll-out.")
]
Wave = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only nodes of this wave.")]
BAD_STATES = ("Failed", "NotReversed")
MAX_FAILED = 20  # nodes that `show` lists; `nodes` lists all
INTERRUPTED = 130
DONE = {
    "pause": "paused. Nodes that are being updated finish, and no other one starts.",
    "resume": "resumed.",
    "abort": "aborted. Nodes keep what they have.",
    "reverse": "is being reversed.",
}


@app.command()
@with_service
@with_rollout_options
def create(
    service: ServiceOptions,
    settings: NodeOptions,
    ctx: typer.Context,
    pool: PoolName,
    name: RolloutName,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the roll-out has ended, and show its progress.")
    ] = True,
) -> None:
    """Create and start a roll-out.

    With --wait, prints each change, and fails if the roll-out does not succeed. The same command
    again follows the same roll-out.
    """
    rollout = service.pools.at(pool, "rollouts", name)
    made = rollout.put(rollout_properties(settings, read_document))
    again = f"aks-flex-rp rollout show --pool {pool} --name {name}{given_options(ctx)}"
    if not wait:
        service.print_result(f"{name} created, {progress_text(made['properties'])}", made)
        output.print_note(f"Follow it with `{again}`.")
        return
    made = _followed(rollout, made, again)
    if made["properties"]["state"] == SUCCEEDED:
        service.print_result(f"{end_text(made)}.", made)
        return
    if service.json:
        service.print_result("", made)
    raise FlexError("rollout-failed", f"{end_text(made)}.", f"See the waves and failed nodes with `{again}`.")


def _followed(rollout: Resource, made: Document, again: str) -> Document:
    from aks_flex_rp.api_client import follow_rollout

    def print_line(text: str) -> None:
        output.print_note(f"{time.strftime('%H:%M:%S')} {text}")

    try:
        return follow_rollout(rollout, made, print_line)
    except KeyboardInterrupt:
        output.print_note(f"The roll-out {made['name']} continues. See it with `{again}`.")
        raise typer.Exit(INTERRUPTED) from None


@app.command("list")
@with_service
def show_all(service: ServiceOptions, pool: PoolName) -> None:
    """List the roll-outs of a pool, the newest first."""
    found = list(service.pools.at(pool, "rollouts").list())
    service.print_result(output.format_rows(list(map(rollout_row, found)), "No roll-outs."), found)


@app.command()
@with_service
def show(
    service: ServiceOptions,
    ctx: typer.Context,
    pool: PoolName,
    name: RolloutName,
) -> None:
    """Show a roll-out: state, waves, gates and failed nodes."""
    rollout = service.pools.at(pool, "rollouts", name)
    found = rollout.get()
    bad = (each for state in BAD_STATES for each in rollout.entries("listNodes", state=state))
    failed = [] if service.json else list(islice(bad, MAX_FAILED + 1))
    more = f"aks-flex-rp rollout nodes --pool {pool} --name {name} --node-state Failed{given_options(ctx)}"
    service.print_result(output.with_command_name(format_rollout(found, failed, more)), found)


def format_rollout(rollout: Document, failed: list[Document], more: str) -> str:
    """Formats a roll-out. `failed` are its first failed nodes, and `more` is the command that lists all of them."""
    shown = rollout["properties"]
    rows = {
        "name": rollout["name"],
        "id": rollout["id"],
        "state": f"{state_text(shown)}, since {output.format_time(shown.get('stateSince'))} UTC",
        "reason": printable(shown.get("reason")),
        "waits for": "\n           ".join(map(printable, shown.get("waitsFor", ()))),
        "revision": str(shown["revision"]),
        "failures": f"{shown.get('failures', 0)} (limit {shown['maxFailures']}, then {shown['onFailure']})",
        "started": f"{output.format_time(shown.get('startedAt'))} UTC by {printable(shown.get('createdBy'))}",
        "ended": f"{output.format_time(shown['endedAt'])} UTC" if shown.get("endedAt") else "",
        **{f"wave {each['wave']}": wave_text(each, shown["state"]) for each in shown.get("waveProgress", ())},
    }
    lines = [output.format_pairs(rows)]
    if results := shown.get("gateResults"):
        lines += ["", output.format_rows(list(map(gate_row, results)))]
    if failed:
        lines += ["", "failed nodes"]
        lines += [
            f"  {each['name']} (wave {each['wave']}, {each['state']}): {printable(each.get('cause')) or '-'}"
            for each in failed[:MAX_FAILED]
        ]
        lines += [f"  and others: `{more}`"] if len(failed) > MAX_FAILED else []
    return "\n".join(lines)


@app.command()
@with_service
def nodes(
    service: ServiceOptions,
    pool: PoolName,
    name: RolloutName,
    node_state: Annotated[
        NodeState | None,
        typer.Option(metavar="STATE", help="Only nodes in this state, for example Failed or NotReversed."),
    ] = None,
    wave: Wave = None,
) -> None:
    """List the nodes of a roll-out with their states."""
    chosen = {"state": node_state, "wave": wave}
    filters = {key: value for key, value in chosen.items() if value is not None}
    found = list(service.pools.at(pool, "rollouts", name).entries("listNodes", **filters))
    service.print_result(output.format_rows(list(map(rollout_node_row, found)), "No nodes."), found)


@with_service
def act(
    service: ServiceOptions,
    ctx: typer.Context,
    pool: PoolName,
    name: RolloutName,
) -> None:
    action = str(ctx.command.name)
    found = service.pools.at(pool, "rollouts", name).act(action)
    service.print_result(f"{name} {DONE[action]}\n{progress_text(found['properties'])}", found)


app.command("pause", help="Pause a roll-out. Nodes that are being updated finish.")(act)
app.command("resume", help="Continue a paused roll-out.")(act)
app.command("abort", help="End a roll-out. Nodes keep what they have.")(act)
app.command("reverse", help="Bring the nodes of a roll-out back to the revision before.")(act)


@app.command()
@with_service
def approve(
    service: ServiceOptions,
    pool: PoolName,
    name: RolloutName,
    gate: Annotated[
        str | None, typer.Option(metavar="GATE", help="Name of the gate. Default: the one that waits.")
    ] = None,
) -> None:
    """Approve the next wave of a roll-out that waits for it."""
    found = service.pools.at(pool, "rollouts", name).act("approve", {"gate": gate} if gate else None)
    service.print_result(f"{name} approved.\n{progress_text(found['properties'])}", found)


@app.command()
@with_service
def delete(
    service: ServiceOptions,
    pool: PoolName,
    name: RolloutName,
    yes: YesOption = False,
) -> None:
    """Delete a roll-out that has ended, with its record. Barred revisions stay barred."""
    if not yes:
        output.confirm(f"Delete the record of the roll-out {name} of the pool {pool}?")
    service.pools.at(pool, "rollouts", name).delete()
    service.print_result(f"{name} deleted", {})
