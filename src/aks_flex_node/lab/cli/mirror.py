"""`aks-flex-lab mirror …`: make downloads fail in a chosen way, and see what was downloaded."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_node.lab.cli import screen
from aks_flex_node.lab.cli.options import Json, this_lab
from aks_flex_node.lab.errors import UsageError
from aks_flex_node.lab.mirror.client import Mirror
from aks_flex_node.lab.mirror.sizes import Amount, read_size
from aks_flex_node.lab.mirror.switches import Checksum, Corrupt, Cut, Slow, Stall, Status, Switch, write_switch

if TYPE_CHECKING:
    from aks_flex_node.lab.mirror.switchboard import Rule

app = typer.Typer(
    help="The artifact mirror: make downloads slow, broken or wrong, and see what was fetched. "
    "A pattern is matched against host/path, for example 'dl.k8s.io/*/kubelet'.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Glob = Annotated[str, typer.Argument(metavar="PATTERN", help="Which files: a pattern over host/path; quote it.")]
Times = Annotated[
    int | None, typer.Option("--times", metavar="N", min=1, help="For how many requests; all if not given.")
]
After = Annotated[
    str, typer.Option("--after", metavar="AMOUNT", help="How much is sent before: a share (50%) or bytes (10M).")
]


@app.command("list")
def list_rules(ctx: typer.Context, as_json: Json = False) -> None:
    """Show the switches that are on, in the order they apply, with how often each struck.

    Example: aks-flex-lab mirror list
    """
    rules = mirror(ctx).rules()
    if as_json:
        screen.facts([rule.wire() for rule in rules])
    elif rules:
        screen.table(("ID", "SWITCH", "PATTERN", "HITS", "TIMES"), (row(rule) for rule in rules))
    else:
        screen.out.print("No switch is on: the mirror serves everything as it is.")


@app.command()
def slow(
    ctx: typer.Context,
    glob: Glob,
    rate: Annotated[str, typer.Option("--rate", metavar="SIZE", help="Bytes a second for each download.")],
    times: Times = None,
) -> None:
    """Send so many bytes a second.

    Example: aks-flex-lab mirror slow 'dl.k8s.io/*/kubelet' --rate 200k
    """
    switch_on(ctx, glob, Slow(read_size(rate)), times)


@app.command()
def stall(
    ctx: typer.Context,
    glob: Glob,
    after: After = "50%",
    hold: Annotated[
        float, typer.Option("--hold", metavar="SECONDS", help="When the silent connection is given up.")
    ] = 600,
    times: Times = None,
) -> None:
    """Send a part, then say nothing, and keep the connection open.

    Example: aks-flex-lab mirror stall 'github.com/*/containerd-*' --after 10M --times 1
    """
    switch_on(ctx, glob, Stall(Amount.read(after), hold), times)


@app.command()
def cut(ctx: typer.Context, glob: Glob, after: After = "50%", times: Times = None) -> None:
    """Send a part, then reset the connection.

    Example: aks-flex-lab mirror cut 'dl.k8s.io/*' --after 50% --times 3
    """
    switch_on(ctx, glob, Cut(Amount.read(after)), times)


@app.command()
def corrupt(ctx: typer.Context, glob: Glob, times: Times = None) -> None:
    """Send the right number of bytes, some in the middle wrong.

    Example: aks-flex-lab mirror corrupt '*/runc.amd64' --times 1
    """
    switch_on(ctx, glob, Corrupt(), times)


@app.command()
def missing(ctx: typer.Context, glob: Glob, times: Times = None) -> None:
    """Answer 404 Not Found.

    Example: aks-flex-lab mirror missing 'dl.k8s.io/v1.34.4/*'
    """
    switch_on(ctx, glob, Status(404), times)


@app.command()
def unavailable(
    ctx: typer.Context,
    glob: Glob,
    retry_after: Annotated[
        int | None, typer.Option("--retry-after", metavar="SECONDS", min=0, help="Ask the client to wait so long.")
    ] = None,
    times: Times = None,
) -> None:
    """Answer 503 Service Unavailable.

    Example: aks-flex-lab mirror unavailable 'github.com/*' --retry-after 2 --times 5
    """
    switch_on(ctx, glob, Status(503, retry_after), times)


@app.command()
def checksum(ctx: typer.Context, glob: Glob, times: Times = None) -> None:
    """Tell a wrong sum in the checksum files of what the pattern covers; the files themselves stay right.

    Example: aks-flex-lab mirror checksum 'dl.k8s.io/*/kubelet'
    """
    switch_on(ctx, glob, Checksum(), times)


@app.command()
def remove(
    ctx: typer.Context, rule: Annotated[int, typer.Argument(metavar="ID", help="As `list` shows it.")]
) -> None:
    """Take one switch away.

    Example: aks-flex-lab mirror remove 3
    """
    if not mirror(ctx).remove(rule):
        raise UsageError(
            "switch-not-found", f"There is no switch with the ID {rule}.", "See `aks-flex-lab mirror list`."
        )
    screen.say(f"Switch {rule} is off.")


@app.command()
def reset(ctx: typer.Context) -> None:
    """Take all switches away and forget what was fetched; answers that are held back are let go.

    Example: aks-flex-lab mirror reset
    """
    mirror(ctx).reset()
    screen.say("The mirror serves everything as it is, and counts from zero.")


@app.command()
def requests(ctx: typer.Context, as_json: Json = False) -> None:
    """Show what was fetched, how often, and how many bytes were sent, since the last reset.

    Example: aks-flex-lab mirror requests --json
    """
    fetched = mirror(ctx).requests().values()
    if as_json:
        screen.facts([asdict(each) for each in fetched])
    elif fetched:
        rows = ((str(each.requests), str(each.bytes), each.path) for each in fetched)
        screen.table(("REQUESTS", "BYTES", "PATH"), rows)
    else:
        screen.out.print("Nothing was fetched since the mirror started or was reset.")


def mirror(ctx: typer.Context) -> Mirror:
    return Mirror(this_lab(ctx).parts / "mirror" / "control.sock")


def switch_on(ctx: typer.Context, glob: str, switch: Switch, times: int | None) -> None:
    added = mirror(ctx).add(glob, switch, times)
    screen.say(f"Switch {added.rule.id} is on: {words(added.rule)} for {count(added.files)}.")
    if not added.files:
        screen.say("Is the pattern right? It is matched against host/path, and `*` also covers `/`.")


def count(files: int) -> str:
    return "1 file of the mirror" if files == 1 else f"{files} files of the mirror"


def words(rule: Rule) -> str:
    """A switch with its values, as in `slow rate=204800`."""
    wire = write_switch(rule.switch)
    kind = wire.pop("kind")
    return " ".join([kind, *(f"{name}={_plain(value)}" for name, value in wire.items() if value is not None)])


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def row(rule: Rule) -> tuple[str, ...]:
    times = "all" if rule.times is None else str(rule.times)
    return str(rule.id), words(rule), rule.glob, str(rule.hits), times
