"""`aks-flex-lab mirror …`: manages the fault rules of the artifact mirror and shows its requests."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import JsonOption, selected_layout
from aks_flex_lab.errors import UsageError
from aks_flex_lab.mirror.control import MirrorClient
from aks_flex_lab.mirror.fault_rules import (
    ByteAmount,
    ChecksumFault,
    CorruptFault,
    CutFault,
    MirrorFault,
    SlowFault,
    StallFault,
    StatusFault,
    fault_to_json,
    parse_size,
)

if TYPE_CHECKING:
    from aks_flex_lab.mirror.fault_rules import FaultRule

app = typer.Typer(
    help="Inject faults into downloads from the artifact mirror.\n\n"
    "A pattern matches host/path, for example 'dl.k8s.io/*/kubelet'.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

PatternArgument = Annotated[
    str, typer.Argument(metavar="PATTERN", help="Pattern for host/path of the files; quote it.")
]
TimesOption = Annotated[
    int | None, typer.Option("--times", metavar="N", min=1, help="Number of requests to affect; all by default.")
]
AfterOption = Annotated[
    str, typer.Option("--after", metavar="AMOUNT", help="Amount to send before: a share (50%) or bytes (10M).")
]


@app.command("list")
def list_rules(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the fault rules with the number of affected requests.

    The rules apply in the order of the list.

    Example: aks-flex-lab mirror list
    """
    rules = mirror_client(ctx).rules()
    if as_json:
        console.print_json([rule.to_json() for rule in rules])
    elif rules:
        console.print_table(("ID", "FAULT", "PATTERN", "HITS", "TIMES"), (rule_row(rule) for rule in rules))
    else:
        console.out.print("No fault rule is active: the mirror serves all files unchanged.")


@app.command()
def slow(
    ctx: typer.Context,
    glob: PatternArgument,
    rate: Annotated[str, typer.Option("--rate", metavar="SIZE", help="Bytes per second for each download.")],
    times: TimesOption = None,
) -> None:
    """Limit the download rate.

    Example: aks-flex-lab mirror slow 'dl.k8s.io/*/kubelet' --rate 200k
    """
    add_fault(ctx, glob, SlowFault(parse_size(rate)), times)


@app.command()
def stall(
    ctx: typer.Context,
    glob: PatternArgument,
    after: AfterOption = "50%",
    hold: Annotated[
        float,
        typer.Option("--hold", metavar="SECONDS", help="Seconds until the mirror closes the stalled connection."),
    ] = 600,
    times: TimesOption = None,
) -> None:
    """Send some data, then stall with the connection open.

    Example: aks-flex-lab mirror stall 'github.com/*/containerd-*' --after 10M --times 1
    """
    add_fault(ctx, glob, StallFault(ByteAmount.parse(after), hold), times)


@app.command()
def cut(ctx: typer.Context, glob: PatternArgument, after: AfterOption = "50%", times: TimesOption = None) -> None:
    """Send some data, then reset the connection.

    Example: aks-flex-lab mirror cut 'dl.k8s.io/*' --after 50% --times 3
    """
    add_fault(ctx, glob, CutFault(ByteAmount.parse(after)), times)


@app.command()
def corrupt(ctx: typer.Context, glob: PatternArgument, times: TimesOption = None) -> None:
    """Send wrong bytes in the middle of a file of the right size.

    Example: aks-flex-lab mirror corrupt '*/runc.amd64' --times 1
    """
    add_fault(ctx, glob, CorruptFault(), times)


@app.command()
def missing(ctx: typer.Context, glob: PatternArgument, times: TimesOption = None) -> None:
    """Return 404 Not Found.

    Example: aks-flex-lab mirror missing 'dl.k8s.io/v1.36.3/*'
    """
    add_fault(ctx, glob, StatusFault(404), times)


@app.command()
def unavailable(
    ctx: typer.Context,
    glob: PatternArgument,
    retry_after: Annotated[
        int | None,
        typer.Option("--retry-after", metavar="SECONDS", min=0, help="Value of the Retry-After header, in seconds."),
    ] = None,
    times: TimesOption = None,
) -> None:
    """Return 503 Service Unavailable.

    Example: aks-flex-lab mirror unavailable 'github.com/*' --retry-after 2 --times 5
    """
    add_fault(ctx, glob, StatusFault(503, retry_after), times)


@app.command()
def checksum(ctx: typer.Context, glob: PatternArgument, times: TimesOption = None) -> None:
    """Serve wrong checksums for files that are served unchanged.

    Example: aks-flex-lab mirror checksum 'dl.k8s.io/*/kubelet'
    """
    add_fault(ctx, glob, ChecksumFault(), times)


@app.command()
def remove(
    ctx: typer.Context, rule: Annotated[int, typer.Argument(metavar="ID", help="ID of the fault rule, as in `list`.")]
) -> None:
    """Remove one fault rule.

    Example: aks-flex-lab mirror remove 3
    """
    if not mirror_client(ctx).remove(rule):
        raise UsageError(
            "mirror-fault-not-found", f"No fault rule has the ID {rule}.", "Run `aks-flex-lab mirror list`."
        )
    console.message(f"Fault rule {rule} is removed.")


@app.command()
def reset(ctx: typer.Context) -> None:
    """Remove all fault rules and reset the request counters.

    Stalled responses continue.

    Example: aks-flex-lab mirror reset
    """
    mirror_client(ctx).reset()
    console.message("All fault rules are removed, and the request counters are zero.")


@app.command()
def requests(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show the files requested since the last reset.

    Also shows the number of requests and of bytes sent for each file.

    Example: aks-flex-lab mirror requests --json
    """
    fetched = mirror_client(ctx).requests().values()
    if as_json:
        console.print_json([asdict(each) for each in fetched])
    elif fetched:
        rows = ((str(each.requests), str(each.bytes), each.path) for each in fetched)
        console.print_table(("REQUESTS", "BYTES", "PATH"), rows)
    else:
        console.out.print("No request since the mirror was started or reset.")


def mirror_client(ctx: typer.Context) -> MirrorClient:
    return MirrorClient(selected_layout(ctx).components / "mirror" / "control.sock")


def add_fault(ctx: typer.Context, glob: str, fault: MirrorFault, times: int | None) -> None:
    added = mirror_client(ctx).add(glob, fault, times)
    console.message(
        f"Fault rule {added.rule.id} is active: {describe_rule(added.rule)} for {count_files(added.files)}."
    )
    if not added.files:
        console.message("Check the pattern: it must match host/path, and `*` also matches `/`.")


def count_files(files: int) -> str:
    return "1 file of the mirror" if files == 1 else f"{files} files of the mirror"


def describe_rule(rule: FaultRule) -> str:
    """Returns a fault rule with its values, for example `slow rate=204800`."""
    wire = fault_to_json(rule.fault)
    kind = wire.pop("kind")
    return " ".join([kind, *(f"{name}={_plain(value)}" for name, value in wire.items() if value is not None)])


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def rule_row(rule: FaultRule) -> tuple[str, ...]:
    times = "all" if rule.times is None else str(rule.times)
    return str(rule.id), describe_rule(rule), rule.glob, str(rule.hits), times
