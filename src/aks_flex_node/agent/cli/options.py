"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        "--config-file",
        "-c",
        metavar="FILE",
        help="Configuration file, JSON or YAML. Repeatable: a later file overrides an earlier one.",
    ),
]
ConfigUrl = Annotated[
    str | None, typer.Option("--config-url", metavar="URL", help="Fetch the configuration from this URL.")
]
ConfigUrlFile = Annotated[
    str | None,
    typer.Option("--config-url-file", metavar="FILE", help="Read the URL from a file; `-` for standard input."),
]
AksPool = Annotated[
    str | None,
    typer.Option("--aks-pool", metavar="ID", help="Join this flex node pool of AKS; its resource ID."),
]
HttpToLoopback = Annotated[
    bool,
    typer.Option("--http-to-loopback", help="Accept an http:// URL of a loopback address (SSH tunnel)."),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Skip = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="CHECK", help="Skip a preflight check; repeatable."),
]
SkipPhase = Annotated[
    list[str] | None,
    typer.Option("--skip-phase", metavar="PHASE", help="Skip an optional phase of `bootstrap --list`; repeatable."),
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="PHASE", help="Only this phase of a component; repeatable.")
]
From = Annotated[str, typer.Option("--from", metavar="PHASE", help="Start with this phase of a component.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
NoInput = Annotated[bool, typer.Option("--no-input", help="Never ask, for example to sign in to Azure.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the actions without applying them.")]
