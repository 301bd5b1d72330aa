"""Installs tools that are Python packages, pinned by hash, one directory for each tool and Python version."""

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

from aks_flex_lab import processes
from aks_flex_lab.errors import ToolError
from aks_flex_lab.tools.go_builder import pip_command, require_disk_megabytes
from aks_flex_lab.tools.recipes import MODULES

if TYPE_CHECKING:
    from aks_flex_lab.progress import ProgressReporter

OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
INSTALL_SECONDS = 900.0
# Runs with the Python that installed it, or else with that of the machine that it is lent to.
COMMAND_SCRIPT = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
for python in {pythons}; do
    command -v "$python" >/dev/null && exec "$python" -I "$here/start.py" "$@"
done
echo "There is no Python {version} here." >&2
exit 127
"""
START_SCRIPT = """import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "packages"))
runpy.run_module("{module}", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class PythonTool:
    name: str
    release: str
    module: str  # the module that Python runs
    commands: tuple[str]  # the names of its commands
    ask: tuple[str, ...]  # arguments that print its version
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
class PythonToolDirectory:
    """The directory of one Python tool in the cache."""

    root: Path
    tool: PythonTool
    arch: str

    @property
    def path(self) -> Path:
        made_from = (self.tool.requirements.read_bytes(), COMMAND_SCRIPT.encode(), START_SCRIPT.encode())
        key = hashlib.sha256(b"\0".join(made_from)).hexdigest()[:12]
        return self.root / f"{self.tool.name}-{self.tool.version}-{self.arch}-{key}"

    @property
    def ready(self) -> bool:
        return self.path.exists()

    def make(self, progress: ProgressReporter) -> None:
        """Installs the tool in a temporary directory, and renames it when it is complete and runs."""
        start = time.monotonic()
        bench = self.path.with_name(f".{self.path.name}.partial")
        shutil.rmtree(bench, ignore_errors=True)
        require_disk_megabytes(self.tool.megabytes, [self.root])
        with progress.task(self.tool.title, lambda: f"installing, {_count(bench)} packages installed"):
            self._install(bench)
            self._check_version(bench)
            os.sync()
            bench.rename(self.path)
        progress.finished(self.tool.title, "installed", time.monotonic() - start)

    def _install(self, bench: Path) -> None:
        done = processes.run(*install_command(self.tool, bench / "packages"), check=False, timeout=INSTALL_SECONDS)
        if not done.ok:
            raise ToolError(
                "tool-packages-missing",
                f"{self.tool.title} could not be installed: {done.last_line}.",
                "Make PyPI reachable for pip and uv, then run `aks-flex-lab tools install` again.",
            )
        (bench / "start.py").write_text(START_SCRIPT.format(module=self.tool.module))
        command = bench / self.tool.commands[0]
        command.write_text(
            COMMAND_SCRIPT.format(pythons=" ".join(map(shlex.quote, pythons(self.tool))), version=self.tool.python)
        )
        command.chmod(0o755)

    def _check_version(self, bench: Path) -> None:
        """Checks the version of the tool if it is for this Python, because no other may be installed."""
        if self.tool.python != OWN_PYTHON:
            return
        with tempfile.TemporaryDirectory() as home:
            result = processes.run(bench / self.tool.commands[0], *self.tool.ask, env={"HOME": home}, check=False)
        if self.tool.release not in result.out:
            raise ToolError(
                "tool-version-check-failed",
                f"{self.tool.title}: {self.tool.commands[0]} does not report {self.tool.release!r}.",
                f"Its output: {result.last_line}",
            )


def install_command(tool: PythonTool, target: Path) -> list[str]:
    """Returns the command that installs the pinned packages from the configured index; uv is much faster than pip."""
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    installer = [uv, "pip", "install", "--quiet", "--link-mode", "copy"] if uv else [*pip_command(), "install"]
    what = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--python-version", tool.python]
    return [*installer, *what, "--target", str(target), "-r", str(tool.requirements)]


def pythons(tool: PythonTool) -> list[str]:
    ours = [str(Path(sys.executable).resolve())] if tool.python == OWN_PYTHON else []
    return [*ours, f"/usr/bin/python{tool.python}", f"python{tool.python}"]


def _count(bench: Path) -> int:
    return sum(1 for _ in bench.glob("packages/*.dist-info"))
