"""Self-update: installs another version of the agent, checks it, starts it on trial, and rolls back on failure.

The launch script reads the trial files as well. The order of writes makes a crash at any time safe: the trial is
recorded before the link is switched, and the failure is recorded before the link is switched back.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import aks_flex_node
from aks_flex_node.agent import context
from aks_flex_node.agent.cluster import diagnosis
from aks_flex_node.agent.components import agent, service
from aks_flex_node.agent.components.artifact_urls import plain_version, version_key
from aks_flex_node.agent.components.catalog import SEQUENCE, managed_components, ordered_agent_components
from aks_flex_node.agent.components.service import release
from aks_flex_node.agent.identity.token_cache import IDENTITY_FILE
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.paths import AGENT_FLOOR, CONFIG_VERSION_FILE, CURRENT_CONFIG
from aks_flex_node.agent.policy import AGENT_VERSION, read_policy, refuse_by_policy
from aks_flex_node.errors import ArtifactError, CommandUsageError, FlexError, MachineError
from aks_flex_node.host.actions import MakeLink, Remove, RestartUnit, WriteFile
from aks_flex_node.host.host import CommandResult, Host, read_text
from aks_flex_node.lean_dataclass import dataclass, frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.progress import ProgressReporter
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.settings.models import NodeConfig


RUNNING_PACKAGE = str(Path(aks_flex_node.__file__).parent)  # of the running agent


@frozen
class AgentTrial:
    origin: str  # path of the version to roll back to; empty for the program that was installed on the machine
    target: str  # path of the version on trial
    starts: int  # number of starts so far
    configuration: str  # the configVersion that set this version


def read_trial(host: Host, config: NodeConfig) -> AgentTrial | None:
    """Returns the trial in progress, or None when there is no readable trial file."""
    lines = _read_lines(host, release.trial_file(config), 4)
    if not lines or not lines[2].isdigit():
        return None
    return AgentTrial(lines[0], lines[1], int(lines[2]), lines[3])


def begin_trial(host: Host, config: NodeConfig) -> AgentTrial:
    """Records the trial and switches the link to the desired version, which the next start then runs."""
    trial = AgentTrial(current_target(host, config), release.release_path(config), 0, config_version(host))
    text = f"{trial.origin}\n{trial.target}\n{trial.starts}\n{trial.configuration}\n"
    host.apply(WriteFile(release.trial_file(config), text.encode(), 0o600))
    host.apply(MakeLink(release.current_link(config), trial.target))
    return trial


def record_failure(host: Host, config: NodeConfig, why: str) -> None:
    """Records that the desired version failed, so that it is not tried again for the same configuration."""
    lines = (release.release_path(config), config_version(host), " ".join(why.split()))
    host.apply(WriteFile(release.failed_file(config), ("\n".join(lines) + "\n").encode(), 0o600))


def confirm_trial(host: Host, config: NodeConfig, package: str = RUNNING_PACKAGE) -> None:
    """Ends the trial if the running agent is the version on trial."""
    trial = read_trial(host, config)
    if trial and package.startswith(f"{trial.target}/"):
        host.apply(Remove(release.failed_file(config)))
        host.apply(Remove(release.trial_file(config)))


def failure_reason(host: Host, config: NodeConfig) -> str:
    """Returns why the desired version failed; empty when it runs or was not tried."""
    lines = _read_lines(host, release.failed_file(config), 3)
    if not (lines and config.agent.version) or lines[:2] != [release.release_path(config), config_version(host)]:
        return ""
    return f"Agent version {config.agent.version} failed, and the previous version is running: {lines[2]}"


def is_due(host: Host, config: NodeConfig) -> bool:
    """Returns whether the desired version of the agent differs from the installed one and has not failed before."""
    return (
        bool(release.configured_version(config))
        and current_target(host, config) != release.release_path(config)
        and not failure_reason(host, config)
    )


def current_target(host: Host, config: NodeConfig) -> str:
    entry = host.stat(release.current_link(config))
    return entry.target if entry else ""


def config_version(host: Host) -> str:
    """Returns the version of the configuration in effect."""
    return read_text(host, CONFIG_VERSION_FILE).strip()


def _read_lines(host: Host, path: str, count: int) -> list[str]:
    """Returns the lines of a file if it has exactly `count` lines, else an empty list."""
    lines = read_text(host, path).splitlines()
    return lines if len(lines) == count else []


def read_floor(host: Host) -> str:
    """Returns the highest version of the agent that has run on this machine; empty if that is unknown."""
    text = read_text(host, AGENT_FLOOR).strip()
    return text if re.fullmatch(r"[0-9A-Za-z.+-]+", text) else ""


def raise_floor(host: Host, version: str = aks_flex_node.__version__) -> None:
    """Records the version that runs, unless a higher one ran before."""
    known = read_floor(host)
    if not known or version_key(known) < version_key(version):
        host.apply(WriteFile(AGENT_FLOOR, f"{version}\n".encode(), 0o600))


def lower_floor(host: Host, config: NodeConfig, version: str) -> None:
    """Permits self-updates to this version and later ones. Only a person on this machine does that."""
    host.apply(WriteFile(AGENT_FLOOR, f"{plain_version(version)}\n".encode(), 0o600))
    host.apply(Remove(release.failed_file(config)))  # so that a refused version is tried again


FAILURE_REASON = "AgentUpdateFailed"
_result = partial(JobResult, JobKind.UPDATE)
ANSWER_SECONDS = 30.0
TRIAL_SECONDS = 180.0  # longer than the first poll takes when the provider is unreachable
TRIAL_CHECK_SECONDS = 0.5


STOPPED_MESSAGE = "The agent's service was stopped meanwhile. The update of the agent continues when it is started."


@dataclass
class SelfUpdate:
    engine: Engine
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> JobResult:
        """Installs and checks the desired version, starts its trial, and rolls back if the trial fails."""
        engine, config = self.engine, self.engine.config
        if known := failure_reason(engine.host, config):
            return _result(JobStatus.FAILED, FAILURE_REASON, known)
        if (trial := read_trial(engine.host, config)) and trial.target == current_target(engine.host, config):
            return self._await_trial(trial)  # an earlier process was interrupted
        if not is_due(engine.host, config):
            return _result(JobStatus.DONE)
        try:
            policy = read_policy(self.engine.host)
            forbidden = [f"{AGENT_VERSION} {self.engine.config.agent.version}"]
            refuse_by_policy(policy, forbidden if policy.forbids(AGENT_VERSION) else [])
            self._refuse_older()
            self._install()
            self._check()
        except FlexError as error:
            return JobResult.of(JobKind.UPDATE, error, retryable=error.retryable)
        return self._try()

    def _try(self) -> JobResult:
        """Starts the version on trial, unless a person has stopped the service."""
        if self._is_stopped():
            return _result(JobStatus.DONE, message=STOPPED_MESSAGE)
        engine, config = self.engine, self.engine.config
        spec = service.RELEASE.desired(config, engine.machine)
        link = MakeLink(release.current_link(config), release.release_path(config))
        engine.ledger.record_before(service.RELEASE.name, spec, (link,), engine.originals)
        engine.events.emit("agent-update", f"Starting agent version {config.agent.version} on trial.")
        trial = begin_trial(engine.host, config)
        cause = ""
        try:
            done = self.engine.apply(service.COMPONENT)
            if not any(action.started_unit for action in done):
                self._restart()
        except FlexError as error:  # perhaps a process that someone killed: systemd starts the version again
            host = self.engine.host
            lines = diagnosis.read_journal(host, host.unit(service.UNIT_NAME), lines=20)
            cause = f"It failed to start: {diagnosis.most_relevant_line(lines)}" if lines else error.message
        return self._await_trial(trial, cause)

    def _refuse_older(self) -> None:
        """Raises MachineError for an older version than has run here: an old release is signed, too, but may have
        known vulnerabilities.
        """
        floor, version = read_floor(self.engine.host), self.engine.config.agent.version or ""
        if not floor or version_key(version) >= version_key(floor):
            return
        message = f"Agent version {version} is older than {floor}, which has run here. It was not installed."
        record_failure(self.engine.host, self.engine.config, message)
        raise MachineError(
            "agent-downgrade-refused",
            message,
            f"Set `agent.version` to {floor} or later. To permit the older version, run `aks-flex-node agent-floor "
            f"--set {version}` on this machine.",
        )

    def _install(self) -> None:
        """Installs the version and syncs it to disk before any link points to it."""
        try:
            self.engine.stage((service.RELEASE,))
            self.engine.apply(service.RELEASE)
        except ArtifactError as error:
            if error.name != "artifact-not-found":
                raise
            version = self.engine.config.agent.version
            raise ArtifactError(
                error.name,
                f"Agent version {version} has no release for this machine: {error.message} The present version "
                "keeps running.",
                "Set `versions.agent` of the node to a published version, or remove it with `aks-flex-rp node update "
                "--name NODE --agent-version ''`. If the version is right, copy its release to the mirror.",
            ) from error
        self.engine.sync_to_disk()

    def _check(self) -> None:
        """Verifies that the program prints the expected version and accepts the configuration in effect."""
        host, config = self.engine.host, self.engine.config
        program, version = f"{release.release_path(config)}/bin/aks-flex-node", config.agent.version
        answer = self._run_program(program, "version")
        if not answer.ok or answer.out.strip() != version:
            self._refuse(f"`version` printed: {answer.out.strip() if answer.ok else answer.last_line}")
        if host.stat(CURRENT_CONFIG):
            validated = self._run_program(program, "config", "validate", "--config", CURRENT_CONFIG)
            if not validated.ok:
                self._refuse(f"it rejects this machine's configuration: {validated.last_line}")
        identity = f"{config.paths.kubernetes.kubelet_dir}/{IDENTITY_FILE}"
        if host.stat(identity):
            issued = self._run_program(program, "token", "kubernetes", "--identity", identity)
            if (
                issued.code == CommandUsageError.exit_code
            ):  # sign-in may be temporarily unavailable, but the command must exist
                self._refuse(f"it cannot issue a token for the kubelet: {issued.last_line}")

    def _run_program(self, *argv: str) -> CommandResult:
        try:
            return self.engine.host.query(*argv, seconds=ANSWER_SECONDS)
        except OSError as error:  # for example a binary for another architecture
            return CommandResult(1, err=error.strerror or str(error))

    def _refuse(self, why: str) -> None:
        record_failure(self.engine.host, self.engine.config, why)
        raise MachineError(
            "agent-update-rejected",
            f"Agent version {self.engine.config.agent.version} was not started: {why}",
            "Set `agent.version` to a working version, or `agent.url` and `agent.sha256` to the correct archive.",
        )

    def _restart(self) -> None:
        """Restarts the agent's service, unless a person has stopped it."""
        if not self._is_stopped():
            self.engine.host.apply(RestartUnit(service.UNIT_NAME))

    def _is_stopped(self) -> bool:
        return service.UNIT_NAME in self.engine.kept_stopped and self.engine.host.unit(service.UNIT_NAME).is_stopped

    def _await_trial(self, trial: AgentTrial, cause: str = "") -> JobResult:
        """Waits until the agent or its launch script ends the trial; rolls back after the time limit. The trial of a
        service that a person has stopped continues when it is started. `cause` is why the first start failed.
        """
        host, config, end = self.engine.host, self.engine.config, self.clock() + TRIAL_SECONDS
        while read_trial(host, config):
            if self._is_stopped():
                return _result(JobStatus.DONE, message=STOPPED_MESSAGE)
            if self.clock() >= end:
                late = f"It did not poll the provider within {TRIAL_SECONDS:.0f} s."
                return self._roll_back(trial, f"{late} {cause}".rstrip())
            self.sleep(TRIAL_CHECK_SECONDS)
        if failure_reason(host, config):
            if cause:  # the launch script does not know it
                record_failure(host, config, f"It was started {release.MAX_TRIAL_STARTS} times. {cause}")
            return _result(JobStatus.ROLLED_BACK, FAILURE_REASON, failure_reason(host, config))
        return _result(JobStatus.DONE, message=f"The agent was updated to version {config.agent.version}.")

    def _roll_back(self, trial: AgentTrial, why: str) -> JobResult:
        host, config = self.engine.host, self.engine.config
        record_failure(host, config, why)
        if trial.origin and host.stat(f"{trial.origin}/bin/aks-flex-node"):
            host.apply(MakeLink(release.current_link(config), trial.origin))
        else:
            host.apply(Remove(release.current_link(config)))
        host.apply(Remove(release.trial_file(config)))
        message = failure_reason(host, config)
        try:
            self._restart()
        except FlexError as error:
            message = f"{message} The previous version did not start either: {error.message}"
        return _result(JobStatus.ROLLED_BACK, FAILURE_REASON, message)


def compared_components(engine: Engine) -> tuple[Component, ...]:
    """Returns the components to compare for drift; a pending or failed self-update does not count as drift."""
    tried = is_due(engine.host, engine.config) or bool(failure_reason(engine.host, engine.config))
    return (agent.COMPONENT, *(SEQUENCE if tried else managed_components(engine.ledger, engine.config)))


def run_self_update(version: str, progress: ProgressReporter) -> JobResult | None:
    """Updates the agent's service and version after an update of the node; returns the failed result, if any.

    Runs last, because it may replace the daemon that started this process.
    """
    with context.current_engine() as engine:
        if managed_components(engine.ledger, engine.config) is SEQUENCE:
            return None  # the daemon runs in the foreground, so its service is not managed
        if engine.host.unit(service.UNIT_NAME).is_stopped:
            progress.note("the agent's service was stopped meanwhile, and stays stopped")
            return None
        outcome = install_service(engine)
    if outcome.is_done:
        return None
    progress.message(f"self-update {outcome.result}: {outcome.message}")
    return replace(outcome, version=version)


def install_service(engine: Engine) -> JobResult:
    """Installs the agent's service and version. The caller must not run inside that service."""
    from aks_flex_node.agent.reconcile.program_stager import ProgramStager

    stager = engine.stager = ProgramStager(engine.config)
    try:
        if is_due(engine.host, engine.config):
            return SelfUpdate(engine).run()
        for component in ordered_agent_components(engine.config):
            engine.apply(component)
        return _result(JobStatus.DONE)
    finally:
        stager.close()
