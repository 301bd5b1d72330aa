"""Removes the node from this machine: drains and removes the Node, stops pods, removes all components and the
agent's state, and verifies that nothing is left.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, paths
from aks_flex_node.agent.bootstrap import pod_cleanup, prerequisites
from aks_flex_node.agent.cluster.client import node_api
from aks_flex_node.agent.cluster.nodes import NodeRemoval
from aks_flex_node.agent.components.catalog import AGENT_COMPONENTS, ALL, SEQUENCE
from aks_flex_node.agent.components.service import UNIT_NAME
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.resolved import log_file
from aks_flex_node.agent.event_log import EventLog
from aks_flex_node.agent.ledger_rebuild import rebuild_ledger
from aks_flex_node.agent.machine import identify_machine
from aks_flex_node.agent.paths import state_file
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.engine import Engine
from aks_flex_node.agent.reconcile.ledger import staging_dir
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.agent.reconcile.resources import Directory, Spec
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import (
    MakeDirectory,
    PlaceTree,
    ReloadUnits,
    Remove,
    RemoveTree,
    Run,
    StopUnit,
    WriteFile,
)
from aks_flex_node.host.dry_run import DryHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aks_flex_node.agent.bootstrap.prerequisites import AzureCleanup
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.ledger import LedgerRecord
    from aks_flex_node.host.actions import Action

REMOVED_ID = re.compile(r"^az .* --ids (/subscriptions/\S+)")  # in a command for an Azure administrator
AGENT_FILES = (
    paths.APPLIED_CONFIG,
    paths.CLUSTER_FACTS,
    paths.POOL_FACTS,
    paths.MACHINE_RECORD,
    paths.OPERATION_RECORD,
    paths.CURRENT_CONFIG,
    paths.CONFIG_VERSION_FILE,
    paths.CONFIG_URL_DIGEST,
    paths.NEXT_CONFIG,
    paths.UPDATE_JOURNAL,
    paths.JOB_RESULT,
    paths.FAILED_CONFIG,
    paths.RELEASED_CONFIG,
    paths.DAEMON_STATE,
    paths.DAEMON_LOCK,
    config_store.JOURNAL_FILE,
    paths.PUBLIC_STATUS,
    paths.PUBLIC_STATUS_DIR,  # after the file in it
)


@dataclass
class Unbootstrap:
    engine: Engine
    node_removal: NodeRemoval | None
    progress: ProgressReporter
    keep_artifacts: bool = False
    azure_cleanups: Sequence[AzureCleanup] = ()  # for resources created in Azure for this machine
    report_remaining: Callable[[list[str]], list[str]] | None = None  # to the provider, which may remove them
    problems: list[str] = field(default_factory=list)
    manual_commands: list[str] = field(default_factory=list)
    _was_node: bool = False  # resources owned by the agent were found
    _shared_dirs: frozenset[str] = frozenset()  # may contain files of other programs

    def run(self) -> list[str]:
        """Removes everything that the agent owns; returns what is left, one line each."""
        paths = self.engine.config.paths
        self._rebuild_ledger()
        self._save_state()
        self._shared_dirs = self._shared_folders()
        if self.node_removal and self._was_node:
            self.manual_commands += self.node_removal.run(self.progress.note)
        self._run_step("pods", "pods, their containers, mounts and network", self._pods())
        self._remove(reversed(SEQUENCE))
        if self._was_node:
            self._clean_up_azure()
        if not self.problems:
            self._remove(reversed(AGENT_COMPONENTS))  # last, because it must be able to finish an incomplete run
        self._reset_failed_units()
        if not self.problems:
            self._run_step("agent", "the agent's state", self._agent_state_removal(paths.data_dir, paths.log_dir))
        return [*self.problems, *self.remains()]

    def _remove(self, components: Iterable[Component]) -> None:
        for component in components:
            with self._step(component.name, component.title) as done:
                done.extend(self.engine.remove(component, self.problems.append))

    def _clean_up_azure(self) -> None:
        """Removes this machine's resources in Azure. Failures are reported and do not stop the local cleanup."""
        for name, title, act in self.azure_cleanups:
            with self._step(name, title, counted=False):
                try:
                    if name == prerequisites.MACHINE_CLEANUP:
                        self._leave_node_to_aks()
                    self.manual_commands += act()
                except FlexError as error:
                    self.progress.note(error.message)
                    self.problems.append(error.message)
        if self.report_remaining:
            self._report_remaining(self.report_remaining)

    def _leave_node_to_aks(self) -> None:
        """Forgets the command that deletes the Node: AKS deletes it with its Machine."""
        self.manual_commands = [line for line in self.manual_commands if not line.startswith("kubectl delete node ")]

    def _report_remaining(self, report: Callable[[list[str]], list[str]]) -> None:
        """Reports the resources that are left in Azure to the provider, and forgets those that it removes."""
        ids = [found[1] for line in self.manual_commands if (found := REMOVED_ID.search(line))]
        for each in report(ids):
            self.progress.note(f"the resource provider removed {each}")
            self.manual_commands = [line for line in self.manual_commands if each not in line]

    def _run_step(self, name: str, title: str, actions: Iterable[Action]) -> None:
        with self._step(name, title) as done:
            for action in actions:
                with self._collect_problem():
                    self.engine.events.emit("action", str(action), "debug", component=name)
                    self.engine.host.apply(action)
                    done.append(action)

    @contextlib.contextmanager
    def _step(self, name: str, title: str, *, counted: bool = True) -> Iterator[list[Action]]:
        """Reports a step as progress; the caller appends the applied actions to the yielded list. What a step changes
        in Azure is not counted.
        """
        start = time.monotonic()
        done: list[Action] = []
        self.progress.step_started(name, title)
        yield done
        self.progress.step_finished(name, len(done) if counted else None, time.monotonic() - start)

    @contextlib.contextmanager
    def _collect_problem(self) -> Iterator[None]:
        try:
            yield
        except FlexError as error:
            self.problems.append(error.message)

    def _rebuild_ledger(self) -> None:
        """Rebuilds a lost ledger from marked files."""
        if rebuild_ledger(self.engine):
            self.progress.note("ledger missing: using marked files; kernel settings remain until the next reboot")
        self._was_node = self.engine.ledger.exists

    def _pods(self) -> list[Action]:
        """Returns the removal of pod resources; empty on a machine that was never a node."""
        return (
            pod_cleanup.pod_removal(self.engine.host, self.engine.config, self.engine.ledger.found)
            if self._was_node
            else []
        )

    def _save_state(self) -> None:
        path = state_file(self.engine.config.paths.data_dir)
        if self.engine.host.stat(self.engine.config.paths.data_dir) is not None:
            node_state.write(
                self.engine.host, path, node_state.read(self.engine.host, path).with_phase(Phase.RESETTING)
            )

    def _reset_failed_units(self) -> None:
        host = self.engine.host
        if host.live:
            failed = [name for name in pod_cleanup.SERVICES if host.unit(name).active == "failed"]
            forget = [
                Run(("systemctl", "reset-failed", name), f"reset the failed state of {name}") for name in failed
            ]
            self._run_step("units", "reset systemd units", [*forget, ReloadUnits()])

    def _agent_state_removal(self, data_dir: str, log_dir: str) -> Iterator[Action]:
        """Plans the removal of the agent's state. The ledger is last, so that another run can finish this one."""
        if self.engine.host.unit(UNIT_NAME).running:  # started with the unit of the package, which is not removed
            yield StopUnit(UNIT_NAME)
        yield RemoveTree(f"{data_dir}/originals")
        if not self.keep_artifacts:
            yield RemoveTree(f"{data_dir}/artifacts")
        yield Remove(paths.state_file(data_dir))
        yield from (Remove(owned_path) for owned_path in AGENT_FILES)
        log = log_file(self.engine.config)
        yield from (Remove(owned_path) for owned_path in (log, f"{log}.1"))
        if self._was_node:
            yield Remove(log_dir)
        ledger = self.engine.ledger
        records = dict(ledger.owned("agent").paths)
        for path in ledger.paths:
            yield from self._last_of(path, records.get(path.rpartition("/")[0], {}))
        yield from (Remove(owned_path) for owned_path, record in reversed(records.items()) if came_with_us(record))

    def _last_of(self, path: str, record: LedgerRecord) -> Iterator[Action]:
        """Removes a directory and the ledger in it in one atomic step, so that no unknown directory is left."""
        host, (folder, _, name) = self.engine.host, path.rpartition("/")
        yield RemoveTree(staging_dir(folder))
        if came_with_us(record) and host.list_dir(folder) == (name,):
            yield PlaceTree(folder, staging_dir(folder))
            yield RemoveTree(staging_dir(folder))
            return
        entry, mode = host.stat(folder), (record.get("original") or {}).get("mode")
        if entry and mode is not None and entry.mode != mode:
            yield MakeDirectory(folder, mode)
        yield Remove(path)

    def _shared_folders(self) -> frozenset[str]:
        specs = [component.desired(self.engine.config, self.engine.machine) for component in ALL]
        found = {one.path for spec in specs for one in spec.resources if isinstance(one, Directory)}
        return frozenset(found | {self.engine.config.paths.install_dir})

    def left_on_purpose(self) -> list[str]:
        """Returns what was kept intentionally: files of other programs, and artifacts if requested."""
        host, paths = self.engine.host, self.engine.config.paths
        remaining = [f"{paths.data_dir}/artifacts (--keep-artifacts)"] if self.keep_artifacts else []
        remaining += [
            f"{path}: {', '.join(host.list_dir(path)[:5])} (not created by aks-flex-node)"
            for path in sorted(self._shared_dirs)
            if host.list_dir(path)
        ]
        return remaining

    def remains(self) -> list[str]:
        """Observes the machine and returns the removals that are still necessary; empty on success."""
        engine = self.engine
        found = [str(action) for action in self._pods()]
        for component in ALL:
            facts = component.observe(engine.host, Spec(), engine.ledger.owned(component.name))
            found += [str(action) for action in component.removal(facts)]
        return found


def came_with_us(record: LedgerRecord) -> bool:
    """Returns whether the path did not exist before the agent created it."""
    return "original" in record and record["original"] is None


PROVIDER_SECONDS = 5.0  # the resource provider deletes a Node about a second after it is marked as left


def unbootstrap_node(
    config: NodeConfig, progress: ProgressReporter, *, keep_artifacts: bool, seconds: float, keep_node: bool = False
) -> None:
    """Removes the node. With `keep_node`, the Node is not touched, because it lives on another machine now."""
    start = time.monotonic()
    with exclusive():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # continue when the terminal closes
        engine = context.make_engine(config)
        removal = None if keep_node else _node_removal(engine, seconds)
        cleanups = prerequisites.azure_cleanups(engine, progress.note)
        report = None if keep_node else prerequisites.remaining_report(engine, progress.note)
        job = Unbootstrap(
            engine,
            removal,
            progress,
            keep_artifacts=keep_artifacts,
            azure_cleanups=cleanups,
            report_remaining=report,
        )
        remains = job.run()
    for line in job.left_on_purpose():
        progress.message(f"kept: {line}")
    for line in job.manual_commands:
        scope = "Azure" if line.startswith("az ") else "cluster"
        progress.message(f"to be run by {'an' if scope == 'Azure' else 'a'} {scope} administrator: {line}")
    if remains:
        raise FlexError(
            "unbootstrap-incomplete",
            "\n".join(["Not everything of the node was removed:", *remains]),
            "Run the same command again. It continues where it stopped.",
            retryable=True,
        )
    seconds_taken = time.monotonic() - start
    progress.message(
        f"This machine is no longer a node. All that the agent installed is gone ({seconds_taken:.1f} s)."
    )


def _node_removal(engine: Engine, seconds: float) -> NodeRemoval | None:
    """Returns the removal of the Node, or None for a machine without credentials for the cluster."""
    config, node = engine.config, context.node_name(engine)
    if not context.has_credentials(config) or not config.node.kubelet.server_url:
        return None
    from_provider = any(Path(path).exists() for path in (paths.CONFIG_URL_DIGEST, paths.CONFIG_VERSION_FILE))
    waits = (from_provider or context.is_managed()) and not config.azure.target_agent_pool_name
    delete_seconds = PROVIDER_SECONDS if waits else 0.0
    machine = identify_machine(engine.host, None)
    return NodeRemoval(node_api(config), node, seconds, delete_seconds, machine.id if machine else "")


def plan_unbootstrap(config: NodeConfig) -> list[str]:
    """Returns the actions of an unbootstrap, one line each, by running it on a host that only records actions."""
    real = context.make_engine(config)
    host = DryHost(real.host)
    engine = Engine(host, config, real.machine, real.ledger.copy(host), EventLog())
    Unbootstrap(engine, None, ProgressReporter()).run()
    name, own = context.node_name(real), {*engine.ledger.paths, state_file(config.paths.data_dir)}
    removes_node = _node_removal(real, 0) is not None
    shown = [action for action in host.done if not (isinstance(action, WriteFile) and action.subject in own)]
    return [
        *([f"cordon and drain node {name}, and mark it as left"] if removes_node else []),
        *(action.description for action in shown),
        *prerequisites.describe_azure_cleanup(real.host, config),
    ]
