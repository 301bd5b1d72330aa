"""Data types of a catalog entry: tool, commands, release files, checksums and build recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aks_flex_lab.architecture import Architecture

MODULES = Path(__file__).parent / "modules"


@dataclass(frozen=True)
class Command:
    """A program of a tool."""

    name: str
    package: str  # the Go package that it is built from
    ask: tuple[str, ...] | None = None  # arguments that print its version; None if it cannot print it


@dataclass(frozen=True)
class TestCommand(Command):
    """A program that is the compiled tests of a package, such as `e2e.test` of Kubernetes."""

    __test__ = False  # pytest would collect it by its name


@dataclass(frozen=True)
class BuildRequirement:
    """A program or library that a build needs on the host, and the package that contains it."""

    package: str
    program: str = ""
    library: str = ""  # a name in the directories of libraries, or an absolute path


@dataclass(frozen=True)
class BuildRecipe:
    """How a tool is built from Go modules."""

    module: str  # the directory in modules/ with its go.mod
    stamps: tuple[str, ...] = ()  # variables that contain the version, as `path.name=value`
    tags: tuple[str, ...] = ()
    cgo: bool = False  # with cgo, linked statically with the host's C libraries
    requirements: tuple[BuildRequirement, ...] = ()
    libraries: tuple[str, ...] = ()  # packages of C libraries, of which another architecture has its own
    folders: tuple[tuple[str, str], ...] = ()  # (Go module, directory): additional files, as in the release
    megabytes: int = 250  # disk space of a build with empty caches, including Go's caches

    @property
    def directory(self) -> Path:
        return MODULES / self.module

    @property
    def ldflags(self) -> str:
        flags = ["-s", "-w", *(f"-X {stamp}" for stamp in self.stamps)]
        if self.cgo:
            flags.append("-extldflags -static")
        return " ".join(flags)


@dataclass(frozen=True)
class Checksum:
    """A checksum file of a publisher."""

    url: str
    algorithm: str = "sha256"
    named: bool = True  # `hash  name` lines; otherwise the bare hash


@dataclass(frozen=True)
class ReleaseFile:
    """A file of a publisher's release. URLs have no scheme, because the mirror serves the same layout."""

    url: str
    checksums: tuple[Checksum, ...]
    commands: tuple[str, ...]
    inside: str | None = None  # the directory of the commands in an archive; None when the file is the program
    folders: tuple[str, ...] = ()  # other directories of the archive

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]

    @property
    def host(self) -> str:
        return self.url.split("/", 1)[0]


@dataclass(frozen=True)
class GoTool:
    """One version of one tool."""

    name: str
    version: str
    commands: tuple[Command, ...]
    recipe: BuildRecipe
    release: tuple[ReleaseFile, ...] = ()  # URLs contain {arch}
    version_text: str = ""  # the expected text in the version output of a command
    on_demand: bool = False  # installed only if it is named

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def selector(self) -> str:
        return f"{self.name}@{self.version}"

    def release_for(self, arch: str) -> tuple[ReleaseFile, ...]:
        return tuple(for_arch(file, arch) for file in self.release)


def for_arch(file: ReleaseFile, arch: str) -> ReleaseFile:
    sums = tuple(Checksum(sum_.url.format(arch=arch), sum_.algorithm, sum_.named) for sum_ in file.checksums)
    return ReleaseFile(file.url.format(arch=arch), sums, file.commands, file.inside, file.folders)


def machine_arch() -> str:
    """Returns the architecture of this machine by its Go name."""
    return Architecture.of_host().value
