"""Monitors drift while the daemon runs: what differs, what a repair may change, and conflicts with another program
that keeps changing the same files.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from aks_flex_node.agent import self_update
from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components import vpn as vpn_component
from aks_flex_node.agent.drift.detection import Drift, detect_drift
from aks_flex_node.agent.drift.file_watcher import FileWatcher
from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.job_records.update_journal import UpdateStage
from aks_flex_node.agent.jobs.registry import IGNORE_OPTION
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.lock import is_held
from aks_flex_node.agent.vpn import local_state
from aks_flex_node.lean_dataclass import dataclass, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aks_flex_node.agent.managed_node import ManagedNode


@dataclass
class DriftMonitor:
    node: ManagedNode
    conflicts: Conflicts
    found: tuple[Drift, ...] = ()
    vpn_due: bool = False  # the VPN certificate must be renewed, or the VPN settings changed
    _in_repair: frozenset[str] = frozenset()  # subjects of the repair that runs
    _watcher: FileWatcher | None = None

    def watch(self, on_change: Callable[[frozenset[str]], None]) -> None:
        """Starts a file watcher that calls `on_change` with changed paths."""
        self._watcher = FileWatcher(self.node.engine, on_change)
        self._watcher.start()

    def close(self) -> None:
        if self._watcher:
            self._watcher.close()

    def check(self) -> tuple[Drift, ...]:
        """Compares the machine with its configuration; returns newly detected drift."""
        node = self.node
        if is_held() or self._is_update_in_progress():
            return ()  # another process is changing the machine
        node.engine.ledger = Ledger(node.host, node.engine.ledger.paths)
        known = {(one.subject, one.description) for one in self.found}
        if node.engine.config_complete:
            # Checks whether the VPN must be renewed or reconnected, and updates the machine's address.
            host, config, engine = node.host, node.config, node.engine
            due = local_state.is_renewal_due(host, config, node.now())
            self.vpn_due = due or local_state.is_settings_changed(host, config)
            engine.machine = local_state.with_stable_address(host, config, engine.machine)
            self.found = detect_drift(engine, self_update.compared_components(engine))
        else:
            self.found = (INCOMPLETE_CONFIG,)
        return tuple(one for one in self.found if (one.subject, one.description) not in known)

    def _is_update_in_progress(self) -> bool:
        """Returns whether an interrupted update has already changed the machine; differences from the current
        configuration are then not drift."""
        journal = update_journal.JOURNAL.read(self.node.host)
        return journal is not None and journal.stage is not UpdateStage.PREPARING

    @property
    def repairable_subjects(self) -> set[str]:
        """The subjects that a repair changes: drift without conflicts, foreign files and a retained VPN."""
        # A repair keeps a disabled VPN, because the cluster may need it.
        retained = "" if self.node.config.azure.vpn.enabled else vpn_component.COMPONENT.name
        found = [one for one in self.found if not one.foreign and one.component != retained]
        return {one.subject for one in found} - self._ignored_subjects

    @property
    def conflicting_subjects(self) -> tuple[str, ...]:
        """The subjects that differ but are not repaired, because another program keeps changing them."""
        return tuple(sorted(self._ignored_subjects & {one.subject for one in self.found if not one.fault}))

    @property
    def is_blocked(self) -> bool:
        """Whether a service waits until the cause of its failure is gone, which no event reports."""
        return any(one.blocked for one in self.found)

    def begin_repair(self) -> tuple[str, ...]:
        """Begins a repair of the current drift; returns the arguments of the repair job."""
        self._in_repair = frozenset(self.repairable_subjects)
        return tuple(f"{IGNORE_OPTION}{each}" for each in sorted(self._ignored_subjects))

    def end_repair(self) -> None:
        """Counts the repair. A killed one is not counted: what it did not repair was not changed by others."""
        version, now = self.node.versions.current, self.node.now()
        self.conflicts = self.conflicts.for_configuration(version).with_repairs(self._in_repair, now)
        self._in_repair = frozenset()

    @property
    def _ignored_subjects(self) -> frozenset[str]:
        if not self.conflicts.given_up:
            return frozenset()
        faults = frozenset(one.subject for one in self.found if one.fault)
        conflicts = self.conflicts.for_configuration(self.node.versions.current)
        return conflicts.ignored_subjects(self.node.now(), faults)


MAX_REPAIRS = 3
CONFLICT_SECONDS = 3600.0
FAULT_SECONDS = 60.0  # after three repairs in an hour; the cause may be gone at any time
INCOMPLETE_CONFIG = Drift(
    agent.COMPONENT.name,
    CURRENT_CONFIG,
    f"{CURRENT_CONFIG} is damaged and has no copy, so that the machine cannot be compared with it; join the machine "
    "again with a new URL",
    foreign=True,
)


@frozen
class Conflicts:
    configuration: str = ""  # the configuration version during the repairs
    repaired: dict[str, tuple[float, ...]] = field(default_factory=dict)  # subject -> times of recent repairs
    given_up: dict[str, float] = field(default_factory=dict)  # subject -> time of the last repair

    def for_configuration(self, configuration: str) -> Conflicts:
        """Returns the conflicts for a configuration version; a new version resets them."""
        return self if configuration == self.configuration else Conflicts(configuration)

    def with_repairs(self, subjects: Iterable[str], now: float) -> Conflicts:
        """Returns the conflicts after a repair of the subjects."""
        repaired = {
            name: tuple(one for one in times if _is_recent(one, now)) for name, times in self.repaired.items()
        }
        given_up = {name: since for name, since in self.given_up.items() if _is_recent(since, now)}
        for name in subjects:
            repaired[name] = (*repaired.get(name, ()), now)
            if len(repaired[name]) >= MAX_REPAIRS:
                given_up[name] = now
                repaired[name] = ()
        return replace(self, repaired={name: times for name, times in repaired.items() if times}, given_up=given_up)

    def ignored_subjects(self, now: float, faults: frozenset[str] = frozenset()) -> frozenset[str]:
        """Returns the subjects that are not repaired now. Nothing else changes `faults`, so they are soon repaired
        again.
        """
        return frozenset(
            name
            for name, since in self.given_up.items()
            if _is_recent(since, now) and not (name in faults and now - since > FAULT_SECONDS)
        )


def _is_recent(timestamp: float, now: float) -> bool:
    """Returns whether the time is within the last hour. Future times, from a clock set back since, are ignored."""
    return 0 <= now - timestamp < CONFLICT_SECONDS
