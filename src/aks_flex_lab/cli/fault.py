"""`aks-flex-lab fault …`: injects network faults between the edge and the services of the cloud."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aks_flex_lab.arm.eventual_consistency import ARM_FAULTS, EventualConsistency
from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import JsonOption, selected_layout
from aks_flex_lab.components.fault_proxy import PROXIED_SERVICES, TOXICS, FaultProxy
from aks_flex_lab.errors import UsageError, did_you_mean
from aks_flex_lab.host_requirements import require_root
from aks_flex_lab.lab import Lab

app = typer.Typer(no_args_is_help=True, help="Inject network faults between the edge and the cloud.")


ServiceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SERVICE",
        help="The service: api, registry, mirror, mirror-http, vpn or azure.",
    ),
]
KindArgument = Annotated[
    str,
    typer.Argument(metavar="KIND", help=f"The kind of fault: {', '.join(TOXICS)}."),
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
        list[str] | None,
        typer.Argument(metavar="KEY=NUMBER", help="Attributes of the fault, in milliseconds, KB/s or bytes."),
    ] = None,
    upstream: Annotated[
        bool, typer.Option("--upstream", help="Apply the fault to requests instead of responses.")
    ] = False,
) -> None:
    """Add a fault to a service, for open and new connections.

    Latency of half a second: aks-flex-lab fault add api latency latency=500 jitter=100

    No response: aks-flex-lab fault add api timeout timeout=0

    Limited bandwidth: aks-flex-lab fault add mirror bandwidth rate=100
    """
    numbers = {}
    for pair in attributes or []:
        key, equals, value = pair.partition("=")
        try:
            numbers[key] = float(value) if "." in value else int(value)
        except ValueError:
            equals = ""
        if not equals:
            raise UsageError("fault-invalid", f"{pair!r} is not KEY=NUMBER.", "For example latency=500.")
    name = fault_proxy_client(ctx).add(service, kind, numbers, "upstream" if upstream else "downstream")
    console.message(f"{name} is active. Remove it with `{selected_layout(ctx).command} fault clear {service}`.")


@app.command()
def refuse(ctx: typer.Context, service: ServiceArgument) -> None:
    """Refuse all connections from the edge to a service."""
    fault_proxy_client(ctx).set_enabled(service, on=False)
    console.message(
        f"{service} refuses connections. Restore it with `{selected_layout(ctx).command} fault clear {service}`."
    )


@app.command()
def arm(
    ctx: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help=f"The kind of answer: {', '.join(ARM_FAULTS)}."),
    ],
    times: Annotated[int, typer.Option("--times", metavar="N", help="Number of requests; 0 ends it.", min=0)] = 1,
    retry_after: Annotated[
        int, typer.Option("--retry-after", metavar="SECONDS", help="Retry-After of the answers.", min=0)
    ] = 1,
) -> None:
    """Let Azure Resource Manager answer the next requests with an error.

    `throttled` is 429, `unavailable` is 503, `html` is a 404 page that is not from ARM, `tenant` rejects the token.

    For an Azure that does not respond: aks-flex-lab fault refuse azure
    """
    if kind not in ARM_FAULTS:
        raise UsageError(
            "fault-unknown", f"{kind!r} is not a fault of Azure Resource Manager.", did_you_mean(kind, ARM_FAULTS)
        )
    require_root()
    lab = Lab(selected_layout(ctx))
    _ = lab.cluster
    EventualConsistency(lab.azure.state).change(**{kind: times, "retry_after": retry_after})
    console.message(f"Azure Resource Manager answers {times} requests with {kind}.")


@app.command()
def clear(
    ctx: typer.Context,
    service: Annotated[
        str | None,
        typer.Argument(metavar="SERVICE", help="The service; all services by default."),
    ] = None,
) -> None:
    """Remove all faults of a service, or of all services."""
    proxy = fault_proxy_client(ctx)
    for name in [service] if service else [known.name for known in PROXIED_SERVICES]:
        proxy.clear(name)
    if service in {None, "azure"}:
        EventualConsistency(Lab(selected_layout(ctx)).azure.state).change(**dict.fromkeys(ARM_FAULTS, 0))
    console.message(f"All faults of {service or 'all services'} are removed.")


@app.command("list")
def list_(ctx: typer.Context, json: JsonOption = False) -> None:
    """List the active faults."""
    rows = fault_proxy_client(ctx).list()
    if json:
        console.print_json(rows)
        return
    console.print_table(
        ["SERVICE", "PROXY", "ACCEPTS CONNECTIONS", "FAULTS"],
        (
            [
                row["service"],
                "active" if row["inserted"] else "aside",
                "yes" if row["enabled"] else "no",
                "; ".join(_describe_toxic(toxic) for toxic in row["toxics"]) or "none",
            ]
            for row in rows
        ),
    )


def _describe_toxic(toxic: dict[str, Any]) -> str:
    return " ".join([toxic["type"], *(f"{key}={value}" for key, value in toxic["attributes"].items())])
