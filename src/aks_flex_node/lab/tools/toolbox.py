"""The door to the tools: where a program is, what is missing, and the making of it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.lab.errors import ToolError, UsageError
from aks_flex_node.lab.files import locked
from aks_flex_node.lab.progress import SILENCE, Progress
from aks_flex_node.lab.suggestions import suggest
from aks_flex_node.lab.tools import catalog, debian
from aks_flex_node.lab.tools.debian import DebianTool
from aks_flex_node.lab.tools.golang import GoBuilder
from aks_flex_node.lab.tools.install import Installer, check_packages
from aks_flex_node.lab.tools.packages import Folder, PythonTool
from aks_flex_node.lab.tools.recipes import Tool, machine_arch
from aks_flex_node.lab.tools.releases import Publishers
from aks_flex_node.lab.tools.shelves import Shelf, bytes_freed_by_removing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.lab.tools.catalog import AnyTool

READY = "ready"
MISSING = "missing"


@dataclass(frozen=True)
class ToolState:
    """How it stands with one version of one tool."""

    name: str
    version: str
    source: str  # release, build, Debian or PyPI; where it would come from is not known before it is made
    size: int
    state: str
    seconds: float  # what making it took
    commands: dict[str, str]  # name and path; empty when missing

    @property
    def ready(self) -> bool:
        return self.state == READY


@dataclass(frozen=True)
class Toolbox:
    cache: Path
    arch: str = field(default_factory=machine_arch)
    tools: tuple[AnyTool, ...] = catalog.EVERYTHING

    @property
    def root(self) -> Path:
        return self.cache / "tools"

    def shelf(self, tool: Tool) -> Shelf:
        return Shelf(self.root, tool, self.arch)

    def packages(self, tool: PythonTool) -> Folder:
        return Folder(self.root, tool, self.arch)

    def path(self, tool: str, command: str, version: str | None = None) -> Path:
        """A program, by the tool it belongs to; the catalog's default version when none is named."""
        entry = catalog.find(tool, version)
        known = [name if isinstance(name, str) else name.name for name in entry.commands]
        if command not in known:
            raise UsageError("command-unknown", f"{tool} has no command {command!r}.", suggest(command, known))
        if isinstance(entry, DebianTool):
            return self.debian_path(entry, command)
        return self.folder(tool, version) / command

    def debian_path(self, tool: DebianTool, command: str) -> Path:
        found = debian.locate(tool, command)
        if found is None:
            raise debian.packages_missing([tool.package], tool.name)
        return found

    def folder(self, tool: str, version: str | None = None) -> Path:
        """The folder of a tool that was fetched or built, with everything that came with its programs."""
        entry = catalog.find(tool, version)
        if isinstance(entry, DebianTool):
            raise UsageError("tool-without-folder", f"{tool} is a package of the machine.", f"Use `path {tool} …`.")
        shelf = self.packages(entry) if isinstance(entry, PythonTool) else self.shelf(entry)
        if not shelf.ready:
            raise ToolError(
                "tool-missing", f"{entry.title} is not in the cache.", "Run `aks-flex-lab tools install`."
            )
        return shelf.place

    def install(self, names: Sequence[str] = (), progress: Progress = SILENCE, source: str = "auto") -> None:
        """Make what is missing of the named tools, or of all."""
        chosen = catalog.select(names)
        check_packages(chosen)
        installer = Installer(
            logs=self.cache / "logs",
            lock=self.root / ".lock",
            builder=GoBuilder(self.cache),
            publishers=Publishers(),
            progress=progress,
        )
        self.install_packages([tool for tool in chosen if isinstance(tool, PythonTool)], installer)
        installer.install([self.shelf(tool) for tool in chosen if isinstance(tool, Tool)], source)

    def install_packages(self, tools: Sequence[PythonTool], installer: Installer) -> None:
        missing = [folder for tool in tools if not (folder := self.packages(tool)).ready]
        if not missing:
            return
        with installer.alone():
            for folder in missing:
                if not folder.ready:  # whoever held the lock before us may have made it
                    folder.make(installer.progress)

    def states(self) -> tuple[ToolState, ...]:
        return tuple(self.any_state(tool) for tool in self.tools)

    def any_state(self, tool: AnyTool) -> ToolState:
        if isinstance(tool, DebianTool):
            return self.debian_state(tool)
        return self.packages_state(tool) if isinstance(tool, PythonTool) else self.state(tool)

    def missing(self) -> tuple[ToolState, ...]:
        return tuple(state for state in self.states() if not state.ready)

    def state(self, tool: Tool) -> ToolState:
        shelf = self.shelf(tool)
        manifest = shelf.manifest()
        if manifest is None:
            state = "damaged" if shelf.place.exists() else MISSING
            return ToolState(tool.name, tool.version, "", 0, state, 0, {})
        paths = {command.name: str(shelf.command(command.name)) for command in tool.commands}
        return ToolState(tool.name, tool.version, manifest.source, manifest.size, READY, manifest.seconds, paths)

    def debian_state(self, tool: DebianTool) -> ToolState:
        found = {command: debian.locate(tool, command) for command in tool.commands}
        paths = {command: str(path) for command, path in found.items() if path}
        if len(paths) < len(found):
            return ToolState(tool.name, "", "Debian", 0, MISSING, 0, {})
        size = sum(Path(path).stat().st_size for path in paths.values())
        return ToolState(tool.name, debian.package_version(tool.package), "Debian", size, READY, 0, paths)

    def packages_state(self, tool: PythonTool) -> ToolState:
        folder = self.packages(tool)
        if not folder.ready:
            return ToolState(tool.name, tool.version, "", 0, MISSING, 0, {})
        paths = {command: str(folder.place / command) for command in tool.commands}
        size = bytes_freed_by_removing(folder.place)
        return ToolState(tool.name, tool.version, "PyPI", size, READY, 0, paths)

    def clean(self) -> int:
        """Remove what no tool of the catalog uses, and say how many bytes that was."""
        keep = {self.shelf(tool).place for tool in self.tools if isinstance(tool, Tool)}
        keep |= {self.packages(tool).place for tool in self.tools if isinstance(tool, PythonTool)}
        freed = 0
        with locked(self.root / ".lock", "the tools"):
            for folder in sorted(path for path in self.root.iterdir() if path.is_dir() and path not in keep):
                freed += bytes_freed_by_removing(folder)
                shutil.rmtree(folder)
        return freed
