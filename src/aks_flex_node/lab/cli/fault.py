"""`aks-flex-lab fault …`: a proxy before the cloud's services that makes the network worse."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from aks_flex_node.lab.cli import screen
from aks_flex_node.lab.cli.options import Json, this_lab
from aks_flex_node.lab.errors import UsageError
from aks_flex_node.lab.lab import Lab
from aks_flex_node.lab.parts.faults import SERVICES, Faults
from aks_flex_node.lab.requirements import require_root

app = typer.Typer(no_args_is_help=True, help="Faults between the edge and the cloud: latency, cuts, refusals.")


class Service(str, Enum):
    """What the proxy can stand before."""

    API = "api"
    REGISTRY = "registry"
    MIRROR = "mirror"


class Kind(str, Enum):
    """toxiproxy's own toxics."""

    LATENCY = "latency"
    BANDWIDTH = "bandwidth"
    SLOW_CLOSE = "slow_close"
    TIMEOUT = "timeout"
    RESET_PEER = "reset_peer"
    SLICER = "slicer"
    LIMIT_DATA = "limit_data"


ServiceName = Annotated[Service, typer.Argument(metavar="SERVICE", help="Before which service.")]


def faults(ctx: typer.Context) -> Faults:
    require_root()
    lab = Lab(this_lab(ctx))
    _ = lab.cluster
    return lab.faults


@app.command()
def add(
    ctx: typer.Context,
    service: ServiceName,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="What goes wrong.")],
    attributes: Annotated[list[str] | None, typer.Argument(metavar="KEY=NUMBER", help="How much of it.")] = None,
    upstream: Annotated[bool, typer.Option("--upstream", help="On the way to the service, instead of back.")] = False,
) -> None:
    """Make a service misbehave for the edge, for connections that are open and for new ones.

    Examples: fault add api latency latency=500 jitter=100 (milliseconds); fault add api timeout timeout=0 (silence);
    fault add mirror bandwidth rate=100 (KB/s); fault add registry reset_peer timeout=0
    """
    name = faults(ctx).add(
        service.value, kind.value, _numbers(attributes or []), "upstream" if upstream else "downstream"
    )
    screen.say(f"{name} is in effect. End it with `{Lab(this_lab(ctx)).command} fault clear {service.value}`.")


@app.command()
def refuse(ctx: typer.Context, service: ServiceName) -> None:
    """Refuse all connections of the edge to a service, as if it were down."""
    faults(ctx).switch(service.value, on=False)
    screen.say(f"{service.value} refuses. End it with `{Lab(this_lab(ctx)).command} fault clear {service.value}`.")


@app.command()
def clear(
    ctx: typer.Context,
    service: Annotated[Service | None, typer.Argument(metavar="[SERVICE]", help="All of them when left out.")] = None,
) -> None:
    """End all faults; connections run straight again."""
    proxy = faults(ctx)
    for known in SERVICES:
        if service is None or known.name == service.value:
            proxy.clear(known.name)


@app.command("list")
def list_(ctx: typer.Context, json: Json = False) -> None:
    """List what is in effect."""
    rows = faults(ctx).list()
    if json:
        screen.facts(rows)
        return
    screen.table(
        ["SERVICE", "PROXY", "TAKES CONNECTIONS", "FAULTS"],
        (
            [
                row["service"],
                "in the way" if row["inserted"] else "aside",
                "yes" if row["enabled"] else "no",
                "; ".join(f"{toxic['type']} {toxic['attributes']}" for toxic in row["toxics"]) or "none",
            ]
            for row in rows
        ),
    )


def _numbers(pairs: list[str]) -> dict[str, float]:
    numbers = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        try:
            numbers[key] = float(value) if "." in value else int(value)
        except ValueError:
            equals = ""
        if not equals:
            raise UsageError("fault-invalid", f"{pair!r} is not KEY=NUMBER.", "For example latency=500.")
    return numbers
