"""Finds programs of tools, installs what is missing, and reports the state of each tool."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.errors import ToolError, UsageError, did_you_mean
from aks_flex_lab.files import file_lock
from aks_flex_lab.progress import NO_PROGRESS, ProgressReporter
from aks_flex_lab.tools import catalog, cross_build, debian_tools
from aks_flex_lab.tools.debian_tools import DebianTool
from aks_flex_lab.tools.go_builder import GoBuilder
from aks_flex_lab.tools.installer import ToolInstaller, check_packages
from aks_flex_lab.tools.python_tools import PythonTool, PythonToolDirectory
from aks_flex_lab.tools.recipes import GoTool, machine_arch
from aks_flex_lab.tools.releases import ReleaseDownloader
from aks_flex_lab.tools.tool_store import ToolDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aks_flex_lab.tools.catalog import AnyTool


@dataclass(frozen=True)
class Toolbox:
    cache: Path
    arch: str = field(default_factory=machine_arch)
    tools: tuple[AnyTool, ...] = catalog.ALL_TOOLS

    @property
    def root(self) -> Path:
        return self.cache / "tools"

    @property
    def is_foreign(self) -> bool:
        """Whether the tools are for another architecture than the host's."""
        return self.arch != machine_arch()

    def for_architecture(self, arch: str) -> Toolbox:
        """Returns the toolbox of an architecture: this one for the host's, otherwise what nodes of it need."""
        return self if arch == self.arch else Toolbox(self.cache, arch, catalog.FOREIGN_TOOLS)

    def all_architectures(self) -> tuple[Toolbox, ...]:
        return (self, *(self.for_architecture(arch.value) for arch in Architecture if arch.value != self.arch))

    def tool_directory(self, tool: GoTool) -> ToolDirectory:
        return ToolDirectory(self.root, tool, self.arch)

    def python_tool_directory(self, tool: PythonTool) -> PythonToolDirectory:
        return PythonToolDirectory(self.root, tool, self.arch)

    def _directory(self, tool: GoTool | PythonTool) -> ToolDirectory | PythonToolDirectory:
        return self.python_tool_directory(tool) if isinstance(tool, PythonTool) else self.tool_directory(tool)

    def path(self, tool: str, command: str, version: str | None = None) -> Path:
        """Returns the path of a command of a tool, by default in the default version."""
        entry = catalog.find_tool(tool, version, self.tools)
        known = [name if isinstance(name, str) else name.name for name in entry.commands]
        if command not in known:
            raise UsageError("command-unknown", f"{tool} has no command {command!r}.", did_you_mean(command, known))
        if isinstance(entry, DebianTool):
            return self.debian_path(entry, command)
        return self.folder(tool, version) / command

    def debian_path(self, tool: DebianTool, command: str) -> Path:
        if self.is_foreign:
            root = cross_build.package_root(tool.package, self.arch, self.cache)
            merged = root / "usr/bin" / command  # where newer packages have all programs
            return merged if merged.exists() else root / "bin" / command
        found = debian_tools.locate(tool, command)
        if found is None:
            raise debian_tools.missing_packages_error([tool.package], tool.name)
        return found

    def folder(self, tool: str, version: str | None = None) -> Path:
        """Returns the directory of a downloaded or built tool."""
        entry = catalog.find_tool(tool, version, self.tools)
        if isinstance(entry, DebianTool):
            raise UsageError(
                "tool-directory-missing", f"{tool} is a Debian package and has no directory.", f"Use `path {tool} …`."
            )
        directory = self._directory(entry)
        if not directory.ready:
            named = f" {entry.selector}" if isinstance(entry, GoTool) else f" {entry.name}"
            named += f" --arch {self.arch}" if self.is_foreign else ""
            raise ToolError(
                "tool-missing", f"{entry.title} is not in the cache.", f"Run `aks-flex-lab tools install{named}`."
            )
        return directory.path

    def install(
        self,
        names: Sequence[str] = (),
        progress: ProgressReporter = NO_PROGRESS,
        source: str = "auto",
        purpose: str = "all labs and tests",
    ) -> None:
        """Installs the missing ones of the named tools, or of all tools but those on demand."""
        chosen = catalog.select_tools(names, self.tools)
        check_packages(chosen)
        installer = ToolInstaller(
            logs=self.cache / "logs",
            lock=self.root / ".lock",
            builder=GoBuilder(self.cache),
            downloader=ReleaseDownloader(),
            progress=progress,
            purpose=purpose,
        )
        for tool in chosen:
            if self.is_foreign and isinstance(tool, DebianTool):
                self.debian_path(tool, tool.commands[0])
        self.install_packages([tool for tool in chosen if isinstance(tool, PythonTool)], installer)
        installer.install([self.tool_directory(tool) for tool in chosen if isinstance(tool, GoTool)], source)

    def install_packages(self, tools: Sequence[PythonTool], installer: ToolInstaller) -> None:
        missing = [folder for tool in tools if not (folder := self.python_tool_directory(tool)).ready]
        if not missing:
            return
        with installer.exclusive():
            for folder in missing:
                if not folder.ready:  # The previous holder of the lock may have installed it.
                    folder.make(installer.progress)

    def is_ready(self, tool: AnyTool) -> bool:
        if isinstance(tool, DebianTool):
            return all(debian_tools.locate(tool, command) for command in tool.commands)
        return self._directory(tool).ready

    def clean(self) -> list[Path]:
        """Removes what no tool of the catalog uses on any architecture; returns it."""
        boxes = self.all_architectures()
        keep = {box.tool_directory(tool).path for box in boxes for tool in box.tools if isinstance(tool, GoTool)}
        keep |= {self.python_tool_directory(tool).path for tool in self.tools if isinstance(tool, PythonTool)}
        with file_lock(self.root / ".lock", "the tools"):
            unused = sorted(path for path in self.root.iterdir() if path.is_dir() and path not in keep)
            for folder in unused:
                shutil.rmtree(folder)
        return unused
