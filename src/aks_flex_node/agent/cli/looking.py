"""`preflight`, `status`, `health`, `support-bundle`, `completion`: looking, and changing nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.agent.cli.options import Config, Json, Sets, Skip

if TYPE_CHECKING:
    from aks_flex_node.agent.engine.engine import Engine

MARKS = {"ok": "✓", "warning": "!", "error": "✗"}


def preflight(config: Config = None, sets: Sets = None, skip: Skip = None, json: Json = False) -> None:
    """Check whether this machine can become a node: exit 0 when it can, 4 when something is in the way."""
    from aks_flex_node.agent import preflight as checks
    from aks_flex_node.agent.cli import ahead, door, screen

    settings, _ = ahead.ask_azure(door.load(door.Given(config, tuple(sets or ()))).config)
    engine = door.engine(settings)
    situation = checks.situation(engine.host, engine.config, engine.machine, engine.ledger)
    findings = checks.run_all(situation, set(skip or ()))
    if json:
        screen.facts([vars_of(finding) for finding in findings])
    else:
        colours = {"ok": screen.GREEN, "warning": screen.YELLOW, "error": screen.RED}
        for one in findings:
            import sys

            mark = screen.coloured(MARKS[one.severity], colours[one.severity], on=sys.stdout)
            screen.show(f"  {mark} {one.check:<14} {one.message}")
            if one.severity != "ok" and one.remedy:
                screen.show(f"    {'':<14} {one.remedy}")
    raise typer.Exit(4 if any(finding.severity == "error" for finding in findings) else 0)


def vars_of(finding: Any) -> dict[str, str]:
    return {key: getattr(finding, key) for key in ("check", "severity", "message", "remedy")}


def status(
    config: Config = None,
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every two seconds.")] = False,
) -> None:
    """Show how this node is: what the cluster says of it, versions, services, certificate, drift, last events."""
    from aks_flex_node.agent import status as facts
    from aks_flex_node.agent.cli import screen

    while True:
        found = facts.status(_engine(config))
        if json:
            screen.facts(found)
        else:
            show_status(found)
        if not watch:
            return
        time.sleep(2)
        screen.show()


def _engine(config: Path | None) -> Engine:
    from aks_flex_node.agent.cli import door

    door.require_root(door.LOOK)
    settings, complete = door.load_leniently(door.Given(config))
    engine = door.engine(settings)
    engine.complete = complete
    return engine


def show_status(found: dict[str, Any]) -> None:
    from aks_flex_node.agent.cli import screen

    node, end = found["node"], found["certificate"]
    lines = [
        ("node", f"{node['name']}  {node['status']}" + ("" if node.get("schedulable", True) else ", cordoned")),
        ("phase", found["phase"]),
        ("versions", "  ".join(f"{name} {version}" for name, version in found["versions"].items()) or "none"),
        ("services", "  ".join(f"{name} {unit['active']}" for name, unit in found["services"].items())),
        ("certificate", f"until {end['expires']} ({end['days']:.0f} days)" if end else _without(node)),
        ("arc", found["arc"]["status"]),
        ("vpn", found["vpn"]["status"]),
        ("drift", drift_line(found)),
        *following_lines(found["following"]),
    ]
    for name, text in lines:
        screen.show(f"{name:<12} {text}")
    if found["error"]:
        screen.show(f"{'last error':<12} {found['error']['message']} ({found['error']['name']})")
    for difference in found["drift"] or ():
        screen.show(f"{'':<12} {difference}")
    for event in found["events"]:
        screen.show(f"{'event':<12} {event['time']}  {event['message']}")


def _without(node: dict[str, Any]) -> str:
    return "none: the kubelet shows tokens of its Azure identity" if node.get("auth") == "exec" else "none"


def following_lines(found: dict[str, Any] | None) -> list[tuple[str, str]]:
    """How it stands with the provider, and what waits."""
    if found is None:
        return []
    lines = [("agent", found["agent"])]
    version = found["configVersion"] or "of the join"
    standing = f"{found['standing']}, configuration {version}"
    lines.append(("provider", f"{standing}: {found['message']}" if found["message"] else standing))
    if waiting := found["waiting"]:
        reason = f"configuration {waiting['configVersion']}, {waiting['reason']}: {waiting['message']}"
        lines.append(("waiting", reason))
    lines += [("credentials", found["credentials"])] if found["credentials"] else []
    return lines + ([("agent update", found["agentUpdate"])] if found["agentUpdate"] else [])


def drift_line(found: dict[str, Any]) -> str:
    from aks_flex_node.agent.engine.state import Phase
    from aks_flex_node.agent.words import counted

    if found["phase"] != Phase.NODE_JOINED.value:
        return "not joined"
    if found["drift"] is None:
        return "unknown: the configuration is not where it was; name it with --config"
    return counted(len(found["drift"]), "difference") if found["drift"] else "none"


def health(config: Config = None, json: Json = False) -> None:
    """Say whether this node is healthy: exit 0 when it is, 1 when it is not."""
    from aks_flex_node.agent import status as facts
    from aks_flex_node.agent.cli import screen

    wrong = facts.complaints(facts.status(_engine(config)))
    if json:
        screen.facts({"healthy": not wrong, "problems": wrong})
    else:
        screen.show("\n".join(wrong) if wrong else "healthy")
    raise typer.Exit(1 if wrong else 0)


def support_bundle(
    config: Config = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")] = None,
) -> None:
    """Pack everything that helps to find out what is wrong into one archive, without any secret."""
    from aks_flex_node.agent import support
    from aks_flex_node.agent.cli import screen

    engine = _engine(config)
    name = f"aks-flex-node-{engine.machine.hostname}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz"
    path = output or Path(name)
    support.pack(engine, path)
    screen.show(str(path))


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")] = "bash",
) -> None:
    """Print a completion script for a shell.

    Example: aks-flex-node completion bash > /etc/bash_completion.d/aks-flex-node
    """
    from aks_flex_node.agent.cli import screen
    from aks_flex_node.errors import WordsError

    if shell not in {"bash", "zsh", "fish"}:
        raise WordsError("shell-unknown", f"There is no completion for {shell!r}.", "There are: bash, zsh, fish.")
    from typer._completion_shared import get_completion_script

    screen.show(get_completion_script(prog_name="aks-flex-node", complete_var="_AKS_FLEX_NODE_COMPLETE", shell=shell))


def register(app: typer.Typer) -> None:
    app.command()(preflight)
    app.command()(status)
    app.command()(health)
    app.command("support-bundle")(support_bundle)
    app.command()(completion)
