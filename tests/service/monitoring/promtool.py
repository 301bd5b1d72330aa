"""Prometheus' promtool: installed, or from Debian's package in the lab's cache."""

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
    found = shutil.which("promtool")
    kept = lab_layout().cache / "promtool" / "promtool"
    if not found and not kept.exists():
        _unpack(kept)
    return Promtool(Path(found) if found else kept)


def _unpack(target: Path) -> None:
    """Keeps only this program of the package, which has 100 MB."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as room:
        run("apt-get", "download", "-q", PACKAGE, cwd=Path(room))
        (package,) = Path(room).glob("*.deb")
        run("dpkg-deb", "-x", package, Path(room) / "unpacked")
        (Path(room) / "unpacked" / "usr" / "bin" / "promtool").replace(target)
