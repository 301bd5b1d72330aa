"""Tests of the states of systemd units: parsed, and read again only after a change."""

from __future__ import annotations

from dataclasses import dataclass, field

from aks_flex_node.host.actions import MakeLink, Remove
from aks_flex_node.host.host import CommandResult
from aks_flex_node.host.system import INVOCATION_LINK, MAX_AGE_SECONDS, UnitCache, parse_units
from tests.hosts.recorded import RecordedHost

KUBELET, OTHER = "kubelet.service", "other.service"


def test_systemctl_output_of_several_units_is_parsed() -> None:
    text = "Id=a.service\nLoadState=loaded\nActiveState=active\n\nId=b.service\nLoadState=not-found\n"
    found = parse_units(text)
    assert {name: (unit.exists, unit.running) for name, unit in found.items()} == {
        "a.service": (True, True),
        "b.service": (False, False),
    }


class SystemdHost(RecordedHost):
    """A machine with one unit, whose states are asked for with `systemctl`."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = 0
        self.active, self.invocation = "inactive", ""

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:  # noqa: ARG002
        assert argv[:4] == ("systemctl", "show", KUBELET, OTHER)
        self.queries += 1
        unit = f"Id={KUBELET}\nLoadState=loaded\nActiveState={self.active}\nInvocationID={self.invocation}\n"
        return CommandResult(0, f"{unit}\nId={OTHER}\nLoadState=not-found\nActiveState=inactive\n")

    def enter(self, active: str, invocation: str = "") -> None:
        self.active, self.invocation = active, invocation or self.invocation
        self.apply(Remove(f"{INVOCATION_LINK}{KUBELET}"))
        if active == "active":
            self.apply(MakeLink(f"{INVOCATION_LINK}{KUBELET}", invocation))


@dataclass
class Observed:
    host: SystemdHost = field(default_factory=SystemdHost)
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.cache = UnitCache(self.host, (OTHER, KUBELET), lambda: self.now)

    def states(self) -> tuple[str, int]:
        """Returns the state of the unit, read three times, and the number of processes so far."""
        (state,) = {self.cache.unit(name).active for name in (KUBELET, KUBELET, KUBELET)}
        assert not self.cache.unit(OTHER).exists
        return state, self.host.queries


def test_settled_units_are_read_once_with_one_process() -> None:
    it = Observed()
    it.host.enter("active", "one")
    assert it.states() == it.states() == ("active", 1)


def test_units_are_read_again_after_a_restart_a_failure_and_a_stop() -> None:
    it = Observed()
    it.host.enter("active", "one")
    it.states()
    changes = (("active", "two"), ("failed", ""), ("active", "three"), ("inactive", ""))
    for count, (active, invocation) in enumerate(changes, 2):
        it.host.enter(active, invocation)
        assert it.states() == (active, count)


def test_unit_in_a_transition_is_read_each_time() -> None:
    it = Observed()
    it.host.enter("activating", "one")
    assert it.states() == ("activating", 4)
    it.host.enter("active", "one")
    assert it.states() == it.states() == ("active", 5)


def test_units_are_read_again_after_a_while() -> None:
    it = Observed()
    it.host.enter("active", "one")
    it.states()
    it.now += MAX_AGE_SECONDS
    assert it.states() == ("active", 2)
