"""Builds for another architecture than the host's: C cross compiler, Debian packages of that architecture, emulator.

A package is downloaded from the host's own mirrors with a separate configuration of apt, and only unpacked, so that
the host's dpkg gets no foreign architecture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_lab.apt import download_command, unpacked_packages
from aks_flex_lab.architecture import Architecture
from aks_flex_lab.errors import LabError, ToolError
from aks_flex_lab.processes import run
from aks_flex_lab.tools.recipes import BuildRequirement

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.tools.recipes import BuildRecipe

C_LIBRARY = "/usr/{triplet}/lib/libc.a"
DOWNLOAD_SECONDS = 600.0


def compiler_requirements(arch: str) -> tuple[BuildRequirement, ...]:
    """Returns the cross compiler of an architecture, its C library, and what finds other libraries."""
    triplet = Architecture(arch).triplet
    return (
        BuildRequirement(f"gcc-{triplet.replace('_', '-')}", program=f"{triplet}-gcc"),
        BuildRequirement(f"libc6-dev-{arch}-cross", library=C_LIBRARY.format(triplet=triplet)),
        BuildRequirement("pkg-config", program="pkg-config"),
    )


def compiler_environment(recipe: BuildRecipe, arch: str, cache: Path) -> dict[str, str]:
    """Returns the environment in which Go compiles C code for an architecture; downloads the needed libraries."""
    roots = [package_root(package, arch, cache) for package in recipe.libraries]
    triplet = Architecture(arch).triplet
    libraries = [root / "usr/lib" / triplet for root in roots]
    return {
        "CC": f"{triplet}-gcc",
        "CGO_CFLAGS": " ".join(f"-I{root}/usr/include" for root in roots),
        "CGO_LDFLAGS": " ".join(f"-L{library}" for library in libraries),
        "PKG_CONFIG_LIBDIR": ":".join(f"{library}/pkgconfig" for library in libraries),
    }


def package_root(package: str, arch: str, cache: Path) -> Path:
    """Returns the directory in which a package is unpacked, without its dependencies; downloads it if missing."""
    target = cache / "packages" / f"{package}-{arch}"
    return unpacked_packages(target, lambda archives, state: _download(package, arch, archives, state))


def _download(package: str, arch: str, archives: Path, state: Path) -> None:
    for path in ("lists/partial", "cache/archives/partial"):
        (state / path).mkdir(parents=True)
    command = download_command(
        state / "status",
        {
            "APT::Architecture": arch,
            "APT::Architectures": arch,
            "Dir::State::Lists": state / "lists",
            "Dir::Cache": state / "cache",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
        },
    )
    try:
        run(*command, "--quiet", "update", timeout=DOWNLOAD_SECONDS)
        run(*command, "--quiet", "download", package, cwd=archives, timeout=DOWNLOAD_SECONDS)
    except LabError as error:
        raise ToolError(
            "foreign-package-missing",
            f"The Debian package {package} for {arch} could not be downloaded. {error.message}",
            "Check that a mirror in the sources of this machine's apt has this architecture, then retry.",
        ) from error


def emulator(arch: str) -> list[str | Path]:
    """Returns the start of a command that runs a program of an architecture; empty if this host cannot."""
    program = Architecture(arch).user_emulator
    return [program] if program.exists() else []
