"""Prometheus and its promtool: installed, or from Debian's package in the lab's cache."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from aks_flex_lab.layout import lab_layout
from aks_flex_lab.processes import CommandResult, run

PACKAGE = "prometheus"


class Promtool:
    def __init__(self, program: Path) -> None:
        self._program = program

    def __call__(self, *words: str | Path) -> CommandResult:
        return run(self._program, *words, check=False)


def promtool() -> Promtool:
    return Promtool(program_of_package("promtool"))


def program_of_package(name: str) -> Path:
    """Returns a program of the package: promtool or prometheus."""
    found = shutil.which(name)
    kept = lab_layout().cache / name / name
    if not found and not kept.exists():
        _unpack(kept)
    return Path(found) if found else kept


def _unpack(target: Path) -> None:
    """Keeps only this program of the package, which has 100 MB."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as room:
        run("apt-get", "download", "-q", PACKAGE, cwd=Path(room))
        (package,) = Path(room).glob("*.deb")
        run("dpkg-deb", "-x", package, Path(room) / "unpacked")
        (Path(room) / "unpacked" / "usr" / "bin" / target.name).replace(target)
