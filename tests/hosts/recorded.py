"""A host whose files, units and command results are given by a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.errors import MachineError
from aks_flex_node.host.dry_run import DryHost
from aks_flex_node.host.host import MISSING_PROGRAM, CommandResult, EntryKind, FileEntry, UnitState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.host.actions import Action


class EmptyHost:
    """A machine without files and units, with given results of some commands."""

    live = True

    def __init__(self, answers: Mapping[tuple[str, ...], CommandResult]) -> None:
        self._answers = answers

    def read(self, path: str) -> bytes | None:  # noqa: ARG002
        return None

    def digest(self, path: str) -> str:  # noqa: ARG002
        return ""

    def stat(self, path: str) -> FileEntry | None:
        return FileEntry(EntryKind.DIRECTORY, 0o755) if path == "/" else None

    def list_dir(self, path: str) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:  # noqa: ARG002
        return self._answers.get(
            argv, CommandResult(MISSING_PROGRAM, err=f"{argv[0]}: nobody wrote down what it says")
        )

    def unit(self, name: str) -> UnitState:
        return UnitState(name)

    def apply(self, action: Action) -> None:
        raise NotImplementedError(f"{action}: there is nothing to do it to")


class RecordedHost(DryHost):
    """A host that returns recorded state and the effects of the actions applied since."""

    def __init__(
        self,
        files: Mapping[str, bytes | str] | None = None,
        answers: Mapping[tuple[str, ...], CommandResult] | None = None,
        units: Mapping[str, UnitState] | None = None,
    ) -> None:
        super().__init__(EmptyHost(answers or {}))
        self.refuses: Callable[[Action], object] | None = None  # which actions fail
        self.failure: BaseException = MachineError("disk-full", "The disk is full.")
        self._units = dict(units or {})
        for path, content in (files or {}).items():
            self._parents(path)
            data = content.encode() if isinstance(content, str) else content
            self._put(path, FileEntry(EntryKind.FILE, size=len(data)), data)

    def apply(self, action: Action) -> None:
        if self.refuses and self.refuses(action):
            raise self.failure
        super().apply(action)

    def mode_of(self, path: str) -> int:
        """Returns the mode of a file or directory, which must exist."""
        entry = self.stat(path)
        assert entry, path
        return entry.mode

    def _parents(self, path: str) -> None:
        for parent in list(_above(path)):
            if self.stat(parent) is None:
                self._put(parent, FileEntry(EntryKind.DIRECTORY, 0o755))


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]
