"""Follows the remedies of errors of builds for other architectures, and of base systems."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.machines.base_system import BaseSystem, DebianRelease
from aks_flex_lab.machines.qemu import PROGRAMS
from aks_flex_lab.machines.virtual_base import VirtualBase
from aks_flex_lab.processes import run
from aks_flex_lab.tools import catalog, cross_build
from aks_flex_lab.tools.go_builder import GoBuilder
from aks_flex_lab.tools.recipes import GoTool, machine_arch
from tests.remedies.catalogue import advice, command
from tests.remedies.lab_harness import FAKE_GO, failure, put_program

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.remedy("architecture-unsupported")
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_lab_supports_the_architectures_of_the_remedy(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert failure(machine_arch).name == "architecture-unsupported"

    advice("architecture-unsupported", "Use a machine with")
    monkeypatch.setattr(platform, "machine", lambda: machine)

    assert machine_arch() in {"amd64", "arm64"}


@pytest.mark.remedy("program-not-found")
def test_runc_is_built_for_arm64_after_its_compiler_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    put_program(tmp_path / "bin", "go", FAKE_GO)
    put_program(tmp_path / "bin", "pkg-config", "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    runc = catalog.find_tool("runc")
    assert isinstance(runc, GoTool)
    library = tmp_path / "libc.a"
    monkeypatch.setattr(cross_build, "C_LIBRARY", str(library))

    error = failure(GoBuilder(tmp_path).prepare, [runc], "arm64")
    assert error.name == "program-not-found"
    assert f"for building {runc.title} for arm64," in error.message

    packages = command("program-not-found", "apt-get install")[3:]
    assert error.hint == f"Run `apt-get install --no-install-recommends {' '.join(packages[:2])}`."
    put_program(tmp_path / "bin", "aarch64-linux-gnu-gcc", "")
    library.touch()
    GoBuilder(tmp_path).prepare([runc], "arm64")


FAKE_APT = """for word; do
    case $word in
        update) [ "$MIRROR" = reachable ] || { echo "E: Could not resolve the mirror" >&2; exit 100; } ;;
        download) touch tool_1_arm64.deb ;;
    esac
done"""


@pytest.mark.remedy("foreign-package-missing")
def test_foreign_package_is_unpacked_after_its_mirror_is_reachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(tmp_path / "bin", "apt-get", FAKE_APT)
    put_program(tmp_path / "bin", "dpkg-deb", 'mkdir "$3"; echo unpacked >"$3/tool"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    error = failure(cross_build.package_root, "tool", "arm64", tmp_path)
    assert error.name == "foreign-package-missing"
    assert "Could not resolve the mirror" in error.message

    advice("foreign-package-missing", "Make the mirror reachable")
    monkeypatch.setenv("MIRROR", "reachable")
    root = cross_build.package_root("tool", "arm64", tmp_path)

    assert (root / "tool").read_text() == "unpacked\n"
    assert [path.name for path in root.parent.iterdir()] == ["tool-arm64"]


@pytest.mark.remedy("base-system-failed")
def test_base_system_is_built_after_apt_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """debootstrap and apt-get are replaced by programs with the same result, because no mirror is used here."""
    lists, root = tmp_path / "lists", '"$4"'
    put_program(tmp_path / "bin", "apt-get", f'[ "$1" = update ] && touch {lists}; true')
    directories = "etc/systemd/system var/cache/apt var/lib/apt/lists var/log var/lib/dbus usr/lib"
    put_program(
        tmp_path / "bin",
        "debootstrap",
        f"[ -e {lists} ] || {{ echo 'E: Failed getting release file'; exit 1; }}\n"
        f"cd {root} && mkdir -p {directories}",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin")
    base = BaseSystem(DebianRelease.BOOKWORM, tmp_path / "cache")
    error = failure(base.build)
    assert error.name == "base-system-failed"
    assert "Failed getting release file" in error.message

    run(*command("base-system-failed", "apt-get update"))
    advice("base-system-failed", "Then add the machine again. The build starts from the beginning.")
    base.build()

    assert base.ready


@pytest.mark.remedy("base-system-failed")
def test_base_system_that_does_not_boot_reports_what_the_log_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the disk fails first; when that is corrected, the next message is QEMU's."""
    [other] = [arch for arch in Architecture if not arch.is_native]  # which is always emulated
    base = VirtualBase(DebianRelease.BOOKWORM, tmp_path / "cache", other)
    base.directory.mkdir(parents=True)
    base.log.parent.mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin")
    put_program(tmp_path / "bin", "nbdkit", "echo nbdkit: no such plugin; exit 1")
    put_program(tmp_path / "bin", PROGRAMS[other], "echo qemu: cannot set up guest memory; exit 1")
    error = failure(base.boot_once)
    assert (error.name, error.hint) == ("base-system-failed", f"Read the log {base.log}, then retry.")
    assert "it does not boot: nbdkit: no such plugin." in error.message

    advice("base-system-failed", "If the base system does not boot, correct what the log reports.")
    put_program(tmp_path / "bin", "nbdkit", f"touch {base.hardware.disk_socket}; sleep 60")

    assert "qemu: cannot set up guest memory" in failure(base.boot_once).message
