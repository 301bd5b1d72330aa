"""`aks-flex-lab machine …`: edge machines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_lab import node_agent, processes, snapshots
from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import JsonOption, TerminalProgress, selected_layout
from aks_flex_lab.errors import UsageError
from aks_flex_lab.host_requirements import require_root
from aks_flex_lab.lab import Lab
from aks_flex_lab.machines.base_system import BaseSystem, DebianRelease

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.machines.machine import EdgeMachine

app = typer.Typer(no_args_is_help=True, help="Edge machines: real systemd hosts, each with its own disk and network.")


def complete_machine_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell's completion."""
    machines = Lab(selected_layout(ctx)).inventory.all()
    return [machine.name for machine in machines if machine.name.startswith(incomplete)]


MachineArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The machine.", autocompletion=complete_machine_names)
]


def running_lab(ctx: typer.Context) -> Lab:
    require_root()
    lab = Lab(selected_layout(ctx))
    _ = lab.cluster  # says so when the lab is not up
    return lab


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, which is its hostname, too.")],
    system: Annotated[
        DebianRelease, typer.Option("--os", help="What it runs.", case_sensitive=False)
    ] = DebianRelease.BOOKWORM,
    site: Annotated[
        str, typer.Option(metavar="SITE", help="Where it stands; a new name makes a new site.")
    ] = "site-1",
) -> None:
    """Make a machine on a fresh disk and boot it.

    Example: aks-flex-lab machine add edge-1 --os trixie --site factory
    """
    lab = running_lab(ctx)
    lab.inventory.require_new(name, site)
    BaseSystem(system, lab.layout.cache).build(TerminalProgress())
    with console.step(f"machine {name} boots {system.value}"), lab.exclusive():
        machine = lab.inventory.add(name, system, site)
    console.out.print(machine.record.address)
    console.message(f"Go inside with `{lab.command} machine shell {name}`.")


@app.command("list")
def list_(ctx: typer.Context, json: JsonOption = False) -> None:
    """List the machines: what each runs, where it is, whether it is on."""
    rows = [_row(machine) for machine in Lab(selected_layout(ctx)).inventory.all()]
    if json:
        console.print_json(rows)
    elif rows:
        console.print_table(
            [key.upper() for key in rows[0]], ([str(value) for value in row.values()] for row in rows)
        )
    else:
        console.message(f"There is none yet. Make one with `{selected_layout(ctx).command} machine add edge-1`.")


def _row(machine: EdgeMachine) -> dict[str, str | int]:
    record = machine.record
    pids = sorted(machine.cgroups.pids(machine.cgroup))
    return {
        "name": record.name,
        "os": record.system.value,
        "site": record.site,
        "address": record.address,
        "state": "on" if machine.init_pid() else "off",
        "processes": len(pids),
        "memory": console.megabytes(processes.resident_bytes(pids)),
    }


@app.command()
def agent(
    ctx: typer.Context,
    name: MachineArgument,
    bare: Annotated[bool, typer.Option("--bare", help="No configuration: it is to join by a URL.")] = False,
) -> None:
    """Put the agent of this checkout into a machine, and a configuration for this lab's cluster beside it.

    Example: aks-flex-lab machine agent edge-1
    """
    lab = running_lab(ctx)
    machine = lab.inventory.find(name)
    with console.step(f"the agent comes to {name}"):
        node_agent.install(machine)
        if bare:
            return
        node_agent.write_configuration(machine, node_agent.configuration(lab))
    console.message(f"Make it a node with `{lab.command} machine exec {name} -- aks-flex-node bootstrap`.")


@app.command("exec", context_settings={"allow_interspersed_args": False})
def exec_(
    ctx: typer.Context,
    name: MachineArgument,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, after `--`.")],
) -> None:
    """Run a command in a machine as root, and exit as it does.

    Example: aks-flex-lab machine exec edge-1 -- systemctl status
    """
    argv = command[1:] if command[0] == "--" else command
    sys.exit(
        processes.run_attached(*running_lab(ctx).inventory.find(name).command_inside(*argv, tty=sys.stderr.isatty()))
    )


@app.command()
def shell(ctx: typer.Context, name: MachineArgument) -> None:
    """Open a root shell in a machine."""
    machine = running_lab(ctx).inventory.find(name)
    # `script` gives the shell a terminal of the machine's own, so that job control works inside.
    sys.exit(processes.run_attached(*machine.command_inside("script", "-q", "-c", "bash -l", "/dev/null", tty=True)))


@app.command()
def start(ctx: typer.Context, name: MachineArgument) -> None:
    """Boot a machine that is off."""
    lab = running_lab(ctx)
    with console.step(f"machine {name} boots"), lab.exclusive():
        lab.inventory.find(name).start()


@app.command()
def reboot(ctx: typer.Context, name: MachineArgument) -> None:
    """Let a machine restart itself in an orderly way."""
    lab = running_lab(ctx)
    with console.step(f"machine {name} restarts"), lab.exclusive():
        lab.inventory.find(name).reboot()


@app.command()
def cut(ctx: typer.Context, name: MachineArgument) -> None:
    """Cut a machine's power: everything in it ends at once, then it boots again on the same disk."""
    lab = running_lab(ctx)
    with console.step(f"machine {name} loses its power and boots again"), lab.exclusive():
        lab.inventory.find(name).power_cycle()


@app.command()
def copy(
    ctx: typer.Context, name: MachineArgument, new: Annotated[str, typer.Argument(metavar="NEW", help="The copy.")]
) -> None:
    """Make a new machine on a copy of another's disk, and boot it.

    It has its own name, address and machine id; the rest is as on the other's disk, held still while it is copied.
    """
    lab = running_lab(ctx)
    with console.step(f"machine {new} boots a copy of {name}"), lab.exclusive():
        machine = lab.inventory.copy(lab.inventory.find(name), new)
    console.out.print(machine.record.address)


@app.command()
def rm(ctx: typer.Context, name: MachineArgument) -> None:
    """Turn a machine off and remove it with its disk."""
    lab = running_lab(ctx)
    with console.step(f"machine {name} goes"), lab.exclusive():
        lab.inventory.remove(lab.inventory.find(name))


@app.command()
def snapshot(ctx: typer.Context, name: MachineArgument) -> None:
    """Write down everything that makes a machine what it is, to compare it with later."""
    machine = running_lab(ctx).inventory.find(name)
    with console.step(f"machine {name} is looked at"):
        snapshots.save(machine.snapshot(), _snapshot_file(machine))
    console.message(f"Compare with it by `{Lab(selected_layout(ctx)).command} machine diff {name}`.")


@app.command()
def diff(ctx: typer.Context, name: MachineArgument, json: JsonOption = False) -> None:
    """Compare a machine with its last snapshot: files, mounts, units, users, sysctls, firewall, network, processes.

    Exits with 0 when nothing differs, else with 1. What the kernel shares among machines is shown, not counted.
    """
    machine = running_lab(ctx).inventory.find(name)
    if not _snapshot_file(machine).exists():
        raise UsageError(
            "snapshot-not-found",
            f"Machine {name} has no snapshot to compare with.",
            f"Take one first: `{Lab(selected_layout(ctx)).command} machine snapshot {name}`.",
        )
    found = snapshots.diff(snapshots.load(_snapshot_file(machine)), machine.snapshot())
    own = [difference for difference in found if not difference.shared]
    if json:
        console.print_json([difference.document for difference in found])
    else:
        _show(name, own, [difference for difference in found if difference.shared])
    sys.exit(1 if own else 0)


def _show(name: str, own: list[snapshots.SnapshotDifference], shared: list[snapshots.SnapshotDifference]) -> None:
    if own:
        console.out.print("\n".join(snapshots.render(own)), markup=False)
    else:
        console.message(f"Machine {name} is as it was.")
    if shared:
        console.message("The kernel, which all machines here share, is not as it was; any of them may have done it:")
        console.message("\n".join(snapshots.render(shared)))


def _snapshot_file(machine: EdgeMachine) -> Path:
    return machine.directory / "snapshot.json.gz"
