"""`aks-flex-lab fault …`: a proxy before the cloud's services that makes the network worse."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aks_flex_node.lab.cli import screen
from aks_flex_node.lab.cli.options import Json, this_lab
from aks_flex_node.lab.errors import UsageError
from aks_flex_node.lab.lab import Lab
from aks_flex_node.lab.parts.faults import SERVICES, TOXICS, Faults
from aks_flex_node.lab.requirements import require_root

app = typer.Typer(no_args_is_help=True, help="Faults between the edge and the cloud: latency, cuts, refusals.")


def services(incomplete: str) -> list[str]:
    """For the shell's completion."""
    return [known.name for known in SERVICES if known.name.startswith(incomplete)]


def kinds(incomplete: str) -> list[str]:
    return [kind for kind in TOXICS if kind.startswith(incomplete)]


Service = Annotated[
    str,
    typer.Argument(
        metavar="SERVICE", help="Before which: api, registry, mirror, mirror-http, vpn.", autocompletion=services
    ),
]
Kind = Annotated[
    str, typer.Argument(metavar="KIND", help=f"What goes wrong: {', '.join(TOXICS)}.", autocompletion=kinds)
]


def faults(ctx: typer.Context) -> Faults:
    require_root()
    lab = Lab(this_lab(ctx))
    _ = lab.cluster
    return lab.faults


@app.command()
def add(
    ctx: typer.Context,
    service: Service,
    kind: Kind,
    attributes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=NUMBER", help="How much: milliseconds, KB/s or bytes.")
    ] = None,
    upstream: Annotated[bool, typer.Option("--upstream", help="On the way to the service, instead of back.")] = False,
) -> None:
    """Make a service misbehave for the edge, for connections that are open and for new ones.

    Half a second each way: aks-flex-lab fault add api latency latency=500 jitter=100

    Silence: aks-flex-lab fault add api timeout timeout=0

    A thin line: aks-flex-lab fault add mirror bandwidth rate=100
    """
    name = faults(ctx).add(service, kind, _numbers(attributes or []), "upstream" if upstream else "downstream")
    screen.say(f"{name} is in effect. End it with `{this_lab(ctx).command} fault clear {service}`.")


@app.command()
def refuse(ctx: typer.Context, service: Service) -> None:
    """Refuse all connections of the edge to a service, as if it were down."""
    faults(ctx).switch(service, on=False)
    screen.say(f"{service} refuses. End it with `{this_lab(ctx).command} fault clear {service}`.")


@app.command()
def clear(
    ctx: typer.Context,
    service: Annotated[
        str | None, typer.Argument(metavar="SERVICE", help="All of them when left out.", autocompletion=services)
    ] = None,
) -> None:
    """End all faults; connections run straight again."""
    proxy = faults(ctx)
    for name in [service] if service else [known.name for known in SERVICES]:
        proxy.clear(name)
    screen.say(f"No fault stands before {service or 'any service'} any more.")


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
                "; ".join(_words(toxic) for toxic in row["toxics"]) or "none",
            ]
            for row in rows
        ),
    )


def _words(toxic: dict[str, Any]) -> str:
    return " ".join([toxic["type"], *(f"{key}={value}" for key, value in toxic["attributes"].items())])


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
