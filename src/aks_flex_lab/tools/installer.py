"""Installs missing tools in the store: from the publisher's release, or else by a build."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_lab import processes
from aks_flex_lab.errors import LabError, ToolError, UsageError
from aks_flex_lab.files import file_lock
from aks_flex_lab.tools import cross_build, debian_tools, releases
from aks_flex_lab.tools.catalog import BUILD_MINUTES
from aks_flex_lab.tools.recipes import GoTool, machine_arch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from aks_flex_lab.progress import ProgressReporter
    from aks_flex_lab.tools.catalog import AnyTool
    from aks_flex_lab.tools.go_builder import GoBuilder
    from aks_flex_lab.tools.tool_store import ToolDirectory

SOURCES = ("auto", "release", "build")
OUTCOMES = {"release": "downloaded", "build": "built"}


def build_minutes(tool: GoTool) -> float:
    """Returns about how long the build of a tool takes on two cores; that of an unmeasured one is short."""
    return BUILD_MINUTES.get(tool.title, 0.5)


def about_minutes(minutes: float) -> str:
    return f"about {minutes:.0f} min" if minutes >= 1 else "less than a minute"


def program_version_output(*argv: str | Path) -> str:
    """Returns the output of a program's version command, or why the program cannot run."""
    try:
        result = processes.run(*argv, check=False, timeout=30)
    except OSError as error:  # for example another architecture, or a file system with the option noexec
        return error.strerror or type(error).__name__  # without the path, which contains the version
    return result.out + result.err


@dataclass
class ToolInstaller:
    logs: Path
    lock: Path
    builder: GoBuilder
    downloader: releases.ReleaseDownloader
    progress: ProgressReporter
    purpose: str = ""  # what needs the tools
    version_output: Callable[..., str] = field(default=program_version_output)

    def install(self, directories: Sequence[ToolDirectory], source: str = "auto") -> None:
        if source not in SOURCES:
            raise UsageError("source-unknown", f"Unknown source {source!r}.", f"Use one of {', '.join(SOURCES)}.")
        empty = [directory for directory in directories if directory.manifest() is None]
        if not empty:
            return
        with self.exclusive():
            # The previous holder of the lock may have installed them.
            plan = [
                (directory, self.choose(directory, source)) for directory in empty if directory.manifest() is None
            ]
            for arch in dict.fromkeys(directory.arch for directory, _ in plan):
                built = [directory.tool for directory, chosen in plan if (chosen, directory.arch) == ("build", arch)]
                self.builder.prepare(built, arch)
            self.announce_builds([directory for directory, chosen in plan if chosen == "build"], source)
            for directory, chosen in plan:
                self.install_tool(directory, chosen)

    def announce_builds(self, directories: Sequence[ToolDirectory], source: str) -> None:
        """Says what is built, why, and about how long it takes."""
        if directories:
            why = "" if source == "build" else " Their releases cannot be downloaded from here."
            minutes = about_minutes(sum(build_minutes(directory.tool) for directory in directories))
            self.progress.message(
                f"Building for {self.purpose}: {', '.join(directory.title for directory in directories)}.{why} "
                f"This takes {minutes} on two cores, once."
            )

    def choose(self, directory: ToolDirectory, source: str) -> str:
        if source == "build" or not directory.tool.release:
            return "build"
        files = directory.tool.release_for(directory.arch)
        return "release" if source == "release" or self.downloader.reachable(files) else "build"

    def install_tool(self, directory: ToolDirectory, source: str) -> None:
        start = time.monotonic()
        bench = directory.build_directory(source)
        bench.mkdir(parents=True, exist_ok=True)
        about = about_minutes(build_minutes(directory.tool))

        def doing() -> str:
            return f"{self.builder.progress_text()}, {about}" if source == "build" else self.downloader.progress_text

        with self.progress.task(directory.title, doing):
            if source == "build":
                self.builder.build(directory.tool, directory.arch, bench, self.log(directory))
            else:
                self.take_release(directory, bench)
            self.check_versions(directory, bench)
            directory.commit(source)
        self.progress.finished(directory.title, OUTCOMES[source], time.monotonic() - start)

    def take_release(self, directory: ToolDirectory, bench: Path) -> None:
        directory.downloads.mkdir(exist_ok=True)
        for file in directory.tool.release_for(directory.arch):
            if not all((bench / command).exists() for command in file.commands):
                download = self.downloader.fetch(directory.tool, file, directory.downloads)
                releases.unpack(directory.tool, file, download, bench)

    def check_versions(self, directory: ToolDirectory, bench: Path) -> None:
        """Raises an error when a program does not report the version of its tool.

        Programs of another architecture are run by QEMU's user emulation if this host has it.
        """
        foreign = directory.arch != machine_arch()
        runner = cross_build.emulator(directory.arch) if foreign else []
        for command in directory.tool.commands:
            if command.ask is None or (foreign and not runner):
                continue
            output = self.version_output(*runner, bench / command.name, *command.ask)
            if directory.tool.version_text not in output:
                shutil.rmtree(bench)
                log = self.log(directory)
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("a") as out:
                    out.write(f"\n$ {command.name} {' '.join(command.ask)}\n{output}\n")
                raise ToolError(
                    "tool-version-check-failed",
                    f"{directory.tool.title}: {command.name} does not report {directory.tool.version_text!r}.",
                    f"Read the log {log}.",
                )

    def log(self, directory: ToolDirectory) -> Path:
        return self.logs / f"{directory.tool.name}-{directory.tool.version}-{directory.arch}.log"

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds a lock, so that only one installation runs at a time; parallel builds would be slower."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(file_lock(self.lock, "the tools"))
            except LabError:
                with self.progress.task("tools", lambda: "waiting for another installation to end"):
                    stack.enter_context(file_lock(self.lock, "the tools", wait=True))
            yield


def check_packages(tools: Iterable[AnyTool]) -> None:
    """Raises one error with all packages that are not installed on the host."""
    missing = [
        tool
        for tool in tools
        if isinstance(tool, debian_tools.DebianTool)
        and not all(debian_tools.locate(tool, name) for name in tool.commands)
    ]
    if missing:
        raise debian_tools.missing_packages_error(
            [tool.package for tool in missing], " and ".join(tool.name for tool in missing)
        )
