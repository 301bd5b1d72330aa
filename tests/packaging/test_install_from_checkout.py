"""`make install` and `make uninstall`: the agent of this checkout below a prefix."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.processes import run
from aks_flex_node import __version__
from release.checkout import HOME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.processes import CommandResult

PREFIX = "/opt/flex"


def make(target: str, root: Path, prefix: str = PREFIX) -> CommandResult:
    command = ("make", "--silent", "-C", str(HOME), target, f"PREFIX={prefix}")
    return run(*command, env={**os.environ, "DESTDIR": str(root)}, check=False, timeout=600)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A machine on which an earlier version was installed, and was then updated."""
    folder = tmp_path_factory.mktemp("machine")
    lib = folder / "opt/flex/lib/aks-flex-node"
    (lib / "env.before/bin").mkdir(parents=True)
    (lib / "current").symlink_to("env.before")
    (lib / ".installed-by-make").touch()
    done = make("install", folder)
    assert done.ok, done.err
    yield folder
    shutil.rmtree(folder)


def test_make_install_installs_command_environment_and_unit(root: Path) -> None:
    command = root / "opt/flex/bin/aks-flex-node"
    assert run(str(command), "version").out.strip() == __version__
    assert command.resolve().is_relative_to(root / "opt/flex/lib/aks-flex-node")
    unit = (root / "opt/flex/lib/systemd/system/aks-flex-node.service").read_text().splitlines()
    assert "ExecStart=/opt/flex/bin/aks-flex-node daemon" in unit
    assert "ConditionPathExists=/var/lib/aks-flex-node/current-config.json" in unit


def test_make_install_again_replaces_the_earlier_environment(root: Path) -> None:
    lib = root / "opt/flex/lib/aks-flex-node"
    (environment,) = lib.glob("env.*")
    assert (lib / "current").readlink().name == environment.name != "env.before"


def test_make_uninstall_is_refused_while_a_node_is_joined(root: Path) -> None:
    state = root / "var/lib/aks-flex-node"
    state.mkdir(parents=True)
    (state / "ledger.json").touch()
    done = make("uninstall", root)
    shutil.rmtree(state)
    assert done.code != 0
    assert "sudo aks-flex-node unbootstrap" in done.err
    assert (root / "opt/flex/bin/aks-flex-node").exists()


def test_make_install_keeps_files_that_it_did_not_install(tmp_path: Path) -> None:
    other = tmp_path / "usr/bin/aks-flex-node"
    other.parent.mkdir(parents=True)
    other.write_text("of a package")
    for target in ("install", "uninstall"):
        assert "was not installed by `make install`" in make(target, tmp_path, "/usr").err
    assert other.read_text() == "of a package"


@pytest.mark.parametrize("prefix", ["relative/path", "-x"])
def test_make_install_refuses_a_prefix_that_is_no_path(tmp_path: Path, prefix: str) -> None:
    assert make("install", tmp_path, prefix).code != 0
    assert not list(tmp_path.iterdir())


def test_make_uninstall_removes_everything_that_was_installed(root: Path) -> None:
    assert make("uninstall", root).ok
    left = [path for path in (root / "opt").rglob("*") if not path.is_dir()]
    assert left == []
    assert make("uninstall", root).ok  # again
