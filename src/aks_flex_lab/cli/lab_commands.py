"""`aks-flex-lab up | down | status | logs | kubectl | rp | kubeconfig | token | principal | demo`."""

from __future__ import annotations

import secrets
import sys
import time
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import Annotated

import typer
from rich.text import Text

from aks_flex_lab import processes
from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import JsonOption, TerminalProgress, selected_layout
from aks_flex_lab.components.resource_provider import PROVIDER_COMMAND
from aks_flex_lab.demo import Demo
from aks_flex_lab.errors import ComponentError, LabError, UsageError, did_you_mean
from aks_flex_lab.files import write_atomically
from aks_flex_lab.host_requirements import require_root
from aks_flex_lab.lab import Lab
from aks_flex_lab.supervisor import COMPONENT_NAMES


def add_commands(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(down)
    app.command()(status)
    app.command()(logs)
    help_texts = {
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
    app.command(context_settings=help_texts)(kubectl)
    app.command(context_settings=help_texts)(rp)
    app.command()(kubeconfig)
    app.command()(token)
    app.command()(principal)
    app.command()(demo)


def up(
    ctx: typer.Context,
    api_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="The loopback port of the API server; a free one by default.", min=1, max=65535
        ),
    ] = None,
) -> None:
    """Bring the lab up, or whatever of it is not up yet.

    The first time it fetches or builds its tools, which can take half an hour; after that it takes seconds.
    """
    lab = Lab(selected_layout(ctx))
    start = time.monotonic()
    lab.up(TerminalProgress(), api_port)
    console.message(f"Lab {lab.layout.name} is up ({time.monotonic() - start:.1f} s). What to type next:")
    for command, what in (
        ("machine add edge-1", "an edge machine"),
        ("machine shell edge-1", "a root shell in it"),
        ("kubectl get nodes", "the cluster"),
        ("rp node list", "its resource provider"),
        ("status", "every part of the lab"),
        ("down", "take all of it away"),
    ):
        console.message(f"  {lab.command} {command:<24}{what}")


def down(ctx: typer.Context) -> None:
    """Take the lab away: every process, mount, namespace, link, control group, sysctl and file of it."""
    lab = Lab(selected_layout(ctx))
    existed = lab.exists or bool(lab.leftovers())
    start = time.monotonic()
    left = lab.down()
    if left:
        raise LabError("lab-cleanup-incomplete", f"These stay: {'; '.join(left)}.", "Run the same command again.")
    took = f"({time.monotonic() - start:.1f} s)"
    console.message(
        f"Lab {lab.layout.name} is gone; nothing of it is left. {took}" if existed else "There was nothing."
    )


def status(ctx: typer.Context, json: JsonOption = False) -> None:
    """Show every part: up or not, address, memory, since when. Exits with 1 when something is down.

    A part that should run and does not shows the last lines of its log.
    """
    require_root()
    lab = Lab(selected_layout(ctx))
    parts = lab.supervisor.states()
    machines = lab.inventory.all()
    on = {machine.name: machine.init_pid() is not None for machine in machines}
    well = bool(parts) and all(part.up for part in parts) and all(on.values())
    if json:
        machine_facts = [{**asdict(machine.record), "up": on[machine.name]} for machine in machines]
        console.print_json(
            {"lab": lab.layout.name, "up": well, "parts": [asdict(part) for part in parts], "machines": machine_facts}
        )
    elif not parts:
        console.message(f"Lab {lab.layout.name} is not up. Run `{lab.command} up`.")
    else:
        rows: list[list[str | Text]] = [
            [part.name, _state(part.up), part.address, console.megabytes(part.memory), _since(part.since)]
            for part in parts
        ]
        for machine in machines:
            pids = sorted(machine.cgroups.pids(machine.cgroup))
            memory = console.megabytes(processes.resident_bytes(pids))
            started = processes.ProcessHandle.of(init).since if (init := machine.init_pid()) else None
            rows.append([machine.name, _state(on[machine.name]), machine.record.address, memory, _since(started)])
        console.print_table(["PART", "STATE", "ADDRESS", "MEMORY", "SINCE"], rows)
        for part in parts:
            for line in part.last_lines:
                console.out.print(f"{part.name}: {line}", markup=False)
    sys.exit(0 if well else 1)


def _state(up: bool) -> Text:
    return Text("up", "green") if up else Text("down", "red")


def _since(moment: float | None) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment)) if moment else "-"


def logs(
    ctx: typer.Context,
    part: Annotated[str, typer.Argument(metavar="PART", help="A part as `status` names it, a machine, or `audit`.")],
    lines: Annotated[int, typer.Option("-n", "--lines", help="How many of the last lines.")] = 100,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines come.")] = False,
) -> None:
    """Print what a part wrote: its log, a machine's console, or the API server's audit log."""
    lab = Lab(selected_layout(ctx))
    known: dict[str, Path] = {name: log for name in COMPONENT_NAMES if (log := lab.supervisor.log(name)).exists()}
    known["audit"] = lab.control_plane.audit_log()
    known |= {machine.name: machine.console for machine in lab.inventory.all()}
    if part not in known:
        if not lab.exists:
            raise ComponentError(
                "lab-not-running", f"Lab {lab.layout.name} is not up.", "Run `aks-flex-lab up` first."
            )
        raise UsageError(
            "lab-component-unknown", f"Lab {lab.layout.name} has no part {part!r}.", did_you_mean(part, known)
        )
    sys.exit(processes.run_attached("tail", f"--lines={lines}", *(["--follow=name"] if follow else []), known[part]))


def kubectl(ctx: typer.Context) -> None:
    """Run kubectl on the lab's cluster as its administrator.

    Example: aks-flex-lab kubectl get pods -A -o wide
    """
    lab = Lab(selected_layout(ctx))
    cluster = lab.cluster
    if lab.supervisor.process("kube-apiserver") is None:
        raise ComponentError("lab-not-running", "The API server is not running.", f"Run `{lab.command} up`.")
    processes.exec_program(cluster.kubectl, f"--kubeconfig={cluster.kubeconfig}", *ctx.args)


def rp(ctx: typer.Context) -> None:
    """Run aks-flex-rp as the administrator of the lab's resource provider.

    Example: aks-flex-lab rp node list
    """
    lab = Lab(selected_layout(ctx))
    if lab.supervisor.process("provider") is None:
        raise ComponentError("lab-not-running", "The resource provider is not running.", f"Run `{lab.command} up`.")
    processes.exec_program(*PROVIDER_COMMAND, *ctx.args, env=lab.provider.environment())


def kubeconfig(
    ctx: typer.Context,
    path: Annotated[bool, typer.Option("--path", help="Print where the file is instead.")] = False,
) -> None:
    """Print a kubeconfig for the lab's cluster, usable by any program on this machine.

    Example: export KUBECONFIG=$(aks-flex-lab kubeconfig --path)
    """
    file = Lab(selected_layout(ctx)).cluster.kubeconfig
    console.out.print(str(file) if path else file.read_text(), markup=False)


def token(
    ctx: typer.Context,
    hours: Annotated[float, typer.Option(help="How long it is valid.", min=0.001, max=8760)] = 24,
) -> None:
    """Make a bootstrap token, by which a kubelet may join the lab's cluster."""
    console.out.print(Lab(selected_layout(ctx)).cluster.bootstrap_token(int(hours * 3600)))


def principal(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is called.")],
    secret_file: Annotated[Path, typer.Option(help="Where its secret is written, mode 0600.")],
) -> None:
    """Make a service principal in the lab's Entra ID, by which a node can be followed. Prints its client id.

    Example: aks-flex-lab principal edge-1 --secret-file edge-1.secret
    """
    lab = Lab(selected_layout(ctx))
    if lab.supervisor.process("azure") is None:
        raise ComponentError("lab-not-running", "The lab's Azure is not running.", f"Run `{lab.command} up`.")
    secret = secrets.token_urlsafe(24)
    write_atomically(secret_file, secret, 0o600)
    console.out.print(lab.azure.directory.service_principal(name, secret).client_id)


def demo(
    ctx: typer.Context,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lab up at the end.")] = False,
) -> None:
    """See the main job for real: a lab comes up, a machine joins, a pod runs on it, and all of it goes away."""
    lab = Lab(selected_layout(ctx))
    progress = TerminalProgress()
    times = Demo(lab, progress, lambda text: console.out.print(text, markup=False)).run(keep=keep)
    console.message("")
    for title, seconds in times.items():
        console.message(f"{title:<40}{seconds:7.1f} s")
    console.message(f"{'All of it':<40}{sum(times.values()):7.1f} s")
    if not keep:
        console.message("Done. This machine is as it was.")
        return
    console.message(f"Done. The lab is still up (`{lab.command} status`), until `{lab.command} down`.")
    console.message(f"Its dashboard: {lab.provider.dashboard}")
    console.message(
        f"Sign in with the admin key (`cat {lab.provider.key_file}`). Its certificate is the lab's own, so a"
    )
    console.message(f"browser warns of it once, or trusts {lab.provider.authority}.")
