"""The staging job: downloads and verifies the programs of the next configuration, and changes nothing else.

The update of this configuration then needs no download. The job can be interrupted at any time: downloads continue,
a program appears only when it is complete, and the record of the whole is written last.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, self_update, staging_config, stored_config
from aks_flex_node.agent.artifacts.cache import discard_staged
from aks_flex_node.agent.components import service
from aks_flex_node.agent.components.catalog import SEQUENCE, managed_components
from aks_flex_node.agent.config import loader
from aks_flex_node.agent.config.remote import parse_bundle
from aks_flex_node.agent.config_sources.received_config import check_received
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.update import admission
from aks_flex_node.agent.jobs.update.node_operations import NodeOperations
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG, STAGING_CONFIG
from aks_flex_node.agent.reconcile.observer import find_damage
from aks_flex_node.agent.reconcile.program_stager import (
    ProgramStager,
    cache_dir,
    staging_folder,
    tree_name,
)
from aks_flex_node.agent.stored_config import StoredConfig
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_node.host.actions import MakeDirectory
from aks_flex_node.host.real import RealHost
from aks_flex_node.lean_dataclass import dataclass
from aks_flex_node.retry import RetryDeadline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.progress import ProgressReporter
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.agent.staging_config import StagingConfig
    from aks_flex_node.settings.models import NodeConfig

ORIGIN = "the next configuration of the provider"
_result = partial(JobResult, JobKind.STAGE)


def _discard(config: NodeConfig, keep: Sequence[str]) -> list[str]:
    return discard_staged(Path(staging_folder(config)), Path(cache_dir(config)), keep)


def run_stage(progress: ProgressReporter) -> JobResult:
    """Stages the next configuration. It does not take the lock of the machine, because it changes only the cache."""
    return StageJob(NodeOperations(RealHost(), context.make_job_engine, progress)).run()


@dataclass
class StageJob:
    operations: NodeOperations
    stager_for: Callable[[NodeConfig], ProgramStager] = partial(ProgramStager, ahead=True)
    discard: Callable[[NodeConfig, Sequence[str]], list[str]] = _discard  # removes staged programs except these

    def run(self) -> JobResult:
        """Stages the next configuration; returns the result with the identity of that configuration."""
        identity = ""
        try:
            current = stored_config.read_stored(self.operations.host, CURRENT_CONFIG, self.operations.env)
            following = staging_config.read_config(self.operations.host)
            if current is None or following is None:
                # Removes the programs that no configuration needs any more.
                removed = self.discard(current.config, self._kept_for_update()) if current else []
                message = f"Removed what no configuration needs: {', '.join(removed) or 'nothing'}."
                return _result(JobStatus.DONE, message=message, version=staging_config.LEFTOVERS)
            identity = following.identity
            return self._stage(current, following)
        except ConfigError as error:
            return JobResult.of(JobKind.STAGE, error, result=JobStatus.REFUSED, version=identity, retryable=False)
        except FlexError as error:
            return JobResult.of(JobKind.STAGE, error, version=identity)

    def _stage(self, current: StoredConfig, following: StagingConfig) -> JobResult:
        # Checks the next configuration as if it had arrived to be applied.
        known = stored_config.parse_config(current.bundle.text)
        text = stored_config.compose_document(following.config, "", known)
        check_received(self.operations.host, text, ORIGIN)
        bundle = parse_bundle(text.encode(), STAGING_CONFIG)
        config = loader.load_text(bundle.text, STAGING_CONFIG, self.operations.env, {}).config
        stored = StoredConfig(bundle, config, text.encode())
        changes = admission.compare_configs(current.config, stored.config)
        if refusal := self.operations.check_admission(current, stored, changes, None):
            return replace(refusal, kind=JobKind.STAGE, version=following.identity)
        engine = self.operations.engine_for(stored.config)
        has_service = managed_components(engine.ledger, engine.config) is not SEQUENCE
        is_due = has_service and self_update.is_due(engine.host, engine.config)
        components = (*self.operations.components, *([service.RELEASE] if is_due else []))
        missing = [program for each in components for program in _missing_programs(engine, each)]
        names = [tree_name(program) for program in missing]
        self.discard(stored.config, [*names, *self._kept_for_update()])
        with self.operations.step("staging", "artifacts downloaded and verified"):
            self._download(engine, components, missing)
        folder = staging_folder(stored.config)
        self.operations.host.apply(MakeDirectory(folder))
        staged = staging_config.StagedPrograms(following.identity, tuple(names))
        staging_config.record_file(folder).write(self.operations.host, staged)
        message = f"Pool revision {following.pool_revision} is staged: {_described(missing)}."
        return _result(JobStatus.DONE, message=message, version=following.identity)

    def _download(self, engine: Engine, components: Sequence[Component], missing: Sequence[ProgramTree]) -> None:
        """Stages the missing programs, in parallel and within the time limits of their components."""
        if not missing:
            return
        stager = self.stager_for(engine.config)
        try:
            stager.prepare(missing)
            for component in components:
                clock = RetryDeadline(component.timeout_seconds)
                for program in component.desired(engine.config, engine.machine).programs:
                    if program in missing:
                        stager.finish(program, clock.left)
        finally:
            stager.close()

    def _kept_for_update(self) -> list[str]:
        """Returns the names of the programs of a configuration that is to be applied now."""
        try:
            pending = stored_config.read_stored(self.operations.host, NEXT_CONFIG, self.operations.env)
        except ConfigError:
            return []
        if pending is None:
            return []
        engine = self.operations.engine_for(pending.config)
        specs = [
            each.desired(engine.config, engine.machine) for each in (*self.operations.components, service.RELEASE)
        ]
        return [tree_name(program) for spec in specs for program in spec.programs]


def _missing_programs(engine: Engine, component: Component) -> list[ProgramTree]:
    owned = engine.ledger.owned(component.name)
    programs = component.desired(engine.config, engine.machine).programs
    return [program for program in programs if find_damage(engine.host, program, owned)]


def _described(programs: Sequence[ProgramTree]) -> str:
    names = dict.fromkeys(f"{program.component} {program.version}" for program in programs)
    return ", ".join(names) if names else "all its programs are installed"
