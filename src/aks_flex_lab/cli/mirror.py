"""`aks-flex-lab mirror …`: manages the fault rules of the artifact mirror and shows its requests."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import JsonOption, selected_layout
from aks_flex_lab.mirror.control import MirrorClient
from aks_flex_lab.mirror.fault_rules import FAULTS, VALUES, fault_from_texts, fault_to_texts

if TYPE_CHECKING:
    from aks_flex_lab.mirror.fault_rules import FaultRule

app = typer.Typer(
    help="Inject faults into downloads from the artifact mirror.\n\n"
    "A pattern matches host/path, for example 'dl.k8s.io/*/kubelet'.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("list")
def list_rules(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the fault rules with the number of affected requests.

    The rules apply in the order of the list.

    Example: aks-flex-lab mirror list
    """
    rules = mirror_client(ctx).rules()
    if as_json:
        console.print_json([rule.document for rule in rules])
    elif rules:
        console.print_table(("ID", "FAULT", "PATTERN", "HITS", "TIMES"), (rule_row(rule) for rule in rules))
    else:
        console.out.print("No fault rule is active: the mirror serves all files unchanged.")


@app.command()
def add(
    ctx: typer.Context,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Pattern for host/path of the files; quote it.")],
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"The kind of fault: {', '.join(FAULTS)}.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help=f"Values of the fault: {', '.join(VALUES)}."),
    ] = None,
    times: Annotated[
        int | None, typer.Option("--times", metavar="N", min=1, help="Number of requests to affect; all by default.")
    ] = None,
) -> None:
    """Make downloads fail for files that match a pattern.

    Limit the rate: aks-flex-lab mirror add 'dl.k8s.io/*/kubelet' slow rate=200k

    Send a part, then reset: aks-flex-lab mirror add 'dl.k8s.io/*' cut after=10M --times 3

    Send a part, then nothing: aks-flex-lab mirror add 'github.com/*' stall after=50% hold=600

    Refuse: aks-flex-lab mirror add '*' status code=503 retry_after=2
    """
    pairs = dict(pair.partition("=")[::2] for pair in values or ())
    added = mirror_client(ctx).add(pattern, fault_from_texts({**pairs, "kind": kind}), times)
    files = "1 file" if added.files == 1 else f"{added.files} files"
    console.message(f"Fault rule {added.rule.id} is active: {describe(added.rule)} for {files} of the mirror.")
    if not added.files:
        console.message("Check the pattern: it must match host/path, and `*` also matches `/`.")


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


def describe(rule: FaultRule) -> str:
    """Returns a fault rule with its values, for example `slow rate=204800`."""
    texts = fault_to_texts(rule.fault)
    return " ".join([texts.pop("kind"), *(f"{name}={value}" for name, value in texts.items())])


def rule_row(rule: FaultRule) -> tuple[str, ...]:
    times = "all" if rule.times is None else str(rule.times)
    return str(rule.id), describe(rule), rule.glob, str(rule.hits), times
