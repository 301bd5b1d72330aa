"""`aks-flex-lab fault …`: a proxy before the cloud's services that makes the network worse."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import JsonOption, selected_layout
from aks_flex_lab.components.fault_proxy import PROXIED_SERVICES, TOXICS, FaultProxy
from aks_flex_lab.errors import UsageError
from aks_flex_lab.host_requirements import require_root
from aks_flex_lab.lab import Lab

app = typer.Typer(no_args_is_help=True, help="Faults between the edge and the cloud: latency, cuts, refusals.")


def complete_services(incomplete: str) -> list[str]:
    """For the shell's completion."""
    return [known.name for known in PROXIED_SERVICES if known.name.startswith(incomplete)]


def complete_kinds(incomplete: str) -> list[str]:
    return [kind for kind in TOXICS if kind.startswith(incomplete)]


ServiceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SERVICE",
        help="Before which: api, registry, mirror, mirror-http, vpn.",
        autocompletion=complete_services,
    ),
]
KindArgument = Annotated[
    str, typer.Argument(metavar="KIND", help=f"What goes wrong: {', '.join(TOXICS)}.", autocompletion=complete_kinds)
]


def fault_proxy_client(ctx: typer.Context) -> FaultProxy:
    require_root()
    lab = Lab(selected_layout(ctx))
    _ = lab.cluster
    return lab.fault_proxy


@app.command()
def add(
    ctx: typer.Context,
    service: ServiceArgument,
    kind: KindArgument,
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
    name = fault_proxy_client(ctx).add(
        service, kind, _parse_attributes(attributes or []), "upstream" if upstream else "downstream"
    )
    console.message(f"{name} is in effect. End it with `{selected_layout(ctx).command} fault clear {service}`.")


@app.command()
def refuse(ctx: typer.Context, service: ServiceArgument) -> None:
    """Refuse all connections of the edge to a service, as if it were down."""
    fault_proxy_client(ctx).set_enabled(service, on=False)
    console.message(f"{service} refuses. End it with `{selected_layout(ctx).command} fault clear {service}`.")


@app.command()
def clear(
    ctx: typer.Context,
    service: Annotated[
        str | None,
        typer.Argument(metavar="SERVICE", help="All of them when left out.", autocompletion=complete_services),
    ] = None,
) -> None:
    """End all faults; connections run straight again."""
    proxy = fault_proxy_client(ctx)
    for name in [service] if service else [known.name for known in PROXIED_SERVICES]:
        proxy.clear(name)
    console.message(f"No fault stands before {service or 'any service'} any more.")


@app.command("list")
def list_(ctx: typer.Context, json: JsonOption = False) -> None:
    """List what is in effect."""
    rows = fault_proxy_client(ctx).list()
    if json:
        console.print_json(rows)
        return
    console.print_table(
        ["SERVICE", "PROXY", "TAKES CONNECTIONS", "FAULTS"],
        (
            [
                row["service"],
                "in the way" if row["inserted"] else "aside",
                "yes" if row["enabled"] else "no",
                "; ".join(_describe_toxic(toxic) for toxic in row["toxics"]) or "none",
            ]
            for row in rows
        ),
    )


def _describe_toxic(toxic: dict[str, Any]) -> str:
    return " ".join([toxic["type"], *(f"{key}={value}" for key, value in toxic["attributes"].items())])


def _parse_attributes(pairs: list[str]) -> dict[str, float]:
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
