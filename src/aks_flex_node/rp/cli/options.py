"""Options that several commands have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from aks_flex_node.rp import settings
from aks_flex_node.rp.settings import ServiceSettings

Config = Annotated[
    Path | None, typer.Option("--config", help=f"The service's configuration; {settings.PLACE} when left out.")
]
State = Annotated[Path | None, typer.Option("--state", help="The service's state directory.")]
Name = Annotated[str, typer.Option("--name", "-n", help="Name of the node.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


def load(config: Path | None, state: Path | None, **flags: object) -> ServiceSettings:
    """Only what was said: the environment is weaker than a flag, and stronger than one that nobody gave."""
    said = {**flags, "stateDir": str(state) if state else None}
    return settings.load(config, os.environ, **{name: value for name, value in said.items() if value is not None})
