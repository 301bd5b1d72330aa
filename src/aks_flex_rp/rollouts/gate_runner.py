"""Runs the gates of roll-outs, each within its time limit."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aks_flex_rp import private_files
from aks_flex_rp.arm.errors import Problem, json_path
from aks_flex_rp.notify.notifier import check_ca_file
from aks_flex_rp.notify.webhook_client import read_secrets
from aks_flex_rp.rollouts.gate_http import PrometheusServer, WebhookGateReceiver, open_threads
from aks_flex_rp.rollouts.gate_run import GateAnswer, GateProgress, GateRefusedError, GateRun
from aks_flex_rp.rollouts.job_gate import JobGateRunner
from aks_flex_rp.time_limit import within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.rollout_settings import RolloutSettings
    from aks_flex_rp.rollouts.gate_specs import GateSpec, JobGate

CHECK_SECONDS = 10.0
LAST_LOOK_SECONDS = 10.0  # at the Jobs of a gate whose time ended while the service was down


class GateRunner:
    def __init__(
        self,
        settings: RolloutSettings,
        client: Callable[[str], KubeClient],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Creates the runner, and checks the files that the settings name. `client` returns that of a cluster."""
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it logs complete URLs, which may contain secrets
        check_files(settings)
        self._clock = clock
        self._threads = open_threads()
        self._jobs = JobGateRunner(client, clock)
        self._receivers = {each.name: WebhookGateReceiver(each, self._threads) for each in settings.webhooks}
        self._servers = {each.name: PrometheusServer(each, self._threads) for each in settings.prometheus}

    async def run(self, run: GateRun) -> GateAnswer:
        """Returns the answer of a gate, within its time limit and the second that an interrupted request may take.

        The same run can be started again after a crash: it continues with the same Jobs, and a receiver sees the
        same webhook-id. Jobs that ended in time while the service was down count, so they are read once more.
        """
        progress = GateProgress()
        seconds = run.seconds_left(self._clock()) or (LAST_LOOK_SECONDS if run.gate.job else 0.0)
        try:
            return await within(seconds, self._work(run, progress))
        except GateRefusedError as error:
            return GateAnswer.of(False, str(error))
        except asyncio.TimeoutError:
            said = progress.text or "It did not answer."
            return GateAnswer.of(False, f"The gate did not pass within {run.gate.timeout_seconds} s. {said}")

    async def clean_up(self, run: GateRun) -> None:
        """Deletes what a gate has created in the cluster."""
        if run.gate.job:
            await self._jobs.clean_up(run, run.gate.job)

    async def check(self, cluster: str, gates: Sequence[GateSpec]) -> list[Problem]:
        """Returns the problems of Job gates that the cluster sees. A cluster that cannot be reached sees none."""
        return [
            problem
            for number, gate in enumerate(gates)
            if gate.job and (problem := await self._check_job(cluster, number, gate, gate.job))
        ]

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _check_job(self, cluster: str, number: int, gate: GateSpec, job: JobGate) -> Problem | None:
        try:
            with suppress(asyncio.TimeoutError):
                await within(CHECK_SECONDS, self._jobs.check(GateRun(cluster, "", "", 1, 0, (), gate, 0.0), job))
        except GateRefusedError as error:
            return Problem(json_path("properties", "gates", number, "job"), str(error))
        return None

    async def _work(self, run: GateRun, progress: GateProgress) -> GateAnswer:
        gate = run.gate
        if gate.job:
            return await self._jobs.run(run, gate.job, progress)
        if gate.webhook:
            receiver = self._receivers.get(gate.webhook.receiver)
            return await receiver.run(run, progress) if receiver else _unknown("receiver", gate.webhook.receiver)
        if gate.prometheus:
            server = self._servers.get(gate.prometheus.server)
            return (
                await server.run(gate.prometheus, progress) if server else _unknown("server", gate.prometheus.server)
            )
        raise AssertionError("A person answers an approval, and no runner.")


def _unknown(kind: str, name: str) -> GateAnswer:
    """Answers for a name that was removed from the settings while the roll-out is running."""
    return GateAnswer.of(False, f"The settings of the service no longer have the {kind} {name}.")


def check_files(settings: RolloutSettings) -> None:
    """Raises ConfigError if a secret or CA file of the settings cannot be used."""
    for webhook in settings.webhooks:
        read_secrets(webhook.secret_file)
        check_ca_file(webhook.ca_file, "a webhook")
    for server in settings.prometheus:
        if server.token_file:
            private_files.read(server.token_file)
        check_ca_file(server.ca_file, "a Prometheus server")
