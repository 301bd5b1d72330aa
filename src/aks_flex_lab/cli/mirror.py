"""`aks-flex-lab mirror …`: make downloads fail in a chosen way, and see what was downloaded."""

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
    help="The artifact mirror: make downloads slow, broken or wrong, and see what was fetched. "
    "A pattern is matched against host/path, for example 'dl.k8s.io/*/kubelet'.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

PatternArgument = Annotated[
    str, typer.Argument(metavar="PATTERN", help="Which files: a pattern over host/path; quote it.")
]
TimesOption = Annotated[
    int | None, typer.Option("--times", metavar="N", min=1, help="For how many requests; all if not given.")
]
AfterOption = Annotated[
    str, typer.Option("--after", metavar="AMOUNT", help="How much is sent before: a share (50%) or bytes (10M).")
]


@app.command("list")
def list_rules(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show the switches that are on, in the order they apply, with how often each struck.

    Example: aks-flex-lab mirror list
    """
    rules = mirror_client(ctx).rules()
    if as_json:
        console.print_json([rule.to_json() for rule in rules])
    elif rules:
        console.print_table(("ID", "SWITCH", "PATTERN", "HITS", "TIMES"), (rule_row(rule) for rule in rules))
    else:
        console.out.print("No switch is on: the mirror serves everything as it is.")


@app.command()
def slow(
    ctx: typer.Context,
    glob: PatternArgument,
    rate: Annotated[str, typer.Option("--rate", metavar="SIZE", help="Bytes a second for each download.")],
    times: TimesOption = None,
) -> None:
    """Send so many bytes a second.

    Example: aks-flex-lab mirror slow 'dl.k8s.io/*/kubelet' --rate 200k
    """
    add_fault(ctx, glob, SlowFault(parse_size(rate)), times)


@app.command()
def stall(
    ctx: typer.Context,
    glob: PatternArgument,
    after: AfterOption = "50%",
    hold: Annotated[
        float, typer.Option("--hold", metavar="SECONDS", help="When the silent connection is given up.")
    ] = 600,
    times: TimesOption = None,
) -> None:
    """Send a part, then say nothing, and keep the connection open.

    Example: aks-flex-lab mirror stall 'github.com/*/containerd-*' --after 10M --times 1
    """
    add_fault(ctx, glob, StallFault(ByteAmount.parse(after), hold), times)


@app.command()
def cut(ctx: typer.Context, glob: PatternArgument, after: AfterOption = "50%", times: TimesOption = None) -> None:
    """Send a part, then reset the connection.

    Example: aks-flex-lab mirror cut 'dl.k8s.io/*' --after 50% --times 3
    """
    add_fault(ctx, glob, CutFault(ByteAmount.parse(after)), times)


@app.command()
def corrupt(ctx: typer.Context, glob: PatternArgument, times: TimesOption = None) -> None:
    """Send the right number of bytes, some in the middle wrong.

    Example: aks-flex-lab mirror corrupt '*/runc.amd64' --times 1
    """
    add_fault(ctx, glob, CorruptFault(), times)


@app.command()
def missing(ctx: typer.Context, glob: PatternArgument, times: TimesOption = None) -> None:
    """Answer 404 Not Found.

    Example: aks-flex-lab mirror missing 'dl.k8s.io/v1.34.4/*'
    """
    add_fault(ctx, glob, StatusFault(404), times)


@app.command()
def unavailable(
    ctx: typer.Context,
    glob: PatternArgument,
    retry_after: Annotated[
        int | None, typer.Option("--retry-after", metavar="SECONDS", min=0, help="Ask the client to wait so long.")
    ] = None,
    times: TimesOption = None,
) -> None:
    """Answer 503 Service Unavailable.

    Example: aks-flex-lab mirror unavailable 'github.com/*' --retry-after 2 --times 5
    """
    add_fault(ctx, glob, StatusFault(503, retry_after), times)


@app.command()
def checksum(ctx: typer.Context, glob: PatternArgument, times: TimesOption = None) -> None:
    """Tell a wrong sum in the checksum files of what the pattern covers; the files themselves stay right.

    Example: aks-flex-lab mirror checksum 'dl.k8s.io/*/kubelet'
    """
    add_fault(ctx, glob, ChecksumFault(), times)


@app.command()
def remove(
    ctx: typer.Context, rule: Annotated[int, typer.Argument(metavar="ID", help="As `list` shows it.")]
) -> None:
    """Take one switch away.

    Example: aks-flex-lab mirror remove 3
    """
    if not mirror_client(ctx).remove(rule):
        raise UsageError(
            "mirror-fault-not-found", f"There is no switch with the ID {rule}.", "See `aks-flex-lab mirror list`."
        )
    console.message(f"Switch {rule} is off.")


@app.command()
def reset(ctx: typer.Context) -> None:
    """Take all switches away and forget what was fetched; answers that are held back are let go.

    Example: aks-flex-lab mirror reset
    """
    mirror_client(ctx).reset()
    console.message("The mirror serves everything as it is, and counts from zero.")


@app.command()
def requests(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show what was fetched, how often, and how many bytes were sent, since the last reset.

    Example: aks-flex-lab mirror requests --json
    """
    fetched = mirror_client(ctx).requests().values()
    if as_json:
        console.print_json([asdict(each) for each in fetched])
    elif fetched:
        rows = ((str(each.requests), str(each.bytes), each.path) for each in fetched)
        console.print_table(("REQUESTS", "BYTES", "PATH"), rows)
    else:
        console.out.print("Nothing was fetched since the mirror started or was reset.")


def mirror_client(ctx: typer.Context) -> MirrorClient:
    return MirrorClient(selected_layout(ctx).components / "mirror" / "control.sock")


def add_fault(ctx: typer.Context, glob: str, switch: MirrorFault, times: int | None) -> None:
    added = mirror_client(ctx).add(glob, switch, times)
    console.message(f"Switch {added.rule.id} is on: {describe_rule(added.rule)} for {count_files(added.files)}.")
    if not added.files:
        console.message("Is the pattern right? It is matched against host/path, and `*` also covers `/`.")


def count_files(files: int) -> str:
    return "1 file of the mirror" if files == 1 else f"{files} files of the mirror"


def describe_rule(rule: FaultRule) -> str:
    """A switch with its values, as in `slow rate=204800`."""
    wire = fault_to_json(rule.fault)
    kind = wire.pop("kind")
    return " ".join([kind, *(f"{name}={_plain(value)}" for name, value in wire.items() if value is not None)])


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def rule_row(rule: FaultRule) -> tuple[str, ...]:
    times = "all" if rule.times is None else str(rule.times)
    return str(rule.id), describe_rule(rule), rule.glob, str(rule.hits), times
