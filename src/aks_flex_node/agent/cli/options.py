"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option("--config", "--config-file", "-c", metavar="FILE", help="The configuration, JSON or YAML."),
]
ConfigUrl = Annotated[
    str | None, typer.Option("--config-url", metavar="URL", help="Fetch the configuration from this URL.")
]
ConfigUrlFile = Annotated[
    str | None,
    typer.Option("--config-url-file", metavar="FILE", help="The same URL, from a file; `-` for standard input."),
]
HttpToLoopback = Annotated[
    bool,
    typer.Option("--http-to-loopback", help="Take a URL with http:// to a loopback address: a tunnel."),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, over file and environment.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Skip = Annotated[
    list[str] | None, typer.Option("--skip", metavar="CHECK", help="Leave out a check of preflight; `all` for all.")
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="COMPONENT", help="Just this component; repeatable.")
]
From = Annotated[str, typer.Option("--from", metavar="COMPONENT", help="This component and those after it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
