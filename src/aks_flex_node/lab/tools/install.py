"""Puts tools on their shelves: what is there stays, else the publisher's release, else a build."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.lab import processes
from aks_flex_node.lab.errors import LabError, ToolError, UsageError
from aks_flex_node.lab.files import locked
from aks_flex_node.lab.tools import debian, releases
from aks_flex_node.lab.tools.recipes import Tool, machine_arch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from aks_flex_node.lab.progress import Progress
    from aks_flex_node.lab.tools.catalog import AnyTool
    from aks_flex_node.lab.tools.shelves import Shelf

SOURCES = ("auto", "release", "build")
OUTCOMES = {"release": "downloaded", "build": "built"}


class Builder(Protocol):
    """What makes a tool from its source; a test brings its own."""

    def prepare(self, tools: Iterable[Tool]) -> None:
        """Refuse now what would fail later."""

    def build(self, tool: Tool, arch: str, into: Path, log: Path) -> None:
        """Leave the commands of the tool, by their names, in a folder."""

    def doing(self) -> str:
        """How far it is, for a person who waits."""


def ask_program(*argv: str | Path) -> str:
    """What a program says of itself."""
    result = processes.run(*argv, check=False, timeout=30)
    return result.out + result.err


@dataclass
class Installer:
    logs: Path
    lock: Path
    builder: Builder
    publishers: releases.Publishers
    progress: Progress
    ask: Callable[..., str] = field(default=ask_program)

    def install(self, shelves: Sequence[Shelf], source: str = "auto") -> None:
        if source not in SOURCES:
            raise UsageError("source-unknown", f"There is no source {source!r}.", f"Use one of {', '.join(SOURCES)}.")
        empty = [shelf for shelf in shelves if shelf.manifest() is None]
        if not empty:
            return
        with self.alone():
            # Whoever held the lock before us may have made them.
            plan = [(shelf, self.choose(shelf, source)) for shelf in empty if shelf.manifest() is None]
            self.builder.prepare([shelf.tool for shelf, chosen in plan if chosen == "build"])
            for shelf, chosen in plan:
                self.make(shelf, chosen)

    def choose(self, shelf: Shelf, source: str) -> str:
        if source == "build" or not shelf.tool.release:
            return "build"
        files = shelf.tool.release_for(shelf.arch)
        return "release" if source == "release" or self.publishers.reachable(files) else "build"

    def make(self, shelf: Shelf, source: str) -> None:
        start = time.monotonic()
        bench = shelf.workbench(source)
        bench.mkdir(parents=True, exist_ok=True)
        doing = self.builder.doing if source == "build" else lambda: self.publishers.doing
        with self.progress.working(shelf.tool.title, doing):
            if source == "build":
                self.builder.build(shelf.tool, shelf.arch, bench, self.log(shelf))
            else:
                self.take_release(shelf, bench)
            self.check_versions(shelf, bench)
            shelf.put(source, time.monotonic() - start)
        self.progress.done(shelf.tool.title, OUTCOMES[source], time.monotonic() - start)

    def take_release(self, shelf: Shelf, bench: Path) -> None:
        shelf.downloads.mkdir(exist_ok=True)
        for file in shelf.tool.release_for(shelf.arch):
            if not all((bench / command).exists() for command in file.commands):
                download = self.publishers.fetch(shelf.tool, file, shelf.downloads)
                releases.unpack(shelf.tool, file, download, bench)

    def check_versions(self, shelf: Shelf, bench: Path) -> None:
        """A program that does not call itself what we call it is not put on a shelf."""
        for command in shelf.tool.commands:
            if command.ask is None or shelf.arch != machine_arch():
                continue
            said = self.ask(bench / command.name, *command.ask)
            if shelf.tool.says not in said:
                shutil.rmtree(bench)
                log = self.log(shelf)
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("a") as out:
                    out.write(f"\n$ {command.name} {' '.join(command.ask)}\n{said}\n")
                raise ToolError(
                    "tool-version-check-failed",
                    f"{shelf.tool.title}: {command.name} does not say {shelf.tool.says!r} of itself.",
                    f"The log is {log}.",
                )

    def log(self, shelf: Shelf) -> Path:
        return self.logs / f"{shelf.tool.name}-{shelf.tool.version}-{shelf.arch}.log"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """One installation at a time: builds would only slow one another down."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.lock, "the tools"))
            except LabError:
                with self.progress.working("tools", lambda: "waiting for another installation to end"):
                    stack.enter_context(locked(self.lock, "the tools", wait=True))
            yield


def check_packages(tools: Iterable[AnyTool]) -> None:
    """All packages that the machine lacks, in one line to run."""
    missing = [
        tool
        for tool in tools
        if isinstance(tool, debian.DebianTool) and not all(debian.locate(tool, name) for name in tool.commands)
    ]
    if missing:
        raise debian.packages_missing([tool.package for tool in missing], " and ".join(tool.name for tool in missing))
