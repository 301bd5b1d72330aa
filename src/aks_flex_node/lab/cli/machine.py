"""`aks-flex-lab machine …`: edge machines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_node.lab import agents, processes, snapshots
from aks_flex_node.lab.cli import screen
from aks_flex_node.lab.cli.options import Json, this_lab
from aks_flex_node.lab.cli.progress import ScreenProgress
from aks_flex_node.lab.errors import UsageError
from aks_flex_node.lab.lab import Lab
from aks_flex_node.lab.machines.bases import Base, System
from aks_flex_node.lab.requirements import require_root

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.lab.machines.machine import Machine

app = typer.Typer(no_args_is_help=True, help="Edge machines: real systemd hosts, each with its own disk and network.")


def names(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell's completion."""
    machines = Lab(this_lab(ctx)).inventory.all()
    return [machine.name for machine in machines if machine.name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(metavar="NAME", help="The machine.", autocompletion=names)]


def opened(ctx: typer.Context) -> Lab:
    require_root()
    lab = Lab(this_lab(ctx))
    _ = lab.cluster  # says so when the lab is not up
    return lab


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, which is its hostname, too.")],
    system: Annotated[System, typer.Option("--os", help="What it runs.", case_sensitive=False)] = System.BOOKWORM,
    site: Annotated[
        str, typer.Option(metavar="SITE", help="Where it stands; a new name makes a new site.")
    ] = "site-1",
) -> None:
    """Make a machine on a fresh disk and boot it.

    Example: aks-flex-lab machine add edge-1 --os trixie --site factory
    """
    lab = opened(ctx)
    lab.inventory.require_new(name, site)
    Base(system, lab.layout.cache).build(ScreenProgress())
    with screen.step(f"machine {name} boots {system.value}"), lab.alone():
        machine = lab.inventory.add(name, system, site)
    screen.out.print(machine.record.address)
    screen.say(f"Go inside with `{lab.command} machine shell {name}`.")


@app.command("list")
def list_(ctx: typer.Context, json: Json = False) -> None:
    """List the machines: what each runs, where it is, whether it is on."""
    rows = [_facts(machine) for machine in Lab(this_lab(ctx)).inventory.all()]
    if json:
        screen.facts(rows)
    elif rows:
        screen.table([key.upper() for key in rows[0]], ([str(value) for value in row.values()] for row in rows))
    else:
        screen.say(f"There is none yet. Make one with `{this_lab(ctx).command} machine add edge-1`.")


def _facts(machine: Machine) -> dict[str, str | int]:
    record = machine.record
    pids = sorted(machine.groups.pids(machine.leaf))
    return {
        "name": record.name,
        "os": record.system.value,
        "site": record.site,
        "address": record.address,
        "state": "on" if machine.init() else "off",
        "processes": len(pids),
        "memory": screen.megabytes(processes.resident_bytes(pids)),
    }


@app.command()
def agent(
    ctx: typer.Context,
    name: Name,
    bare: Annotated[bool, typer.Option("--bare", help="No configuration: it is to join by a URL.")] = False,
) -> None:
    """Put the agent of this checkout into a machine, and a configuration for this lab's cluster beside it.

    Example: aks-flex-lab machine agent edge-1
    """
    lab = opened(ctx)
    machine = lab.inventory.find(name)
    with screen.step(f"the agent comes to {name}"):
        agents.install(machine)
        if bare:
            return
        agents.give(machine, agents.configuration(lab))
    screen.say(f"Make it a node with `{lab.command} machine exec {name} -- aks-flex-node bootstrap`.")


@app.command("exec", context_settings={"allow_interspersed_args": False})
def exec_(
    ctx: typer.Context,
    name: Name,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, after `--`.")],
) -> None:
    """Run a command in a machine as root, and exit as it does.

    Example: aks-flex-lab machine exec edge-1 -- systemctl status
    """
    words = command[1:] if command[0] == "--" else command
    sys.exit(processes.attach(*opened(ctx).inventory.find(name).inside(*words, tty=sys.stderr.isatty())))


@app.command()
def shell(ctx: typer.Context, name: Name) -> None:
    """Open a root shell in a machine."""
    machine = opened(ctx).inventory.find(name)
    # `script` gives the shell a terminal of the machine's own, so that job control works inside.
    sys.exit(processes.attach(*machine.inside("script", "-q", "-c", "bash -l", "/dev/null", tty=True)))


@app.command()
def start(ctx: typer.Context, name: Name) -> None:
    """Boot a machine that is off."""
    lab = opened(ctx)
    with screen.step(f"machine {name} boots"), lab.alone():
        lab.inventory.find(name).start()


@app.command()
def reboot(ctx: typer.Context, name: Name) -> None:
    """Let a machine restart itself in an orderly way."""
    lab = opened(ctx)
    with screen.step(f"machine {name} restarts"), lab.alone():
        lab.inventory.find(name).reboot()


@app.command()
def cut(ctx: typer.Context, name: Name) -> None:
    """Cut a machine's power: everything in it ends at once, then it boots again on the same disk."""
    lab = opened(ctx)
    with screen.step(f"machine {name} loses its power and boots again"), lab.alone():
        lab.inventory.find(name).cut()


@app.command()
def copy(
    ctx: typer.Context, name: Name, new: Annotated[str, typer.Argument(metavar="NEW", help="The copy.")]
) -> None:
    """Make a new machine on a copy of another's disk, and boot it.

    It has its own name, address and machine id; the rest is as on the other's disk, held still while it is copied.
    """
    lab = opened(ctx)
    with screen.step(f"machine {new} boots a copy of {name}"), lab.alone():
        machine = lab.inventory.copy(lab.inventory.find(name), new)
    screen.out.print(machine.record.address)


@app.command()
def rm(ctx: typer.Context, name: Name) -> None:
    """Turn a machine off and remove it with its disk."""
    lab = opened(ctx)
    with screen.step(f"machine {name} goes"), lab.alone():
        lab.inventory.remove(lab.inventory.find(name))


@app.command()
def snapshot(ctx: typer.Context, name: Name) -> None:
    """Write down everything that makes a machine what it is, to compare it with later."""
    machine = opened(ctx).inventory.find(name)
    with screen.step(f"machine {name} is looked at"):
        snapshots.save(machine.snapshot(), _album(machine))
    screen.say(f"Compare with it by `{Lab(this_lab(ctx)).command} machine diff {name}`.")


@app.command()
def diff(ctx: typer.Context, name: Name, json: Json = False) -> None:
    """Compare a machine with its last snapshot: files, mounts, units, users, sysctls, firewall, network, processes.

    Exits with 0 when nothing differs, else with 1. What the kernel shares among machines is shown, not counted.
    """
    machine = opened(ctx).inventory.find(name)
    if not _album(machine).exists():
        raise UsageError(
            "snapshot-missing",
            f"Machine {name} has no snapshot to compare with.",
            f"Take one first: `{Lab(this_lab(ctx)).command} machine snapshot {name}`.",
        )
    found = snapshots.diff(snapshots.load(_album(machine)), machine.snapshot())
    own = [difference for difference in found if not difference.shared]
    if json:
        screen.facts([difference.document for difference in found])
    else:
        _show(name, own, [difference for difference in found if difference.shared])
    sys.exit(1 if own else 0)


def _show(name: str, own: list[snapshots.Difference], shared: list[snapshots.Difference]) -> None:
    if own:
        screen.out.print("\n".join(snapshots.render(own)), markup=False)
    else:
        screen.say(f"Machine {name} is as it was.")
    if shared:
        screen.say("The kernel, which all machines here share, is not as it was; any of them may have done it:")
        screen.say("\n".join(snapshots.render(shared)))


def _album(machine: Machine) -> Path:
    return machine.room / "snapshot.json.gz"
