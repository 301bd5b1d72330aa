"""The daemon's state in daemon-state.json, read by `status` and by the daemon after a restart."""

from __future__ import annotations

import contextlib
import json
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from aks_flex_node.agent.daemon.drift_monitor import Conflicts
from aks_flex_node.agent.paths import DAEMON_STATE
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.host.records import RecordFile
from aks_flex_node.lean_dataclass import dataclass, frozen
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.host.host import Host


@frozen
class DaemonState:
    provider_state: ProviderState = ProviderState.STARTING
    message: str = ""
    since: str = ""  # when the provider state changed
    last_answer: str = ""  # time of the last successful poll
    newest_version: str = ""  # the newest configVersion from the provider
    last_applied: str = ""  # time of the last successful update
    credentials_problem: str = ""  # why new credentials are not in use, if any
    drift_count: int = 0  # total since the daemon first ran
    last_drift: str = ""  # time of the last detection
    drift: tuple[str, ...] = ()  # current differences
    conflicts: Conflicts = field(default_factory=Conflicts)
    unapplied: dict[str, str] = field(default_factory=dict)  # version, reason and message of the last update
    settled_node: str = ""  # UID of the Node that has the configuration in effect; another UID shows a deletion
    not_accepted: str = ""  # why the latest configuration is not even pending, if it is not

    def is_equivalent(self, other: DaemonState) -> bool:
        """Returns whether the state need not be written again. To limit disk writes, `last_answer` is compared with
        ten-minute precision."""
        same = self == replace(other, last_answer=self.last_answer)
        return same and self.last_answer[:15] == other.last_answer[:15]

    def with_provider_state(self, provider_state: ProviderState, message: str) -> DaemonState:
        since = self.since if provider_state is self.provider_state else format_utc()
        return replace(self, provider_state=provider_state, message=message, since=since)


STATE = RecordFile(DAEMON_STATE, DaemonState)  # `read` keeps the valid values of a damaged one


def read(host: Host) -> DaemonState:
    """Reads the stored state; uses defaults for invalid values or a damaged file."""
    known: dict[str, Any] = {}
    with contextlib.suppress(ValueError, RecursionError):
        document = msgspec.convert(json.loads(host.read(DAEMON_STATE) or b"{}"), dict[str, Any])
        for name, kind in get_type_hints(DaemonState).items():
            with contextlib.suppress(KeyError, ValueError):
                known[name] = msgspec.convert(document[name], kind)
    return DaemonState(**known)


@dataclass
class StateStore:
    """Writes the state and metrics files when they change. Logs a write error (full disk) once and continues."""

    host: Host
    log_error: Callable[[MachineError], None]
    _saved: DaemonState | None = None
    _metrics: bytes = b""
    _last_error: str = ""

    def load(self) -> DaemonState:
        self._saved = read(self.host)
        return self._saved

    def save(self, state: DaemonState) -> None:
        if self._saved is None or not state.is_equivalent(self._saved):
            with self._tolerate_write_errors():
                STATE.write(self.host, state)
                self._saved = state

    def save_metrics(self, path: str, text: bytes) -> None:
        if text != self._metrics:
            with self._tolerate_write_errors():
                self.host.apply(WriteFile(path, text, 0o644))
                self._metrics = text

    @contextlib.contextmanager
    def _tolerate_write_errors(self) -> Iterator[None]:
        try:
            yield
        except MachineError as error:
            if error.message != self._last_error:
                self._last_error = error.message
                self.log_error(error)
