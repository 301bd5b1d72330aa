"""Watches for drift while the daemon runs: what differs, what a repair may put right, and conflicts with
another party that keeps changing the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import self_update
from aks_flex_node.agent.components import vpn as vpn_component
from aks_flex_node.agent.drift.detection import detect_drift
from aks_flex_node.agent.drift.file_watcher import FileWatcher
from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.job_records.update_journal import UpdateStage
from aks_flex_node.agent.jobs.registry import IGNORE_OPTION
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.lock import is_held
from aks_flex_node.agent.vpn import local_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aks_flex_node.agent.drift.detection import Drift
    from aks_flex_node.agent.managed_node import ManagedNode


@dataclass
class DriftMonitor:
    node: ManagedNode
    conflicts: Conflicts
    found: tuple[Drift, ...] = ()
    vpn_due: bool = False  # the VPN's certificate is about to end, or the configuration means another VPN
    _watcher: FileWatcher | None = None

    def watch(self, on_change: Callable[[frozenset[str]], None]) -> None:
        """Reports files as they change, from now on."""
        self._watcher = FileWatcher(self.node.engine, on_change)
        self._watcher.start()

    def close(self) -> None:
        if self._watcher:
            self._watcher.close()

    def check(self) -> tuple[Drift, ...]:
        """Compares all of the machine with its configuration; returns what was not known to differ before."""
        node = self.node
        if is_held() or self._is_update_in_progress():
            return ()  # what is seen now is half of something
        node.engine.ledger = Ledger(node.host, node.engine.ledger.paths)
        self._check_vpn()
        known = {(one.subject, one.description) for one in self.found}
        self.found = detect_drift(node.engine, self_update.compared_components(node.engine))
        return tuple(one for one in self.found if (one.subject, one.description) not in known)

    def _is_update_in_progress(self) -> bool:
        """Whether an update has begun to change the machine and waits to be continued: then it is no drift that the
        machine is not as the configuration before wants it."""
        journal = update_journal.read_journal(self.node.host)
        return journal is not None and journal.stage is not UpdateStage.PREPARING

    def _check_vpn(self) -> None:
        """Its certificate may be about to end, the configuration may mean another one; and a gateway may give this
        machine another address."""
        host, config, engine = self.node.host, self.node.config, self.node.engine
        due = local_state.is_renewal_due(host, config, self.node.now())
        self.vpn_due = due or local_state.is_settings_changed(host, config)
        engine.machine = local_state.with_stable_address(host, config, engine.machine)

    @property
    def repairable_subjects(self) -> set[str]:
        """What a repair is to put right."""
        found = [one for one in self.found if not (one.foreign or self._is_kept_vpn(one))]
        return {one.subject for one in found} - self._ignored_subjects

    @property
    def conflicting_subjects(self) -> tuple[str, ...]:
        """What differs and is left alone, because something else changes it again and again."""
        return tuple(sorted(self._ignored_subjects & {one.subject for one in self.found}))

    def begin_repair(self) -> tuple[str, ...]:
        """Counts a repair of what differs now; returns the arguments of the repair job."""
        subjects, version = self.repairable_subjects, self.node.versions.current
        self.conflicts = self.conflicts.for_configuration(version).with_repairs(subjects, self.node.now())
        # What is given up with this very repair is repaired once more, and left alone from then on.
        return tuple(f"{IGNORE_OPTION}{each}" for each in sorted(self._ignored_subjects - subjects))

    def _is_kept_vpn(self, one: Drift) -> bool:
        """Whether a repair leaves it as it is, because it may be the way to the cluster."""
        return one.component == vpn_component.COMPONENT.name and not self.node.config.azure.vpn.enabled

    @property
    def _ignored_subjects(self) -> frozenset[str]:
        return self.conflicts.for_configuration(self.node.versions.current).ignored_subjects(self.node.now())


MAX_REPAIRS = 3
CONFLICT_SECONDS = 3600.0


@dataclass(frozen=True)
class Conflicts:
    configuration: str = ""  # the version under which all of this happened
    repaired: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # subject -> when, of late
    given_up: Mapping[str, float] = field(default_factory=dict)  # subject -> since when it is left alone

    def for_configuration(self, configuration: str) -> Conflicts:
        """The same under a configuration; another one is reason to try everything again."""
        return self if configuration == self.configuration else Conflicts(configuration)

    def with_repairs(self, subjects: Iterable[str], now: float) -> Conflicts:
        """What is known after these were repaired."""
        repaired = {name: _recent_times(times, now) for name, times in self.repaired.items()}
        given_up = {name: since for name, since in self.given_up.items() if _is_recent(since, now)}
        for name in subjects:
            repaired[name] = (*repaired.get(name, ()), now)
            if len(repaired[name]) >= MAX_REPAIRS:
                given_up[name] = now
                repaired[name] = ()
        return replace(self, repaired={name: times for name, times in repaired.items() if times}, given_up=given_up)

    def ignored_subjects(self, now: float) -> frozenset[str]:
        return frozenset(name for name, since in self.given_up.items() if _is_recent(since, now))

    def as_document(self) -> dict[str, Any]:
        repaired = {name: list(times) for name, times in self.repaired.items()}
        return {"configuration": self.configuration, "repaired": repaired, "givenUp": dict(self.given_up)}


def parse_conflicts(document: object) -> Conflicts:
    """What a document says; one that says nothing we understand is like none."""
    try:
        assert isinstance(document, dict)  # noqa: S101 - caught below, like all that is wrong with it
        repaired = {str(name): tuple(float(one) for one in times) for name, times in document["repaired"].items()}
        given_up = {str(name): float(since) for name, since in document["givenUp"].items()}
        return Conflicts(str(document["configuration"]), repaired, given_up)
    except (AssertionError, KeyError, TypeError, ValueError, AttributeError):
        return Conflicts()


def _is_recent(timestamp: float, now: float) -> bool:
    """Whether it was within the hour. What lies ahead is from a clock that has been set back since."""
    return 0 <= now - timestamp < CONFLICT_SECONDS


def _recent_times(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(one for one in times if _is_recent(one, now))
