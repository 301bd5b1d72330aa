"""Paths and names of one lab: its home directory, the shared cache, and the prefix of its kernel objects."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from aks_flex_lab.errors import UsageError

LAB_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?")


@dataclass(frozen=True)
class LabLayout:
    """The paths of one lab."""

    name: str
    labs_directory: Path  # all labs of this machine
    cache: Path

    @property
    def home(self) -> Path:
        return self.labs_directory / self.name

    @property
    def pki(self) -> Path:
        return self.home / "pki"

    @property
    def components(self) -> Path:
        return self.home / "parts"

    @property
    def machines(self) -> Path:
        return self.home / "machines"

    @property
    def sites(self) -> Path:
        return self.home / "sites"

    @property
    def lock(self) -> Path:
        """The lock file of the lab, outside the lab's directory, which `down` removes while it holds the lock."""
        return Path("/run") / f"aks-flex-lab.{self.name}.lock"

    @property
    def command(self) -> str:
        """The command line that selects this lab."""
        return "aks-flex-lab" if self.name == "default" else f"aks-flex-lab --lab {self.name}"

    @property
    def prefix(self) -> str:
        """The prefix of the names of this lab's kernel objects."""
        return f"fl.{self.name}."  # Names of labs contain no dot, so no prefix matches another lab.


def lab_layout(name: str = "default", environ: dict[str, str] | None = None) -> LabLayout:
    """Returns the paths of a lab from its name and the environment, which is read only here."""
    env = dict(os.environ) if environ is None else environ
    if not LAB_NAME.fullmatch(name):
        raise UsageError(
            "lab-name-invalid",
            f"--lab {name!r} is not a valid name of a lab.",
            "Use 1 to 12 lower-case letters, digits and dashes, for example `--lab mine`.",
        )
    home = env.get("AKS_FLEX_LAB_HOME") or "/var/lib/aks-flex-lab"
    cache = env.get("AKS_FLEX_LAB_CACHE")
    if not cache:
        base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/root") / ".cache")
        cache = str(Path(base) / "aks-flex-lab")
    # Resolved, because the kernel lists mounts by their real path.
    return LabLayout(name, Path(home).resolve(), Path(cache).resolve())
