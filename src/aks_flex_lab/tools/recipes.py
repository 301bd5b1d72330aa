"""Data types of a catalog entry: tool, commands, release files, checksums and build recipe."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from aks_flex_lab.errors import ToolError

MODULES = Path(__file__).parent / "modules"
ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class Command:
    """A program of a tool."""

    name: str
    package: str  # what Go builds it from
    ask: tuple[str, ...] | None = None  # the words that make it tell its version; None when nothing does


@dataclass(frozen=True)
class BuildRequirement:
    """Something a build wants from the machine, and the package that brings it."""

    package: str
    program: str = ""
    library: str = ""


@dataclass(frozen=True)
class BuildRecipe:
    """How a tool is built from Go modules."""

    module: str  # the folder in modules/ with its go.mod
    stamps: tuple[str, ...] = ()  # the variables that hold the version, as `path.name=value`
    tags: tuple[str, ...] = ()
    cgo: bool = False  # with it, linked statically against the machine's C libraries
    requirements: tuple[BuildRequirement, ...] = ()
    folders: tuple[tuple[str, str], ...] = ()  # (Go module, folder): files that come along, as the release has them
    megabytes: int = 250  # what a cold build adds to the disk, Go's own caches included

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
    """A checksum file as its publisher names and writes it."""

    url: str
    algorithm: str = "sha256"
    named: bool = True  # `hash  name` lines; otherwise the bare hash


@dataclass(frozen=True)
class ReleaseFile:
    """A file of a publisher's release. Addresses have no scheme: the lab's mirror serves the same layout."""

    url: str
    checksums: tuple[Checksum, ...]
    commands: tuple[str, ...]
    inside: str | None = None  # the folder of an archive that holds the commands; None when the file is the program
    folders: tuple[str, ...] = ()  # further folders of the archive

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
    release: tuple[ReleaseFile, ...] = ()  # addresses hold {arch}
    version_text: str = ""  # what a command that is asked for its version must say

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"

    def release_for(self, arch: str) -> tuple[ReleaseFile, ...]:
        return tuple(for_arch(file, arch) for file in self.release)


def for_arch(file: ReleaseFile, arch: str) -> ReleaseFile:
    sums = tuple(Checksum(sum_.url.format(arch=arch), sum_.algorithm, sum_.named) for sum_ in file.checksums)
    return ReleaseFile(file.url.format(arch=arch), sums, file.commands, file.inside, file.folders)


def machine_arch() -> str:
    """This machine's architecture, as Go names it."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise ToolError(
            "architecture-unsupported",
            f"The lab has no tools for this machine's architecture, {machine}.",
            "It runs on amd64 and arm64.",
        )
    return ARCHITECTURES[machine]
