"""The daemon's state in following.json: read by `status`, and by the daemon after a restart."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.daemon.drift_monitor import Conflicts, parse_conflicts
from aks_flex_node.agent.paths import DAEMON_STATE
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class DaemonState:
    standing: ProviderState = ProviderState.STARTING
    message: str = ""
    since: str = ""  # when the standing changed
    asked: str = ""  # when the provider last answered as it should
    seen: str = ""  # the newest configVersion that it named
    applied: str = ""  # when a configuration last came into effect
    credentials: str = ""  # why new credentials are not used, if there are any
    drifts: int = 0  # found since the agent first stayed
    drifted: str = ""  # when the last was found
    drift: tuple[str, ...] = ()  # what differs now
    fights: Conflicts = field(default_factory=Conflicts)

    def is_equivalent(self, other: DaemonState) -> bool:
        """Whether it is worth no writing: for the disk's sake, when the provider answered is kept to ten minutes."""
        return replace(self, asked="") == replace(other, asked="") and self.asked[:15] == other.asked[:15]

    def with_provider_state(self, standing: ProviderState, message: str) -> DaemonState:
        since = self.since if standing is self.standing else format_utc()
        return replace(self, standing=standing, message=message, since=since)

    def as_document(self) -> dict[str, Any]:
        return {**asdict(self), "standing": self.standing.value, "fights": self.fights.as_document()}


def read(host: Host, path: str = DAEMON_STATE) -> DaemonState:
    """The stored state; a value that cannot be understood counts as none, and so does a damaged file."""
    try:
        document = json.loads(host.read(path) or b"{}")
        drift = tuple(str(each) for each in document.pop("drift", ()))
        standing, fights = document.pop("standing", ""), document.pop("fights", {})
        empty = asdict(DaemonState())
        known: dict[str, Any] = {key: value for key, value in document.items() if type(value) is type(empty.get(key))}
        return DaemonState(**known, standing=_provider_state(standing), drift=drift, fights=parse_conflicts(fights))
    except (ValueError, TypeError, AttributeError):
        return DaemonState()


def _provider_state(word: object) -> ProviderState:
    return next((one for one in ProviderState if one.value == word), ProviderState.STARTING)


def write(host: Host, path: str, state: DaemonState) -> None:
    host.apply(WriteFile(path, (json.dumps(state.as_document(), indent=1) + "\n").encode(), 0o600))


@dataclass
class StateStore:
    """Writes the state file and the metrics file when they change. A full disk is logged once, and stops nobody."""

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
                write(self.host, DAEMON_STATE, state)
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
