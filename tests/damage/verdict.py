"""Decides whether a cell of the matrix ended as it must."""

from __future__ import annotations

import json
import shutil
import stat
from typing import TYPE_CHECKING

from aks_flex_node.agent import paths
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import aside_path
from tests.damage import harness
from tests.damage.matrix import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.damage.harness import DamagedHost, Outcome
    from tests.damage.matrix import Cell, Machines

    Command = Callable[[DamagedHost], Outcome]
    Tree = dict[str, object]

MOMENTS = frozenset(
    (
        *("since", "at", "applied", "seen", "revision", "timestamp"),
        *("last_answer", "last_applied", "last_drift", "drift_count", "newest_version"),
    )
)
SYSTEM = ("/.simulated.json", "/proc/", "/sys/", "/nowhere")  # not files, or made by a service through a link
REPORTED = frozenset((paths.PUBLIC_STATUS, paths.DAEMON_STATE))  # contain the drift that was found


def tree(root: Path) -> Tree:
    """Returns everything below a root, without timestamps."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        entry = path.lstat()
        name, mode = f"/{path.relative_to(root)}", stat.S_IMODE(entry.st_mode)
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        else:
            found[name] = ("directory", mode) if path.is_dir() else ("file", mode, entry.st_uid, _content(path))
    return found


def _content(path: Path) -> object:
    content = path.read_bytes()
    if path.suffix == ".json":
        try:
            # The ledger gets the kind of a directory when its mode is repaired.
            omitted = MOMENTS | ({"kind"} if path.name == "ledger.json" else set())
            return json.dumps(_without(json.loads(content), omitted))
        except ValueError:
            return content
    return sorted(content.splitlines()) if path.name == "mountinfo" else content


def _without(value: object, keys: frozenset[str]) -> object:
    if isinstance(value, dict):
        return {key: _without(each, keys) for key, each in value.items() if key not in keys}
    return [_without(each, keys) for each in value] if isinstance(value, list) else value


def run(command: Command, of: Path, to: Path, machines: Machines, cell: Cell | None) -> tuple[Outcome, Tree]:
    """Runs a command on a damaged copy of a machine; returns what it reported and the state of the copy. Any
    exception that is not a refusal is raised.
    """
    shutil.copytree(of, to, symlinks=True)
    try:
        if cell:
            machines.damage(to, cell)
        try:
            outcome = command(harness.DamagedHost(to))
        except FlexError as error:
            outcome = harness.Outcome(refusals=(f"{error.name}: {error.message}",), lacks_hint=not error.hint)
        return outcome, tree(to)
    finally:
        shutil.rmtree(to)


def differences(expected: Tree, found: Tree) -> dict[str, tuple[object, object]]:
    paths = sorted({*expected, *found})
    return {path: (expected.get(path), found.get(path)) for path in paths if expected.get(path) != found.get(path)}


def is_about(path: str, cell: Cell) -> bool:
    """Returns whether a path is the damaged one, is in it, or is where it was set aside."""
    return any(path == one or path.startswith(f"{one}/") for one in (cell.path, aside_path(cell.path)))


def must_be_named(cell: Cell) -> bool:
    """Returns whether drift detection must name the damage."""
    if cell.owner is Owner.OTHER:
        # Another program creates a missing file; a certificate of another node is valid until the cluster refuses it.
        return cell.damage not in {"missing", "mode", "owner", "other-node"}
    return cell.owner is Owner.COMPONENT


def is_named(cell: Cell, subjects: frozenset[str]) -> bool:
    """Returns whether drift names the path, something in it, or the program or service that contains it."""
    unit = cell.path.rpartition("/")[2]
    return any(
        is_about(subject, cell) or cell.path.startswith(f"{subject}/") or subject == unit for subject in subjects
    )


REFUSED = {  # path -> the damages of which only a person can decide what is right
    # Lost on purpose, writable for others, or the valid configuration of another node.
    paths.CURRENT_CONFIG: {"missing", "mode", "other-node"},
    paths.state_file(paths.STATE_DIR): {"other-node"},  # it names the node
    paths.STATE_DIR: {"missing", "empty", "dangling-link", "link-loop"},  # with the configuration in it
}


def may_be_refused(cell: Cell, machines: Machines) -> bool:
    """Returns whether a refusal is right."""
    if cell.path in {paths.NEXT_CONFIG, paths.UPDATE_JOURNAL}:
        return True  # the update is refused or starts again; the provider sends the configuration again
    if cell.owner is Owner.RUNTIME or cell.damage in REFUSED.get(cell.path, ()):
        return True  # a service that cannot use its directory does not start
    # A link in place of a directory is somebody's choice; its target may be on a disk that is not mounted.
    place = machines.node / cell.path[1:]
    return place.is_dir() and not place.is_symlink() and cell.damage in {"dangling-link", "link-loop"}


def lost_files(cell: Cell, machines: Machines) -> list[str]:
    """Returns the files of the host that the damage has made impossible to restore: it destroyed their only copy."""
    return [
        path
        for path, copy in machines.copies.items()
        if f"{copy}/".startswith(f"{cell.path}/") and cell.damage not in {"mode", "owner"}
    ]


class Judge:
    """Runs a command of the matrix on damaged copies of a machine, and compares them with an undamaged one."""

    def __init__(self, command: Command, machines: Machines, room: Path) -> None:
        self.command, self.machines, self.room = command, machines, room
        self.fresh = tree(machines.fresh)
        outcome, self.expected = run(command, machines.node, room / "reference", machines, None)
        assert (outcome.refusals, outcome.left) == ((), ())
        if command is harness.unbootstrap:
            assert self.expected == self.fresh

    def find_problems_or_failure(self, cell: Cell) -> list[str]:
        """Like `find_problems`; an exception of the command is a problem, too."""
        try:
            return self.find_problems(cell)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]

    def find_problems(self, cell: Cell) -> list[str]:
        """Returns what is wrong with a cell; empty if it converged, or was refused rightly."""
        outcome, found = run(self.command, self.machines.node, self.room / "copy", self.machines, cell)
        wrong = differences(self.expected, found)
        is_nothing_pending = self.command is harness.update and cell.path == paths.NEXT_CONFIG
        if outcome.refusals or outcome.left or is_nothing_pending:
            if not outcome.lacks_hint and may_be_refused(cell, self.machines):
                return [f"{path} of the host is lost" for path in self._lost(wrong, cell)]
            return [*outcome.refusals, *outcome.left]
        compared = self.command in {harness.repair, harness.session}
        if compared and must_be_named(cell) and not is_named(cell, outcome.named):
            return ["drift detection does not name it"]
        return [f"{path}: {wrong[path]}" for path in wrong if not self._may_differ(path, cell)]

    def _lost(self, wrong: Iterable[str], cell: Cell) -> list[str]:
        """Returns the files of the host that changed, although the node was not removed."""
        kept = [path for path in wrong if path in self.fresh and path in self.expected and not is_about(path, cell)]
        return [path for path in kept if not path.startswith(SYSTEM)]

    def _may_differ(self, path: str, cell: Cell) -> bool:
        if path in lost_files(cell, self.machines) or path.startswith("/nowhere"):
            return True
        if self.command is harness.unbootstrap:
            # A directory that is not empty contains something that the agent did not create, and is set aside.
            kept = aside_path(cell.path)
            return cell.damage == "full-directory" and (
                f"{kept}/".startswith(f"{path}/") or path.startswith(f"{kept}/")
            )
        if cell.path == paths.CURRENT_CONFIG and cell.damage == "other-node" and path == paths.CONFIG_COPY:
            return True  # nothing tells that it is the configuration of another node
        if self.command is harness.session and (path in REPORTED or is_about(path, cell)):
            return True  # a session observes, and a job repairs
        # The state of the agent, and what other programs wrote, cannot be created again.
        is_component = self.machines.owners.get(path) is Owner.COMPONENT
        return is_about(path, cell) and not is_component
