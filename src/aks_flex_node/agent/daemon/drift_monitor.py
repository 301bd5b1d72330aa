"""Watches this machine for drift: what differs from the configuration, what a repair is to put right, what is left
alone because something else changes it again and again, and whether the VPN needs attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.components import vpn as vpn_component
from aks_flex_node.agent.drift.detection import detect_drift
from aks_flex_node.agent.drift.file_watcher import FileWatcher
from aks_flex_node.agent.jobs import self_update
from aks_flex_node.agent.jobs.registry import IGNORE_OPTION
from aks_flex_node.agent.jobs.update import update_journal
from aks_flex_node.agent.jobs.update.update_journal import UpdateStage
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.lock import is_held
from aks_flex_node.agent.vpn import local_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.drift.conflicts import Conflicts
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
        node.engine.ledger = Ledger(node.host, node.engine.ledger.places)
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
