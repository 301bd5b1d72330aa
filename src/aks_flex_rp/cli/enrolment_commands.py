"""Commands `pool enrolment …`: one URL with which many machines become nodes of a pool."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from aks_flex_node.api.allow_lists import AllowListError, parse_allow_list
from aks_flex_node.api.node_summary import join_command, printable
from aks_flex_node.api.table_rows import enrolment_row, machine_row
from aks_flex_node.errors import ConfigError
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.cli import output
from aks_flex_rp.cli.command_context import PoolName, ServiceOptions, with_service

if TYPE_CHECKING:
    Document = dict[str, Any]

app = typer.Typer(help="Enrol many machines with one URL.", no_args_is_help=True)
EnrolmentId = Annotated[str, typer.Option("--id", metavar="ID", help="ID of the enrolment.")]
Fingerprint = Annotated[
    str, typer.Option(metavar="FINGERPRINT", help="Fingerprint that the machine prints, for example 1a2b-3c4d-….")
]
Approval = Literal["automatic", "manual", "allowList"]


@app.command()
@with_service
def create(
    service: ServiceOptions,
    pool: PoolName,
    max_uses: Annotated[int, typer.Option(metavar="N", help="How many machines may enrol.")],
    hours: Annotated[float, typer.Option(metavar="HOURS", min=0.01, help="How long the URL is valid.")] = 72,
    approval: Annotated[
        Approval | None,
        typer.Option(help="Which machines may enrol: all, those that a person approves, or those on a list."),
    ] = None,
    allow_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="CSV file of machines, with a header row: serialNumber, systemUuid, macAddress."
        ),
    ] = None,
    node_name: Annotated[
        str,
        typer.Option(metavar="RULE", help="Names of the nodes: {hostname}, edge-{serial} or edge-{number:04}."),
    ] = "{hostname}",
) -> None:
    """Create an enrolment and print the line that enrols a machine.

    The line is the same for all machines, and a secret while the enrolment is valid.
    """
    chosen = approval or ("allowList" if allow_file else "automatic")
    body: Document = {"maxUses": max_uses, "expires": format_utc(time.time() + hours * 3600), "approval": chosen}
    body |= {"nodeName": node_name, **({"allow": _allow_list(allow_file)} if allow_file else {})}
    made = service.pools.at(pool).act("enrolments", body)
    properties = made["properties"]
    line = join_command(properties["enrolmentUrl"])
    service.print_result(line, {"command": line, **made})
    output.print_note(
        f"Run it as root on each machine. Enrolment {made['name']}: {_counted_uses(max_uses)}, valid "
        f"until {properties['expires']}."
    )
    if chosen == "manual":
        output.print_note(
            f"Approve each machine with `aks-flex-rp pool enrolment approve --pool {pool} --id {made['name']} "
            "--fingerprint FINGERPRINT`."
        )


def _allow_list(file: Path) -> list[dict[str, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError("allow-list-invalid", f"{file} cannot be read: {why}.", "Check `--allow-file`.") from None
    try:
        return parse_allow_list(text, str(file))
    except AllowListError as error:
        raise ConfigError("allow-list-invalid", f"{file}, line {error.line}: {error.why}.", error.hint) from None


@app.command("list")
@with_service
def show_all(service: ServiceOptions, pool: PoolName) -> None:
    """List the enrolments of a pool."""
    found = list(service.pools.at(pool, "enrolments").list())
    service.print_result(output.format_rows(list(map(enrolment_row, found)), "No enrolments."), found)


@app.command()
@with_service
def show(service: ServiceOptions, pool: PoolName, id: EnrolmentId) -> None:
    """Show an enrolment: its state, uses and rules."""
    found = service.pools.at(pool, "enrolments", id).get()
    properties = found["properties"]
    rows = {output.title(name).lower(): str(value) for name, value in enrolment_row(found).items()} | {
        "allowed": str(len(properties.get("allow", ())) or ""),
        "created by": printable(found["systemData"].get("createdBy", "")),
        "revoked": properties.get("revokedAt", ""),
    }
    service.print_result(output.format_pairs(rows), found)


@app.command()
@with_service
def revoke(service: ServiceOptions, pool: PoolName, id: EnrolmentId) -> None:
    """Revoke an enrolment. Nodes that joined with it stay as they are."""
    found = service.pools.at(pool, "enrolments", id).act("revoke")
    service.print_result(f"{id} revoked after {_counted_uses(found['properties']['uses'])}", found)


def _counted_uses(number: int) -> str:
    return f"{number} use" if number == 1 else f"{number} uses"


@app.command()
@with_service
def machines(service: ServiceOptions, pool: PoolName, id: EnrolmentId) -> None:
    """List the machines that have used an enrolment.

    Those that wait for approval are first.
    """
    found = list(service.pools.at(pool, "enrolments", id).entries("listMachines"))
    service.print_result(output.format_rows(list(map(machine_row, found)), "No machines."), found)


@with_service
def decide(
    service: ServiceOptions,
    ctx: typer.Context,
    pool: PoolName,
    id: EnrolmentId,
    fingerprint: Fingerprint,
) -> None:
    approve = ctx.command.name == "approve"
    enrolment = service.pools.at(pool, "enrolments", id)
    before = list(enrolment.entries("listMachines")) if approve else []
    found = enrolment.act(str(ctx.command.name), {"fingerprint": fingerprint})
    rejected = {each["fingerprint"] for each in before if each["state"] == "Rejected"}
    done = "approved: it enrols within a minute" if approve else "rejected"
    if found["fingerprint"] in rejected:
        done = "approved. It was rejected before, so its agent has ended: run the enrolment's line on it again"
    service.print_result(f"{found['fingerprint']} {done}", found)


app.command("approve", help="Approve a machine whose fingerprint you have compared.")(decide)
app.command("reject", help="Reject a machine. It may be approved later.")(decide)
