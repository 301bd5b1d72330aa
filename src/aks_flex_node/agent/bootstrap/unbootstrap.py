"""Removes the node from this machine: drains and removes the Node, stops pods, removes all components and the
agent's state, and verifies that nothing is left.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, paths
from aks_flex_node.agent.bootstrap import pod_cleanup, prerequisites
from aks_flex_node.agent.cluster.client import node_api
from aks_flex_node.agent.cluster.node_health import has_kubelet_credential
from aks_flex_node.agent.cluster.nodes import NodeRemoval
from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components.catalog import AGENT_COMPONENTS, ALL, SEQUENCE
from aks_flex_node.agent.components.service import UNIT_NAME, completion_unit
from aks_flex_node.agent.config.resolved import log_file
from aks_flex_node.agent.event_log import EventLog
from aks_flex_node.agent.job_records.job_result import STAGE_UNIT
from aks_flex_node.agent.ledger_rebuild import rebuild_ledger
from aks_flex_node.agent.machine import identify_machine
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.engine import Engine
from aks_flex_node.agent.reconcile.ledger import LedgerRecord, staging_dir
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.agent.reconcile.observer import is_intact_copy
from aks_flex_node.agent.reconcile.resources import Directory, Spec
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import (
    Action,
    EnableUnit,
    MakeDirectory,
    PlaceTree,
    ReloadUnits,
    Remove,
    RemoveTree,
    Run,
    SetAside,
    StopUnit,
    WriteFile,
    aside_path,
)
from aks_flex_node.host.dry_run import DryHost
from aks_flex_node.host.host import EntryKind
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aks_flex_node.agent.bootstrap.prerequisites import AzureCleanup
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.settings.models import NodeConfig

REMOVED_ID = re.compile(r"^az .* --ids (/subscriptions/\S+)")  # in a command for an Azure administrator
AGENT_FILES = (
    *paths.STATE_FILES,
    paths.PUBLIC_STATUS,
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
    _services: frozenset[str] = frozenset()  # that the agent installed
    _shared_dirs: frozenset[str] = frozenset()  # may contain files of other programs

    def run(self) -> list[str]:
        """Removes everything that the agent owns; returns what is left, one line each."""
        paths = self.engine.config.paths
        if rebuild_ledger(self.engine):
            self.progress.note("ledger missing: using marked files; kernel settings remain until the next reboot")
        self._was_node = self.engine.ledger.exists
        self._services = self.engine.ledger.services
        with self._collect_problem():  # a disk that cannot be written does not stop the removal of the rest
            self._set_damaged_state_aside()
            self._save_state()
        specs = [component.desired(self.engine.config, self.engine.machine) for component in ALL]
        found = {one.path for spec in specs for one in spec.resources if isinstance(one, Directory)}
        self._shared_dirs = frozenset(found | {self.engine.config.paths.install_dir})
        for path, record in self.engine.ledger.records:
            copy = (record.get("original") or {}).get("copy")
            if copy and not is_intact_copy(self.engine.host, copy):
                self.progress.note(
                    f"{path} existed before the join, but its copy is lost or damaged: it is not restored"
                )
        if self.node_removal and self._was_node:
            self.manual_commands += self.node_removal.run(self.progress.note)
        self._run_step("pods", "pods, their containers, mounts and network", self._pods())
        self._remove(reversed(SEQUENCE))
        if self._was_node:
            self._clean_up_azure()
        if not self.problems:
            self._run_step("agent", "completion after a power loss", self._completion_setup())
            self._remove(reversed(AGENT_COMPONENTS))  # last, because it must be able to finish an incomplete run
        self._reset_failed_units()
        if not self.problems:
            self._run_step("agent", "the agent's state", self._agent_state_removal(paths.data_dir, paths.log_dir))
        return [*self.problems, *self.remains()]

    def _remove(self, components: Iterable[Component]) -> None:
        for component in components:
            done: list[Action] = []
            with self.progress.step(component.name, component.title, done):
                done.extend(self.engine.remove(component, self.problems.append))

    def _clean_up_azure(self) -> None:
        """Removes this machine's resources in Azure. Failures are reported and do not stop the local cleanup."""
        for name, title, act in self.azure_cleanups:
            with self.progress.step(name, title):
                try:
                    if name == prerequisites.MACHINE_CLEANUP:
                        # Forgets the command that deletes the Node: AKS deletes it with its Machine.
                        self.manual_commands = [
                            line for line in self.manual_commands if not line.startswith("kubectl delete node ")
                        ]
                    self.manual_commands += act()
                except FlexError as error:
                    self.progress.note(error.message)
                    self.problems.append(error.message)
        if self.report_remaining:
            ids = [found[1] for line in self.manual_commands if (found := REMOVED_ID.search(line))]
            for each in self.report_remaining(ids):
                self.progress.note(f"the resource provider removed {each}")
                self.manual_commands = [line for line in self.manual_commands if each not in line]

    def _run_step(self, name: str, title: str, actions: Iterable[Action]) -> None:
        done: list[Action] = []
        with self.progress.step(name, title, done):
            for action in actions:
                with self._collect_problem():
                    self.engine.events.emit("action", str(action), "debug", component=name)
                    self.engine.host.apply(action)
                    done.append(action)

    @contextlib.contextmanager
    def _collect_problem(self) -> Iterator[None]:
        try:
            yield
        except FlexError as error:
            self.problems.append(error.message)

    def _pods(self) -> list[Action]:
        """Returns the removal of pod resources; empty on a machine that was never a node."""
        if not self._was_node:
            return []
        engine, cidr = self.engine, self.engine.machine.pod_cidr
        return pod_cleanup.pod_removal(engine.host, engine.config, engine.ledger.found, self._services, cidr)

    def _set_damaged_state_aside(self) -> None:
        own = {paths.state_file(self.engine.config.paths.data_dir), *paths.STATE_FILES}
        for action in self.engine.plan(agent.COMPONENT).actions:
            if isinstance(action, SetAside) and action.path in own:
                self.engine.host.apply(action)

    def _save_state(self) -> None:
        host, config = self.engine.host, self.engine.config
        folder = host.stat(f"{config.paths.data_dir}/.")
        if folder is not None and folder.kind is EntryKind.DIRECTORY:
            node_state.save(host, config, node_state.load(host, config).with_phase(Phase.RESETTING))

    def _reset_failed_units(self) -> None:
        host = self.engine.host
        if host.live:
            names = (*pod_cleanup.SERVICES, UNIT_NAME)  # the daemon may have been killed while it was stopped
            failed = [name for name in names if host.unit(name).active == "failed"]
            forget = [
                Run(("systemctl", "reset-failed", name), f"reset the failed state of {name}") for name in failed
            ]
            self._run_step("units", "reset systemd units", [*forget, ReloadUnits()])

    def _completion_setup(self) -> Iterator[Action]:
        """Installs the unit that continues if this run is interrupted when no daemon is left to continue it."""
        if self._was_node:
            entry = self.engine.host.stat(paths.COMPLETION_UNIT)
            if entry and entry.kind is EntryKind.DIRECTORY:
                yield SetAside(paths.COMPLETION_UNIT)
            yield WriteFile(paths.COMPLETION_UNIT, completion_unit(self.engine.machine))
            yield EnableUnit(paths.COMPLETION_UNIT.rpartition("/")[2])

    def _agent_state_removal(self, data_dir: str, log_dir: str) -> Iterator[Action]:
        """Plans the removal of the agent's state. The ledger is last, so that another run can finish this one."""
        for name in (UNIT_NAME, STAGE_UNIT):  # the first if started with the unit of the package, which stays
            if self.engine.host.unit(name).running:
                yield StopUnit(name)
        yield RemoveTree(f"{data_dir}/originals")
        if not self.keep_artifacts:
            yield RemoveTree(f"{data_dir}/artifacts")
        for owned_path in (paths.state_file(data_dir), *AGENT_FILES):
            yield from self._file_removal(owned_path)
        yield Remove(paths.PUBLIC_STATUS_DIR)
        log = log_file(self.engine.config)
        yield from (Remove(owned_path) for owned_path in (log, f"{log}.1"))
        if self._was_node:
            yield Remove(log_dir)
        if self.problems:
            return  # for example a mount in the artifacts: the next run needs the ledger to remove the rest
        ledger = self.engine.ledger
        records = dict(ledger.owned("agent").paths)
        for path in ledger.paths:
            yield from self._last_of(path, records.get(path.rpartition("/")[0], {}))
        yield from (Remove(owned_path) for owned_path, record in reversed(records.items()) if came_with_us(record))
        completion = [file for file in (paths.COMPLETION_LINK, paths.COMPLETION_UNIT) if self.engine.host.stat(file)]
        for file in completion:
            yield from self._file_removal(file)
        if completion and self.engine.host.live:
            yield ReloadUnits()

    def _file_removal(self, path: str) -> Iterator[Action]:
        """Removes a file of the agent, what was set aside of it, and a directory in its place."""
        if self.engine.host.stat(aside_path(path)) is not None:
            yield RemoveTree(aside_path(path))
        entry = self.engine.host.stat(path)
        yield RemoveTree(path) if entry and entry.kind is EntryKind.DIRECTORY else Remove(path)

    def _last_of(self, path: str, record: LedgerRecord) -> Iterator[Action]:
        """Removes a directory and the ledger in it in one atomic step, so that no unknown directory is left."""
        host, (folder, _, name) = self.engine.host, path.rpartition("/")
        yield RemoveTree(staging_dir(folder))
        if host.stat(aside_path(path)) is not None:
            yield RemoveTree(aside_path(path))
        if came_with_us(record) and host.list_dir(folder) == (name,):
            yield PlaceTree(folder, staging_dir(folder))
            yield RemoveTree(staging_dir(folder))
            return
        entry, mode = host.stat(folder), (record.get("original") or {}).get("mode")
        if entry and mode is not None and entry.mode != mode:
            yield MakeDirectory(folder, mode)
        yield from self._file_removal(path)

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
    if not has_kubelet_credential(engine.host, config) or not config.node.kubelet.server_url:
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
    name, own = context.node_name(real), {*engine.ledger.paths, paths.state_file(config.paths.data_dir)}
    removes_node = _node_removal(real, 0) is not None
    shown = [action for action in host.done if not (isinstance(action, WriteFile) and action.subject in own)]
    return [
        *([f"cordon and drain node {name}, and mark it as left"] if removes_node else []),
        *(action.description for action in shown),
        *prerequisites.describe_azure_cleanup(real.host, config),
    ]
