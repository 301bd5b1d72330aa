"""`aks-flex-lab up | down | status | logs | kubectl | rp | az | kubeconfig | token | principal | demo`."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from itertools import pairwise, takewhile
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from aks_flex_lab import processes
from aks_flex_lab.azure_cli import LabAzureCli
from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import JsonOption, TerminalProgress, selected_layout
from aks_flex_lab.components.resource_provider import PROVIDER_COMMAND
from aks_flex_lab.demo import DEMO_TOOLS, Demo
from aks_flex_lab.errors import ComponentError, LabError, UsageError, did_you_mean
from aks_flex_lab.host_requirements import require_root
from aks_flex_lab.lab import Lab
from aks_flex_lab.principals import SCOPES, LabPrincipals, find_role
from aks_flex_lab.supervisor import COMPONENT_NAMES, OPTIONAL_COMPONENTS
from aks_flex_lab.tools.catalog import TOOLS
from aks_flex_rp.cli.output import COMMAND_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence


VERSION_OPTIONS = {
    "--kubernetes-version": "kubernetes",
    "--containerd-version": "containerd",
    "--runc-version": "runc",
    "--cni-version": "cni-plugins",
    "--npd-version": "node-problem-detector",
}


def add_commands(app: typer.Typer) -> None:
    help_texts = {
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
    for command in (up, down, status, logs, kubeconfig, token, principal, demo):
        app.command()(command)
    for program in (kubectl, rp, az):
        app.command(context_settings=help_texts)(program)


def up(
    ctx: typer.Context,
    api_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="Loopback port of the API server; a free port by default.", min=1, max=65535
        ),
    ] = None,
) -> None:
    """Start the lab, or the components of it that are not running.

    The first start downloads or builds the tools that a lab runs, which can take a quarter of an hour. Later
    starts take seconds.
    """
    lab = Lab(selected_layout(ctx))
    start = time.monotonic()
    lab.up(TerminalProgress(), api_port)
    console.message(f"Lab {lab.layout.name} is running ({time.monotonic() - start:.1f} s). Next commands:")
    for command, what in (
        ("machine add edge-1", "add an edge machine"),
        ("machine shell edge-1", "open a root shell in it"),
        ("kubectl get nodes", "use the cluster"),
        ("rp node list", "use the resource provider"),
        ("status", "show all components"),
        ("down", "remove the lab"),
    ):
        console.message(f"  {lab.command} {command:<24}{what}")


def down(ctx: typer.Context) -> None:
    """Remove the lab with all its machines.

    Stops its processes, removes its mounts, namespaces, links, cgroups and files, and restores sysctls.
    """
    lab = Lab(selected_layout(ctx))
    existed = lab.exists or bool(lab.leftovers())
    start = time.monotonic()
    left = lab.down()
    if left:
        raise LabError(
            "lab-cleanup-incomplete",
            f"These resources of the lab still exist: {'; '.join(left)}.",
            "Run the same command again.",
        )
    took = f"({time.monotonic() - start:.1f} s)"
    console.message(
        f"Lab {lab.layout.name} is removed. {took}" if existed else f"Lab {lab.layout.name} does not exist."
    )


def status(ctx: typer.Context, json: JsonOption = False) -> None:
    """Show the state of every component and machine.

    Also shows addresses, and the last lines of the log of a component that is down. Exits with 1 when a component or
    machine is down.
    """
    require_root()
    lab = Lab(selected_layout(ctx))
    components = lab.supervisor.states()
    machines = lab.inventory.all()
    on = {machine.name: machine.main_pid() is not None for machine in machines}
    well = bool(components) and all(component.up for component in components) and all(on.values())
    if json:
        machine_facts = [{**machine.record.document, "up": on[machine.name]} for machine in machines]
        console.print_json(
            {
                "lab": lab.layout.name,
                "up": well,
                "parts": [asdict(component) for component in components],
                "machines": machine_facts,
            }
        )
    elif not components:
        console.message(f"Lab {lab.layout.name} is not running. Run `{lab.command} up`.")
    else:
        rows = [(each.name, _state(each.up), each.address) for each in components]
        rows += [(each.name, _state(on[each.name]), each.record.address) for each in machines]
        console.print_table(["COMPONENT", "STATE", "ADDRESS"], rows)
        for component in components:
            for line in component.last_lines:
                console.out.print(f"{component.name}: {line}", markup=False)
    sys.exit(0 if well else 1)


def _state(up: bool) -> Text:
    return Text("up", "green") if up else Text("down", "red")


def logs(
    ctx: typer.Context,
    component: Annotated[
        str, typer.Argument(metavar="COMPONENT", help="A component or machine, as in `status`, or `audit`.")
    ],
    lines: Annotated[int, typer.Option("-n", "--lines", metavar="N", help="Number of lines to print.")] = 100,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines as they are written.")] = False,
) -> None:
    """Print the log of a component or the console of a machine.

    `audit` prints the audit log of the API server.
    """
    lab = Lab(selected_layout(ctx))
    names = (*COMPONENT_NAMES, *OPTIONAL_COMPONENTS)
    known: dict[str, Path] = {name: log for name in names if (log := lab.supervisor.log(name)).exists()}
    known["audit"] = lab.control_plane.audit_log()
    known |= {machine.name: machine.console for machine in lab.inventory.all()}
    if component not in known:
        if not lab.exists:
            raise ComponentError(
                "lab-not-running", f"Lab {lab.layout.name} is not running.", "Run `aks-flex-lab up`."
            )
        raise UsageError(
            "lab-component-unknown",
            f"Lab {lab.layout.name} has no component {component!r}.",
            did_you_mean(component, known),
        )
    sys.exit(
        processes.run_attached("tail", f"--lines={lines}", *(["--follow=name"] if follow else []), known[component])
    )


def kubectl(ctx: typer.Context) -> None:
    """Run kubectl as the administrator of the lab's cluster.

    Example: aks-flex-lab kubectl get pods -A -o wide
    """
    lab = Lab(selected_layout(ctx))
    if _asks_for_help(ctx):
        processes.exec_program(lab.toolbox.path("kubernetes", "kubectl"), *ctx.args)
    cluster = lab.cluster
    if lab.supervisor.process("kube-apiserver") is None:
        raise ComponentError("lab-not-running", "The API server is not running.", f"Run `{lab.command} up`.")
    processes.exec_program(cluster.kubectl, f"--kubeconfig={cluster.kubeconfig}", *ctx.args)


def rp(ctx: typer.Context) -> None:
    """Run aks-flex-rp as the administrator of the lab's provider.

    Example: aks-flex-lab rp node list
    """
    lab = Lab(selected_layout(ctx))
    named = {COMMAND_VARIABLE: f"{lab.command} rp"}
    if _asks_for_help(ctx):
        processes.exec_program(*PROVIDER_COMMAND, *ctx.args, env=named)
    if lab.supervisor.process("provider") is None:
        raise ComponentError("lab-not-running", "The resource provider is not running.", f"Run `{lab.command} up`.")
    provide_versions(lab, ctx.args)
    processes.exec_program(*PROVIDER_COMMAND, *ctx.args, env={**lab.provider.environment(), **named})


def az(ctx: typer.Context) -> None:
    """Run the Azure CLI as an owner of the lab's resource group.

    It has the extension `aks flex-node` of this checkout. The first run prepares it, which takes a minute.

    Example: aks-flex-lab az aks flex-node list -g lab --cluster lab -o table
    """
    lab = Lab(selected_layout(ctx))
    if lab.supervisor.process("azure") is None:
        raise _azure_not_running(lab)
    cli = LabAzureCli(lab)
    cli.prepare(TerminalProgress())
    provide_versions(lab, ctx.args)
    processes.exec_program(*cli.command(*ctx.args), env=cli.environment)


def provide_versions(lab: Lab, arguments: Sequence[str]) -> None:
    """Installs the versions of programs that options such as `--runc-version 1.4.0` name, if the catalog has them."""
    words = [part for word in arguments for part in word.split("=", 1)]
    wanted = [
        f"{VERSION_OPTIONS[option]}@{version.removeprefix('v')}"
        for option, version in pairwise(words)
        if option in VERSION_OPTIONS
    ]
    in_catalog = {tool.selector for tool in TOOLS}
    if tools := [selector for selector in wanted if selector in in_catalog]:
        lab.provide(tools, TerminalProgress())


def _azure_not_running(lab: Lab) -> ComponentError:
    return ComponentError("lab-not-running", "The lab's Azure is not running.", f"Run `{lab.command} up`.")


def _asks_for_help(ctx: typer.Context) -> bool:
    """Help works also without a running lab. The words after `--` are for another program."""
    return any(word in {"-h", "--help"} for word in takewhile(lambda word: word != "--", ctx.args))


def kubeconfig(
    ctx: typer.Context,
    path: Annotated[bool, typer.Option("--path", help="Print the path of the file instead.")] = False,
) -> None:
    """Print the administrator's kubeconfig of the lab's cluster.

    Example: export KUBECONFIG=$(aks-flex-lab kubeconfig --path)
    """
    file = Lab(selected_layout(ctx)).cluster.kubeconfig
    console.out.print(str(file) if path else file.read_text(), markup=False)


def token(
    ctx: typer.Context,
    hours: Annotated[float, typer.Option(help="Hours until it expires.", min=0.001, max=8760)] = 24,
) -> None:
    """Create a bootstrap token for a kubelet to join the cluster."""
    console.out.print(Lab(selected_layout(ctx)).cluster.bootstrap_token(int(hours * 3600)))


def principal(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the principal.")],
    *,
    secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Service principal: file for its secret, with mode 0600.")
    ] = None,
    certificate_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Service principal: file for its certificate and key, with mode 0600."),
    ] = None,
    machine: Annotated[
        str, typer.Option(metavar="MACHINE", help="Managed identity of this machine, without a credential.")
    ] = "",
    role: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="Azure role to assign: name or GUID. Repeatable.")
    ] = None,
    scope: Annotated[
        str, typer.Option(metavar="SCOPE", help="Scope of the roles: cluster, group, or a resource ID.")
    ] = "cluster",
    json: JsonOption = False,
) -> None:
    """Create a service principal or a managed identity.

    A managed node can use it as its identity. Prints its client ID.

    Example: aks-flex-lab principal edge-1 --secret-file edge-1.secret
    """
    if [bool(each) for each in (secret_file, certificate_file, machine)].count(True) != 1:
        raise UsageError(
            "principal-credential-invalid",
            "A principal needs exactly one credential.",
            "Set one of --secret-file, --certificate-file and --machine.",
        )
    roles, where = [find_role(each) for each in role or ()], SCOPES.get(scope, scope)
    lab = Lab(selected_layout(ctx))
    if lab.supervisor.process("azure") is None:
        raise _azure_not_running(lab)
    principals = LabPrincipals(lab.azure)
    if secret_file:
        made = principals.with_secret(name, secret_file)
    elif certificate_file:
        made = principals.with_certificate(name, certificate_file)
    else:
        made = principals.of_machine(name, lab.inventory.find(machine))
    principals.assign(made, roles, where)
    known = {"name": name, "kind": made.kind, "clientId": made.client_id, "objectId": made.object_id}
    if json:
        console.print_json({**known, "tenantId": lab.azure.directory.tenant, "roles": [each.name for each in roles]})
    else:
        console.out.print(made.client_id)


def demo(
    ctx: typer.Context,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the lab running at the end.")] = False,
) -> None:
    """Run the demo: join, update, upgrade, repair and remove a node.

    Starts a lab with one machine, enrols three more with one URL, rolls a bad version out to them, and
    removes it at the end.
    """
    lab = Lab(selected_layout(ctx), DEMO_TOOLS)
    progress = TerminalProgress()
    times = Demo(lab, progress, lambda text: console.out.print(text, markup=False)).run(keep=keep)
    console.message("")
    for title, seconds in times.items():
        console.message(f"{title:<72}{seconds:7.1f} s")
    console.message(f"{'Total':<72}{sum(times.values()):7.1f} s")
    if not keep:
        console.message("Done. The lab is removed.")
        return
    console.message(
        f"Done. The lab is still running: see `{lab.command} status`. Remove it with `{lab.command} down`."
    )
    console.message(f"Dashboard: {lab.provider.dashboard}")
    console.message(
        f"Sign in with the admin key (`cat {lab.provider.key_file}`). The lab's CA signed its certificate, so"
    )
    console.message(f"the browser shows a warning unless it trusts {lab.provider.authority}.")
