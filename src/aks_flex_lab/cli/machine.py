"""`aks-flex-lab machine …`: adds, controls, compares and removes edge machines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_lab import node_agent, processes, snapshots
from aks_flex_lab.architecture import Architecture  # noqa: TC001 - typer reads it
from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import JsonOption, TerminalProgress, selected_layout
from aks_flex_lab.errors import UsageError
from aks_flex_lab.host_requirements import require_root
from aks_flex_lab.lab import Lab
from aks_flex_lab.machines.base_system import BaseSystem, DebianRelease

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.machines.machine import EdgeMachine

app = typer.Typer(no_args_is_help=True, help="Manage edge machines, which are real systemd hosts.")


MachineArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the machine.")]


def running_lab(ctx: typer.Context) -> Lab:
    require_root()
    lab = Lab(selected_layout(ctx))
    _ = lab.cluster  # raises an error when the lab is not running
    return lab


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the machine and its hostname.")],
    system: Annotated[
        DebianRelease, typer.Option("--os", help="Operating system of the machine.", case_sensitive=False)
    ] = DebianRelease.BOOKWORM,
    site: Annotated[
        str, typer.Option(metavar="SITE", help="Site of the machine; created if it does not exist.")
    ] = "site-1",
    vm: Annotated[
        bool, typer.Option("--vm", help="Create a virtual machine with its own kernel instead of a container.")
    ] = False,
    arch: Annotated[
        Architecture | None,
        typer.Option(
            "--arch", help="Architecture of a virtual machine; this host's by default.", case_sensitive=False
        ),
    ] = None,
) -> None:
    """Create a machine with a new disk and boot it.

    Example: aks-flex-lab machine add edge-1 --os trixie --site factory

    A virtual machine: aks-flex-lab machine add edge-2 --vm
    """
    if arch and not vm:
        raise UsageError(
            "arch-without-vm",
            f"--arch {arch.value} needs --vm, because it selects the architecture of a virtual machine.",
            "Run the command with `--vm`, or without `--arch`.",
        )
    lab = running_lab(ctx)
    if vm:
        machine = lab.add_virtual_machine(name, system, site, arch, TerminalProgress())
    else:
        lab.inventory.require_new(name, site)
        BaseSystem(system, lab.layout.cache).build(TerminalProgress())
        with console.step(f"machine {name} boots {system.value}"), lab.exclusive():
            machine = lab.inventory.add(name, system, site)
    console.out.print(machine.record.address)
    console.message(f"Open a shell in it with `{lab.command} machine shell {name}`.")


@app.command("list")
def list_(ctx: typer.Context, json: JsonOption = False) -> None:
    """List the machines with system, site, address and state."""
    rows = [_row(machine) for machine in Lab(selected_layout(ctx)).inventory.all()]
    if json:
        console.print_json(rows)
    elif rows:
        console.print_table([key.upper() for key in rows[0]], ([*row.values()] for row in rows))
    else:
        console.message(f"The lab has no machines. Add one with `{selected_layout(ctx).command} machine add edge-1`.")


def _row(machine: EdgeMachine) -> dict[str, str]:
    record = machine.record
    return {
        "name": record.name,
        "os": record.system.value,
        "kind": f"vm {record.arch.value}" if record.arch else "container",
        "site": record.site,
        "address": record.address,
        "state": "on" if machine.main_pid() else "off",
    }


@app.command()
def agent(
    ctx: typer.Context,
    name: MachineArgument,
    bare: Annotated[
        bool, typer.Option("--bare", help="Write no configuration, for a machine that joins with a URL.")
    ] = False,
) -> None:
    """Install the agent of this checkout in a machine.

    Also writes a configuration for this lab's cluster.

    Example: aks-flex-lab machine agent edge-1
    """
    lab = running_lab(ctx)
    machine = lab.inventory.find(name)
    with console.step(f"install the agent in {name}"):
        node_agent.install(machine)
        if bare:
            return
        node_agent.write_configuration(machine, node_agent.configuration(lab))
    console.message(f"Join it to the cluster with `{lab.command} machine exec {name} -- aks-flex-node bootstrap`.")


@app.command("exec", context_settings={"allow_interspersed_args": False})
def exec_(
    ctx: typer.Context,
    name: MachineArgument,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The command and its arguments, after `--`.")
    ],
) -> None:
    """Run a command in a machine as root, and exit with its code.

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
    # `script` allocates a terminal in the machine, so that job control works in the shell.
    sys.exit(processes.run_attached(*machine.command_inside("script", "-q", "-c", "bash -l", "/dev/null", tty=True)))


@app.command()
def start(ctx: typer.Context, name: MachineArgument) -> None:
    """Boot a machine that is off."""
    lab = running_lab(ctx)
    with console.step(f"machine {name} boots"), lab.exclusive():
        lab.inventory.find(name).start()


@app.command()
def reboot(ctx: typer.Context, name: MachineArgument) -> None:
    """Reboot a machine with an orderly shutdown."""
    lab = running_lab(ctx)
    with console.step(f"machine {name} restarts"), lab.exclusive():
        lab.inventory.find(name).reboot()


@app.command()
def cut(ctx: typer.Context, name: MachineArgument) -> None:
    """Cut the power of a machine, then boot it again.

    Kills all its processes immediately. The disk is kept; a virtual machine loses what it has not flushed to it.
    """
    lab = running_lab(ctx)
    with console.step(f"machine {name} loses power and boots again"), lab.exclusive():
        lab.inventory.find(name).power_cycle()


@app.command()
def copy(
    ctx: typer.Context,
    name: MachineArgument,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name of the new machine.")],
) -> None:
    """Create a machine with a copy of another machine's disk.

    Boots the new machine. It has its own name, address and machine ID. The other machine is paused during the copy.
    """
    lab = running_lab(ctx)
    with console.step(f"machine {new} boots a copy of {name}"), lab.exclusive():
        machine = lab.inventory.copy(lab.inventory.find(name), new)
    console.out.print(machine.record.address)


@app.command()
def rm(ctx: typer.Context, name: MachineArgument) -> None:
    """Stop a machine and remove it with its disk."""
    lab = running_lab(ctx)
    with console.step(f"remove machine {name}"), lab.exclusive():
        lab.inventory.remove(lab.inventory.find(name))


@app.command()
def snapshot(ctx: typer.Context, name: MachineArgument) -> None:
    """Record the state of a machine, to compare it later."""
    machine = running_lab(ctx).inventory.find(name)
    with console.step(f"take a snapshot of machine {name}"):
        snapshots.save(machine.snapshot(), _snapshot_file(machine))
    console.message(f"Compare the machine with it by `{Lab(selected_layout(ctx)).command} machine diff {name}`.")


@app.command()
def diff(ctx: typer.Context, name: MachineArgument, json: JsonOption = False) -> None:
    """Compare a machine with its last snapshot.

    Compares files, mounts, units, users, sysctls, firewall, network and processes. Exits with 0 when nothing differs,
    otherwise with 1. Differences in kernel state that all machines share are shown, but do not count.
    """
    machine = running_lab(ctx).inventory.find(name)
    if not _snapshot_file(machine).exists():
        raise UsageError(
            "snapshot-not-found",
            f"Machine {name} has no snapshot to compare with.",
            f"Run `{Lab(selected_layout(ctx)).command} machine snapshot {name}`.",
        )
    found = snapshots.diff(snapshots.load(_snapshot_file(machine)), machine.snapshot())
    shared = [difference for difference in found if difference.shared and machine.shares_kernel]
    own = [difference for difference in found if difference not in shared]
    if json:
        console.print_json([{**difference.document, "shared": difference in shared} for difference in found])
    else:
        if own:
            console.out.print("\n".join(snapshots.render(own)), markup=False)
        else:
            console.message(f"Machine {name} does not differ from its snapshot.")
        if shared:
            console.message("Kernel state that all machines share differs. Any of them may have changed it:")
            console.message("\n".join(snapshots.render(shared)))
    sys.exit(1 if own else 0)


def _snapshot_file(machine: EdgeMachine) -> Path:
    return machine.directory / "snapshot.json.gz"
