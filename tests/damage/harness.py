"""A managed node on a simulated machine, and the commands of the matrix on it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from aks_flex_node.agent import context, public_status
from aks_flex_node.agent.aks_pool import pool_facts, registration
from aks_flex_node.agent.bootstrap.join import NodeJoin
from aks_flex_node.agent.bootstrap.unbootstrap import Unbootstrap
from aks_flex_node.agent.cluster import discovery, machine_operations
from aks_flex_node.agent.components import service
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.remote import parse_bundle
from aks_flex_node.agent.config_sources.selection import open_source
from aks_flex_node.agent.daemon.daemon_state import STATE, DaemonState
from aks_flex_node.agent.daemon.lifecycle import HealthChecked
from aks_flex_node.agent.daemon.scheduler import JobHistory
from aks_flex_node.agent.daemon.session import open_session
from aks_flex_node.agent.drift.detection import detect_drift
from aks_flex_node.agent.event_log import EventLog
from aks_flex_node.agent.job_records import job_result, update_journal
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.job_records.update_journal import FailedUpdate
from aks_flex_node.agent.jobs.repair import components_to_repair, repair_drift
from aks_flex_node.agent.jobs.update.job import UpdateJob
from aks_flex_node.agent.jobs.update.node_operations import NodeOperations
from aks_flex_node.agent.managed_node import ManagedNode
from aks_flex_node.agent.paths import CONFIG_URL_DIGEST, DAEMON_LOCK, NEXT_CONFIG
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile.engine import Engine
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.lock import LOCK_FILE, exclusive
from aks_flex_node.errors import FlexError, MachineError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.host.real import RootedHost
from tests.crash import harness
from tests.crash.crash_points import SimulatedHost
from tests.crash.simulated_host import SimulatedSystem
from tests.crash.update_harness import SETTING, LastingCluster, bundle
from tests.unit.agent.builders import pending_actions
from tests.unit.agent.config.builders import CLUSTER_ID, Settings, load_plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import FileEntry
    from aks_flex_node.settings.models import NodeConfig

POOL = f"{CLUSTER_ID}/agentPools/flex"


@dataclass(frozen=True)
class Outcome:
    """What a command reported about a damaged machine."""

    named: frozenset[str] = frozenset()  # subjects of the detected drift
    refusals: tuple[str, ...] = ()  # by name, with a hint
    lacks_hint: bool = False
    left: tuple[str, ...] = ()  # what is not as it should be, in the command's own words


class FailingSystem(SimulatedSystem):
    """Services that cannot read or write their files fail to start, as real ones do."""

    def do(self, action: Action) -> None:
        try:
            super().do(action)
        except OSError as error:
            raise MachineError("service-failed", f"Could not {action}: {error}.", "See the journal.") from error


class DamagedHost(SimulatedHost):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.system = FailingSystem(root)

    def stat(self, path: str) -> FileEntry | None:
        return RootedHost.stat(self, path) if os.geteuid() == 0 else super().stat(path)


def seed(root: Path, hostname: str = "edge-1") -> Path:
    """Creates a machine that was never a node, with a name."""
    harness.seed(root)
    (root / "proc/sys/kernel/hostname").write_text(f"{hostname}\n")
    (root / "run/systemd/system").mkdir(parents=True)
    return root


def make_node(root: Path, values: Settings | None = None) -> Path:
    """Joins a machine, installs the daemon, and writes all files that the agent ever writes."""
    host, text = DamagedHost(root), bundle(values or {}, "1")
    config = load_plain(text.decode()).config
    join(host, config)
    engine(host, config).apply(service.COMPONENT)
    config_store.commit_update(host, parse_bundle(text, "test"), config, b"")
    config_store.keep_copy(host)
    host.apply(WriteFile(CONFIG_URL_DIGEST, b"0" * 64 + b"\n", 0o600))
    STATE.write(host, DaemonState(message="a message"))
    job_result.RESULT.write(host, JobResult(JobKind.REPAIR, JobStatus.DONE))
    update_journal.FAILURE.write(host, FailedUpdate("0", "a-fingerprint", "service-failed", "It failed."))
    machine_operations.OPERATION_FILE.write(host, machine_operations.OperationRecord(executed=("a-uid",)))
    registration.MACHINE_FILE.write(host, registration.MachineRecord(POOL, "edge-1", "1"))
    pool_facts.POOL_FACTS_FILE.write(host, pool_facts.PoolFacts(POOL, {}))
    discovery.FACTS_FILE.write(host, discovery.ClusterFacts(CLUSTER_ID, "https://cluster.example:443", "QQ=="))
    session(host)
    return root


def engine(host: DamagedHost, config: NodeConfig) -> Engine:
    """Returns the engine of a new process, which knows only what is on the disk."""
    config = discovery.with_facts(config, discovery.FACTS_FILE.read(host))
    machine = context.read_known_machine(host, config)
    ledger = Ledger(host, context.ledger_paths(config))
    return Engine(host, config, machine, ledger, EventLog(), harness.StagingWorkshop(host), sync=lambda: None)


def join(host: DamagedHost, config: NodeConfig = harness.CONFIG) -> Outcome:
    NodeJoin(engine(host, config), harness.GivingProof()).run()
    return Outcome(left=tuple(f"{name}: {action}" for name, action in pending_actions(engine(host, config))))


def bootstrap(host: DamagedHost) -> Outcome:
    """Runs a bootstrap with the operator's configuration, which is not on the damaged paths."""
    with locked(host):
        outcome = join(host)
        engine(host, harness.CONFIG).apply(service.COMPONENT)  # as `repair_service`
        return outcome


def repair(host: DamagedHost) -> Outcome:
    """Detects drift as the daemon does, and runs its repair job."""
    with locked(host):
        found = _engine_in_effect(host)
        drift = detect_drift(found, components_to_repair(found))
        named = frozenset(one.subject for one in drift)
        result = repair_drift(_engine_in_effect(host), components_to_repair)
        if not result.is_done:
            return Outcome(named, _refusal(result), lacks_hint=not result.hint)
        again = _engine_in_effect(host)
        return Outcome(named, left=tuple(one.description for one in detect_drift(again, components_to_repair(again))))


def _engine_in_effect(host: DamagedHost) -> Engine:
    config_store.finish_interrupted(host)
    return engine(host, context.config_in_effect(host))


def session(host: DamagedHost) -> Outcome:
    """Starts the daemon twice, each time with one turn: health, drift, report, state and published status."""
    named: frozenset[str] = frozenset()
    for _ in range(2):
        with exclusive(f"{host.disk.root}{DAEMON_LOCK}"):
            found = engine(host, context.config_in_effect(host))
            node_name = context.node_name(found)
            cluster = cast("ApiClient", LastingCluster(host))
            node = ManagedNode(found, cluster, node_name, open_source(found, node_name))
            opened = open_session(node, lambda _: None)
            opened.lifecycle, _ = HealthChecked(node.check_health()).decide(opened.lifecycle, 0.0)
            opened.record_drift(opened.drift.check())
            named = frozenset(one.subject for one in opened.drift.found)
            history = JobHistory.empty()
            if known := job_result.RESULT.read(host):
                history.record(known, 0.0)
            opened.report(history, None)
            opened.save()
            node.select_operation()
            public_status.StatusPublisher()(opened, None)
            if opened.connection:
                opened.connection.close()
    return Outcome(named)


def update(host: DamagedHost) -> Outcome:
    """Applies the pending configuration."""
    cluster = LastingCluster(host)
    operations = NodeOperations(
        host,
        lambda config: engine(host, config),
        ProgressReporter(),
        lambda _: cast("ApiClient", cluster),
        lambda _: harness.StagingWorkshop(host),
        cluster.environment,
    )
    with locked(host):
        result = UpdateJob(operations).run()
        if result.is_done:  # then the job installs the agent's service, as in `install_service`
            engine(host, context.config_in_effect(host)).apply(service.COMPONENT)
    return Outcome() if result.is_done else Outcome(refusals=_refusal(result), lacks_hint=not result.hint)


def pend(host: DamagedHost) -> None:
    host.apply(WriteFile(NEXT_CONFIG, bundle(SETTING, "2"), 0o600, secret=True))


def unbootstrap(host: DamagedHost) -> Outcome:
    with locked(host):
        job = Unbootstrap(engine(host, _config_or_default(host)), None, ProgressReporter())
        return Outcome(left=tuple(job.run()))


def _config_or_default(host: DamagedHost) -> NodeConfig:
    with contextlib.suppress(FlexError):
        return context.config_in_effect(host)
    return context.applied_config(host) or harness.CONFIG


@contextlib.contextmanager
def locked(host: DamagedHost) -> Iterator[None]:
    with exclusive(f"{host.disk.root}{LOCK_FILE}"):
        yield


def _refusal(result: JobResult) -> tuple[str, ...]:
    assert result.reason, result
    assert result.message, result
    return (f"{result.reason}: {result.message}",)
