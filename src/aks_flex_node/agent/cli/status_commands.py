"""`preflight`, `explain`, `status`, `health`, `support-bundle`, `completion`: read-only commands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.cli.options import Config, Json, Sets, Skip

Document = dict[str, Any]

SEVERITY_MARKS = {"ok": "✓", "warning": "!", "error": "✗"}


def preflight(config: Config = None, sets: Sets = None, skip: Skip = None, json: Json = False) -> None:
    """Check whether this machine can become a node.

    Exits with 0 when it can, and with 4 when a check fails.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent import preflight as checks
    from aks_flex_node.agent.bootstrap import prerequisites
    from aks_flex_node.agent.cli.terminal_progress import TerminalProgress

    selection = context.ConfigSelection(config, sets)
    settings, _ = prerequisites.discover_cluster(context.load_config(selection).config, TerminalProgress())
    engine = context.make_engine(settings)
    findings = checks.run_checks(checks.build_context(engine), set(skip or ()))
    if json:
        terminal.print_json(
            [
                {key: getattr(finding, key) for key in ("check", "severity", "message", "remedy")}
                for finding in findings
            ]
        )
    else:
        colours = {"ok": terminal.GREEN, "warning": terminal.YELLOW, "error": terminal.RED}
        for one in findings:
            import sys

            mark = terminal.colored(SEVERITY_MARKS[one.severity], colours[one.severity], on=sys.stdout)
            terminal.print_line(f"  {mark} {one.check:<14} {one.message}")
            if one.severity != "ok" and one.remedy:
                terminal.print_line(f"    {'':<14} {one.remedy}")
    raise typer.Exit(4 if any(finding.severity == "error" for finding in findings) else 0)


def explain(
    name: Annotated[str | None, typer.Argument(help="An error name, a condition, a reason or a state.")] = None,
    json: Json = False,
) -> None:
    """Explain an error or a condition: cause, checks, remedy.

    Without a name, lists all names.

    Example: aks-flex-node explain disk-full
    """
    from aks_flex_node import error_catalog

    text, document = error_catalog.explain(name, "aks_flex_node")
    if json:
        terminal.print_json(document)
    else:
        terminal.print_line(text)


def status(
    config: Config = None,
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds.")] = False,
) -> None:
    """Show the status of this node.

    Node, versions, services, certificate, Azure Arc, VPN, drift, daemon and recent events. Without root, shows what
    the daemon and the commands of root published last, with its age and without events.
    """

    while True:
        found = _observed(config)
        if json:
            terminal.print_json(found)
        else:
            show_status(found)
        if not watch:
            return
        time.sleep(2)
        terminal.print_line()


def _observed(config: list[Path] | None) -> Document:
    """Returns the status: observed now as root, else as it was published."""
    import os

    from aks_flex_node.agent import context, public_status
    from aks_flex_node.host.real import RealHost

    if os.geteuid() == 0 or config is not None:
        return public_status.observe(context.ConfigSelection(config))
    return public_status.read_public(RealHost())


def show_status(found: Document) -> None:

    node, end = found["node"], found["certificate"]
    lines = [
        ("node", f"{node['name']}  {node['status']}" + ("" if node.get("schedulable", True) else ", cordoned")),
        ("phase", found["phase"]),
        *approval_lines(found.get("approval")),
        ("versions", "  ".join(f"{name} {version}" for name, version in found["versions"].items()) or "none"),
        ("services", "  ".join(f"{name} {unit['active']}" for name, unit in found["services"].items())),
        ("certificate", f"until {end['expires']} ({end['days']:.0f} days)" if end else _no_certificate_text(node)),
        ("arc", found["arc"]["status"]),
        ("vpn", found["vpn"]["status"]),
        ("drift", drift_summary(found)),
        *daemon_lines(found["daemon"]),
        *age_lines(found),
    ]
    for name, text in lines:
        terminal.print_line(f"{name:<12} {text}")
    if found["error"]:
        terminal.print_line(f"{'last error':<12} {found['error']['message']} ({found['error']['name']})")
    for difference in found["drift"] or ():
        terminal.print_line(f"{'':<12} {difference}")
    for event in found.get("events") or ():
        terminal.print_line(f"{'event':<12} {event['time']}  {event['message']}")


def age_lines(found: Document) -> list[tuple[str, str]]:
    """Returns the line that tells a reader without root how old the status is."""
    from aks_flex_node.agent.public_status import describe_age

    if "ageSeconds" not in found or not found["timestamp"]:
        return []
    return [("observed", f"{describe_age(found['ageSeconds'])} ago; `sudo aks-flex-node status` shows more")]


def approval_lines(found: dict[str, str] | None) -> list[tuple[str, str]]:
    """Returns the line of a machine that enrols and waits until an operator approves it."""
    if not found:
        return []
    return [("approval", f"waiting (process {found['pid']}); the key has the fingerprint {found['fingerprint']}")]


def _no_certificate_text(node: Document) -> str:
    return "none: the kubelet uses tokens of its Azure identity" if node.get("auth") == "exec" else "none"


def daemon_lines(found: Document | None) -> list[tuple[str, str]]:
    """Returns the status lines of the daemon: provider state, pending configuration, credentials, self-update."""
    if found is None:
        return []
    lines = [("agent", found["agent"])]
    version = found["configVersion"] or "of the join"
    summary = (
        f"{found['providerState']}, configuration {version}" if found["providerState"] != "Standalone" else "none"
    )
    source = found.get("source") or {}
    label = "pool" if source.get("kind") == "aksPool" else "provider"
    lines.append((label, f"{summary}: {found['message']}" if found["message"] else summary))
    lines += [("source", source_text(source))] if source else []
    if pending := found["pending"]:
        reason = f"configuration {pending['configVersion']}, {pending['reason']}: {pending['message']}"
        lines.append(("pending", reason))
    lines += [("staged", staging_text(staging))] if (staging := found.get("staging")) else []
    lines += [("credentials", found["credentials"])] if found["credentials"] else []
    lines += [("agent update", found["agentUpdate"])] if found["agentUpdate"] else []
    return lines + ([("policy", found["policy"])] if found.get("policy") else [])


def staging_text(staging: Document) -> str:
    """Returns whether the artifacts of the next configuration are on this machine."""
    what = f"pool revision {staging['poolRevision']}"
    if staging["staged"]:
        return f"{what}: downloaded and verified, not in effect"
    return f"{what}: {staging['message'] or 'not downloaded yet'}"


def source_text(source: dict[str, str]) -> str:
    """Returns where the node's configuration comes from: a provider, a pool, or the local file."""
    texts = {"provider": "provider", "aksPool": "AKS pool", "local": "local file"}
    machine = f", Machine {source['machine']}" if source.get("machine") else ""
    note = f". {source['note']}" if source.get("note") else ""
    return f"{texts[source['kind']]} {source['address']}{machine}{note}"


def drift_summary(found: Document) -> str:
    from aks_flex_node.agent.reconcile.node_state import Phase
    from aks_flex_node.agent.text import pluralize

    if found["phase"] != Phase.NODE_JOINED.value:
        return "not joined"
    if found["drift"] is None:
        return "unknown: the configuration is missing or damaged; run `aks-flex-node verify`, which says what to do"
    return pluralize(len(found["drift"]), "difference") if found["drift"] else "none"


def health(config: Config = None, json: Json = False) -> None:
    """Report whether this node is healthy.

    Exits with 0 when it is healthy, and with 1 when it is not, also when the daemon does not run or cannot sign in.
    """
    from aks_flex_node.agent import public_status
    from aks_flex_node.agent import status as facts

    found = _observed(config)
    wrong = [*facts.health_problems(found), *public_status.age_problems(found)]
    if json:
        terminal.print_json({"healthy": not wrong, "problems": wrong})
    else:
        terminal.print_line("\n".join(wrong) if wrong else "healthy")
    raise typer.Exit(1 if wrong else 0)


def support_bundle(
    config: Config = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The archive to write.")
    ] = None,
) -> None:
    """Write status and logs to an archive, without secrets."""
    from aks_flex_node.agent import context, public_status
    from aks_flex_node.agent import support_bundle as agent_support_bundle

    engine = public_status.node_engine(context.ConfigSelection(config))
    name = f"aks-flex-node-{engine.machine.hostname}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz"
    path = output or Path(name)
    agent_support_bundle.write_bundle(engine, path)
    terminal.print_line(str(path))


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")] = "bash",
) -> None:
    """Print a completion script for a shell.

    Example: aks-flex-node completion bash > /etc/bash_completion.d/aks-flex-node
    """
    from aks_flex_node.errors import CommandUsageError

    if shell not in {"bash", "zsh", "fish"}:
        raise CommandUsageError(
            "shell-unsupported", f"Completion for {shell!r} is not supported.", "Use bash, zsh or fish."
        )
    from typer._completion_shared import get_completion_script

    terminal.print_line(
        get_completion_script(prog_name="aks-flex-node", complete_var="_AKS_FLEX_NODE_COMPLETE", shell=shell)
    )


def register(app: typer.Typer) -> None:
    app.command()(preflight)
    app.command()(status)
    app.command()(health)
    app.command("support-bundle")(support_bundle)
    app.command()(explain)
    app.command()(completion)
