"""`aks-flex-lab pool …`: flex node pools of AKS in the lab's cluster, and their Machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import JsonOption, selected_layout
from aks_flex_lab.cli.lab_commands import provide_versions
from aks_flex_lab.errors import ComponentError, UsageError
from aks_flex_lab.host_requirements import require_root
from aks_flex_lab.lab import Lab
from aks_flex_lab.pools import LabPools, pool_id

if TYPE_CHECKING:
    from collections.abc import Iterable

app = typer.Typer(no_args_is_help=True, help="Manage flex node pools of AKS, and their Machines.")

PoolArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pool.")]
MachineArgument = Annotated[str, typer.Argument(metavar="MACHINE", help="Name of the Machine in the pool.")]
VersionOption = Annotated[
    str, typer.Option("--version", metavar="VERSION", help="Kubernetes version, not newer than the cluster.")
]
MaxPodsOption = Annotated[int | None, typer.Option(metavar="N", help="Largest number of pods on a node.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Label of the nodes. Repeatable.")
]
TaintOption = Annotated[
    list[str] | None, typer.Option("--taint", metavar="KEY=VALUE:EFFECT", help="Taint of the nodes. Repeatable.")
]
UnavailableOption = Annotated[
    str, typer.Option("--max-unavailable", metavar="N", help="How many nodes an upgrade may disturb: 1, or 50%.")
]


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
    version: VersionOption = "",
    max_pods: MaxPodsOption = None,
    label: LabelOption = None,
    taint: TaintOption = None,
    max_unavailable: UnavailableOption = "",
) -> None:
    """Create a pool, or change its settings.

    The settings apply to machines that join later. Prints the resource ID.

    Example: aks-flex-lab pool add edge --version 1.35.4 --label site=north
    """
    upgrade = {"upgradeSettings": {"maxUnavailable": max_unavailable}} if max_unavailable else {}
    running_pools(ctx, version).put(name, {**_settings(version, max_pods, label, taint), **upgrade})
    console.out.print(pool_id(name))
    console.message(f"Get its bootstrap data with `{selected_layout(ctx).command} pool bootstrap-data {name}`.")


@app.command("list")
def list_(ctx: typer.Context, json: JsonOption = False) -> None:
    """List the pools with version, state and number of Machines."""
    pools = running_pools(ctx)
    found = pools.list()
    if json:
        console.print_json(found)
        return
    rows = []
    for each in found:
        properties, machines = each["properties"], pools.machines(each["name"])
        version, state = properties["orchestratorVersion"], properties["provisioningState"]
        rows.append([each["name"], version, state, str(len(machines)), _error(properties)])
    console.print_table(["POOL", "VERSION", "STATE", "MACHINES", "ERROR"], rows)


@app.command()
def show(ctx: typer.Context, name: PoolArgument) -> None:
    """Print a pool as ARM returns it, in JSON."""
    console.print_json(running_pools(ctx).show(name))


@app.command("bootstrap-data")
def bootstrap_data(ctx: typer.Context, name: PoolArgument) -> None:
    """Print new bootstrap data of a pool.

    The format is that of `az aks nodepool get-bootstrap-data`. It contains a bootstrap token
    of the cluster that is valid for one hour.

    Example: aks-flex-lab pool bootstrap-data edge > base-config.json
    """
    console.print_json(running_pools(ctx).bootstrap_data(name))


@app.command()
def upgrade(
    ctx: typer.Context,
    name: PoolArgument,
    version: VersionOption,
    max_unavailable: UnavailableOption = "",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until the upgrade ends.")] = False,
) -> None:
    """Upgrade all Machines of a pool.

    Cordons, drains and deletes their Nodes, which return with the new version.

    Example: aks-flex-lab pool upgrade edge --version 1.36.3
    """
    settings = {"upgradeSettings": {"maxUnavailable": max_unavailable}} if max_unavailable else {}
    with console.step(f"upgrade of pool {name} to {version}"):
        running_pools(ctx, version).put(name, {"orchestratorVersion": version, **settings}, wait=not no_wait)


@app.command()
def delete(ctx: typer.Context, name: PoolArgument) -> None:
    """Delete a pool that has no Machines."""
    running_pools(ctx).delete(name)
    console.message(f"Pool {name} is deleted.")


@app.command()
def machines(ctx: typer.Context, name: PoolArgument, json: JsonOption = False) -> None:
    """List the Machines of a pool with version, state and eTag."""
    found = running_pools(ctx).machines(name)
    if json:
        console.print_json(found)
        return
    columns = ["MACHINE", "VERSION", "NODE VERSION", "STATE", "NODE", "ETAG", "ERROR"]
    console.print_table(columns, (_machine_row(each) for each in found))


@app.command("set-machine")
def set_machine(
    ctx: typer.Context,
    name: PoolArgument,
    machine: MachineArgument,
    *,
    version: VersionOption = "",
    max_pods: MaxPodsOption = None,
    label: LabelOption = None,
    taint: TaintOption = None,
) -> None:
    """Change the settings of a Machine.

    Works as `az aks machine update`, and prints the eTag. Labels and taints replace the earlier ones. A new version
    becomes effective when the Node is deleted.

    Example: aks-flex-lab pool set-machine edge edge-1 --label tier=gold
    """
    made = running_pools(ctx, version).put_machine(name, machine, _settings(version, max_pods, label, taint))
    console.out.print(made["properties"]["eTag"])


@app.command("delete-machines")
def delete_machines(
    ctx: typer.Context,
    name: PoolArgument,
    machine: Annotated[list[str], typer.Argument(metavar="MACHINE...", help="Names of the Machines.")],
) -> None:
    """Delete Machines from a pool.

    Their Nodes are drained and tainted, so that their agents reset the hosts.
    """
    running_pools(ctx).delete_machines(name, machine)
    console.message(f"Deleted: {', '.join(machine)}.")


def _settings(
    version: str, max_pods: int | None, label: Iterable[str] | None, taint: Iterable[str] | None
) -> dict[str, Any]:
    settings = {
        "orchestratorVersion": version or None,
        "maxPods": max_pods,
        "nodeLabels": _labels(label) if label else None,
        "nodeTaints": list(taint) if taint else None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _labels(pairs: Iterable[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError("lab-label-invalid", f"{pair!r} is not KEY=VALUE.", "For example site=north.")
        labels[key] = value
    return labels


def _machine_row(machine: dict[str, Any]) -> list[str]:
    properties = machine["properties"]
    kubernetes, status = properties["kubernetes"], properties["status"]
    node = "Ready" if status.get("vmState") == "Running" else "-"
    versions = (kubernetes["orchestratorVersion"], kubernetes["currentOrchestratorVersion"])
    return [machine["name"], *versions, properties["provisioningState"], node, properties["eTag"], _error(properties)]


def _error(properties: dict[str, Any]) -> str:
    return str(((properties.get("status") or {}).get("provisioningError") or {}).get("message") or "-")
