"""Tools that come as Python packages: pinned by hash, each in a folder of its own, for one Python.

A folder and no virtual environment, because machines borrow it, and their Python stands elsewhere than ours. Which
files Python adds to it by running it is Python's affair, so nothing but its name says that it is whole.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.lab import processes
from aks_flex_node.lab.errors import ToolError
from aks_flex_node.lab.tools.golang import check_space, pip
from aks_flex_node.lab.tools.recipes import MODULES

if TYPE_CHECKING:
    from aks_flex_node.lab.progress import Progress

OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SECONDS = 900.0
# With the Python that made it, else with that of the machine which borrowed it.
COMMAND = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
for python in {pythons}; do
    command -v "$python" >/dev/null && exec "$python" -I "$here/start.py" "$@"
done
echo "There is no Python {version} here." >&2
exit 127
"""
START = """import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "packages"))
runpy.run_module("{module}", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class PythonTool:
    name: str
    release: str
    module: str  # what Python runs
    commands: tuple[str]  # what a person types for it
    ask: tuple[str, ...]  # the words that make it tell its version
    python: str = OWN_PYTHON
    megabytes: int = 400

    @property
    def version(self) -> str:
        return f"{self.release}-py{self.python}"

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def requirements(self) -> Path:
        return MODULES / f"{self.name}-{self.release}" / "requirements.txt"


@dataclass(frozen=True)
class Folder:
    """The place of one such tool in the cache."""

    root: Path
    tool: PythonTool
    arch: str

    @property
    def place(self) -> Path:
        made_from = (self.tool.requirements.read_bytes(), COMMAND.encode(), START.encode())
        key = hashlib.sha256(b"\0".join(made_from)).hexdigest()[:12]
        return self.root / f"{self.tool.name}-{self.tool.version}-{self.arch}-{key}"

    @property
    def ready(self) -> bool:
        return self.place.exists()

    def make(self, progress: Progress) -> None:
        """Install it beside its place, and move it there when it is whole and runs."""
        start = time.monotonic()
        bench = self.place.with_name(f".{self.place.name}.partial")
        shutil.rmtree(bench, ignore_errors=True)
        check_space(self.tool.megabytes, [self.root])
        with progress.working(self.tool.title, lambda: f"installing, {_count(bench)} packages are there"):
            self._fill(bench)
            self._try(bench)
            os.sync()
            bench.rename(self.place)
        progress.done(self.tool.title, "installed", time.monotonic() - start)

    def _fill(self, bench: Path) -> None:
        done = processes.run(*install_command(self.tool, bench / "packages"), check=False, timeout=SECONDS)
        if not done.ok:
            raise ToolError(
                "tool-packages-missing",
                f"{self.tool.title} could not be installed: {done.last_words}.",
                "Make PyPI reachable for pip and uv, then run `aks-flex-lab tools install` again.",
            )
        (bench / "start.py").write_text(START.format(module=self.tool.module))
        command = bench / self.tool.commands[0]
        command.write_text(
            COMMAND.format(pythons=" ".join(map(shlex.quote, pythons(self.tool))), version=self.tool.python)
        )
        command.chmod(0o755)

    def _try(self, bench: Path) -> None:
        """Only our own Python is surely here."""
        if self.tool.python != OWN_PYTHON:
            return
        with tempfile.TemporaryDirectory() as home:
            said = processes.run(bench / self.tool.commands[0], *self.tool.ask, env={"HOME": home}, check=False)
        if self.tool.release not in said.out:
            raise ToolError(
                "tool-version-check-failed",
                f"{self.tool.title}: {self.tool.commands[0]} does not say {self.tool.release!r} of itself.",
                f"It said: {said.last_words}",
            )


def install_command(tool: PythonTool, target: Path) -> list[str]:
    """By names and hashes only: where packages come from is the machine's affair. uv is ten times as quick as pip."""
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    installer = [uv, "pip", "install", "--quiet", "--link-mode", "copy"] if uv else [*pip(), "install"]
    what = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--python-version", tool.python]
    return [*installer, *what, "--target", str(target), "-r", str(tool.requirements)]


def pythons(tool: PythonTool) -> list[str]:
    ours = [str(Path(sys.executable).resolve())] if tool.python == OWN_PYTHON else []
    return [*ours, f"/usr/bin/python{tool.python}", f"python{tool.python}"]


def _count(bench: Path) -> int:
    return sum(1 for _ in bench.glob("packages/*.dist-info"))
