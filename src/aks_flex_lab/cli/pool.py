"""`aks-flex-lab pool …`: creates flex node pools of AKS in the lab's cluster; az does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import selected_layout
from aks_flex_lab.cli.lab_commands import provide_versions
from aks_flex_lab.errors import ComponentError, UsageError
from aks_flex_lab.host_requirements import require_root
from aks_flex_lab.lab import Lab
from aks_flex_lab.pools import LabPools, pool_id

if TYPE_CHECKING:
    from collections.abc import Iterable

app = typer.Typer(no_args_is_help=True, help="Create flex node pools of AKS, which the released az cannot.")

PoolArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pool.")]


def running_pools(ctx: typer.Context, version: str = "") -> LabPools:
    """Returns the pools of a running lab, whose mirror serves this version of Kubernetes."""
    require_root()
    lab = Lab(selected_layout(ctx))
    if lab.supervisor.process("azure") is None:
        raise ComponentError("lab-not-running", "The lab's Azure is not running.", f"Run `{lab.command} up`.")
    provide_versions(lab, ("--kubernetes-version", version))
    return LabPools(lab)


@app.command()
def add(
    ctx: typer.Context,
    name: PoolArgument,
    *,
    version: Annotated[
        str, typer.Option("--version", metavar="VERSION", help="Kubernetes version, not newer than the cluster.")
    ] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Label of the nodes. Repeatable.")
    ] = None,
) -> None:
    """Create a pool, or change its settings.

    The settings apply to machines that join later. Prints the resource ID.

    Example: aks-flex-lab pool add edge --version 1.35.4 --label site=north
    """
    settings = {
        **({"orchestratorVersion": version} if version else {}),
        **({"nodeLabels": _labels(label)} if label else {}),
    }
    running_pools(ctx, version).put(name, settings)
    console.out.print(pool_id(name))
    console.message(f"Get its bootstrap data with `{selected_layout(ctx).command} pool bootstrap-data {name}`.")


@app.command("bootstrap-data")
def bootstrap_data(ctx: typer.Context, name: PoolArgument) -> None:
    """Print new bootstrap data of a pool.

    The format is that of `az aks nodepool get-bootstrap-data`. It contains a bootstrap token
    of the cluster that is valid for one hour.

    Example: aks-flex-lab pool bootstrap-data edge > base-config.json
    """
    console.print_json(running_pools(ctx).bootstrap_data(name))


def _labels(pairs: Iterable[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError("lab-label-invalid", f"{pair!r} is not KEY=VALUE.", "For example site=north.")
        labels[key] = value
    return labels
