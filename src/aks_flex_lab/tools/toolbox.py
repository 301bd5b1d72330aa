"""Finds programs of tools, installs what is missing, and reports the state of each tool."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
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
from aks_flex_lab.tools.tool_store import ToolDirectory, reclaimable_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_lab.tools.catalog import AnyTool

READY = "ready"
MISSING = "missing"


@dataclass(frozen=True)
class ToolState:
    """The state of one version of a tool."""

    name: str
    version: str
    source: str  # release, build, Debian or PyPI; unknown before the installation
    size: int
    state: str
    seconds: float  # duration of the installation
    commands: dict[str, str]  # names and paths; empty when missing

    @property
    def ready(self) -> bool:
        return self.state == READY


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
        directory = self.python_tool_directory(entry) if isinstance(entry, PythonTool) else self.tool_directory(entry)
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

    def states(self) -> tuple[ToolState, ...]:
        return tuple(self.any_state(tool) for tool in self.tools)

    def any_state(self, tool: AnyTool) -> ToolState:
        if isinstance(tool, DebianTool):
            return self.debian_state(tool)
        return self.packages_state(tool) if isinstance(tool, PythonTool) else self.state(tool)

    def state(self, tool: GoTool) -> ToolState:
        directory = self.tool_directory(tool)
        manifest = directory.manifest()
        if manifest is None:
            state = "damaged" if directory.path.exists() else MISSING
            return ToolState(tool.name, tool.version, "", 0, state, 0, {})
        paths = {command.name: str(directory.command(command.name)) for command in tool.commands}
        return ToolState(tool.name, tool.version, manifest.source, manifest.size, READY, manifest.seconds, paths)

    def debian_state(self, tool: DebianTool) -> ToolState:
        found = {command: debian_tools.locate(tool, command) for command in tool.commands}
        paths = {command: str(path) for command, path in found.items() if path}
        if len(paths) < len(found):
            return ToolState(tool.name, "", "Debian", 0, MISSING, 0, {})
        size = sum(Path(path).stat().st_size for path in paths.values())
        return ToolState(tool.name, debian_tools.package_version(tool.package), "Debian", size, READY, 0, paths)

    def packages_state(self, tool: PythonTool) -> ToolState:
        folder = self.python_tool_directory(tool)
        if not folder.ready:
            return ToolState(tool.name, tool.version, "", 0, MISSING, 0, {})
        paths = {command: str(folder.path / command) for command in tool.commands}
        size = reclaimable_bytes(folder.path)
        return ToolState(tool.name, tool.version, "PyPI", size, READY, 0, paths)

    def clean(self) -> int:
        """Removes what no tool of the catalog uses on any architecture; returns the freed bytes."""
        boxes = self.all_architectures()
        keep = {box.tool_directory(tool).path for box in boxes for tool in box.tools if isinstance(tool, GoTool)}
        keep |= {self.python_tool_directory(tool).path for tool in self.tools if isinstance(tool, PythonTool)}
        freed = 0
        with file_lock(self.root / ".lock", "the tools"):
            for folder in sorted(path for path in self.root.iterdir() if path.is_dir() and path not in keep):
                freed += reclaimable_bytes(folder)
                shutil.rmtree(folder)
        return freed
