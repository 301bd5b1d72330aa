"""The daemon's state in following.json: read by `status`, and by the daemon after a restart."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.host.actions import WriteFile

if TYPE_CHECKING:
    from aks_flex_node.host.host import Host


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass(frozen=True)
class DaemonState:
    standing: str = ProviderState.STARTING.value
    message: str = ""
    since: str = ""  # when the standing changed
    asked: str = ""  # when the provider last answered as it should
    seen: str = ""  # the newest configVersion that it named
    applied: str = ""  # when a configuration last came into effect
    credentials: str = ""  # why new credentials are not used, if there are any
    drifts: int = 0  # found since the agent first stayed
    drifted: str = ""  # when the last was found
    drift: tuple[str, ...] = ()  # what differs now
    fights: dict[str, Any] = field(default_factory=dict)

    def is_equivalent(self, other: DaemonState) -> bool:
        """Whether it is worth no writing: for the disk's sake, when the provider answered is kept to ten minutes."""
        return replace(self, asked="") == replace(other, asked="") and self.asked[:15] == other.asked[:15]

    def with_provider_state(self, standing: ProviderState, message: str) -> DaemonState:
        changed = standing.value != self.standing
        return replace(
            self,
            standing=standing.value,
            message=message,
            since=now() if changed else self.since,
        )


def read(host: Host, path: str) -> DaemonState:
    """What was kept; a file that is lost or damaged says nothing."""
    try:
        document = json.loads(host.read(path) or b"{}")
        drift = tuple(str(each) for each in document.pop("drift", ()))
        empty = asdict(DaemonState())
        known: dict[str, Any] = {key: value for key, value in document.items() if type(value) is type(empty.get(key))}
        return DaemonState(**known, drift=drift)
    except (ValueError, TypeError, AttributeError):
        return DaemonState()


def write(host: Host, path: str, notes: DaemonState) -> None:
    host.do(WriteFile(path, (json.dumps(asdict(notes), indent=1) + "\n").encode(), 0o600))
