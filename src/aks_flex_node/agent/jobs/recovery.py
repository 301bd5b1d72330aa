"""The recover job: restores a node that lost its certificate, its kubeconfig or its Node by joining again.

A new token is installed before the kubelet is restarted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent import context
from aks_flex_node.agent.bootstrap.bootstrap_token import install_bootstrap_token
from aks_flex_node.agent.cluster.node_health import KUBELET_UNIT, NodeHealth
from aks_flex_node.agent.cluster.readiness import NodeReadiness
from aks_flex_node.agent.components import credentials, kubelet
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.resolved import kubelet_auth, kubelet_credential_file
from aks_flex_node.agent.identity.token_cache import TOKEN_CACHE_FILE
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.managed_node import open_managed_node
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import MakeLink, Remove, RestartUnit
from aks_flex_node.host.real import RealHost
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config_sources.source import ConfigSource
    from aks_flex_node.agent.progress import ProgressReporter
    from aks_flex_node.agent.reconcile.engine import Engine


def run_recovery(progress: ProgressReporter) -> JobResult:
    """Recovers this machine's credentials if they are lost."""
    with exclusive():
        config_store.finish_interrupted(RealHost())
        context.config_in_effect()  # raises ConfigError: the configuration applied last has no credentials
        node = open_managed_node()
        readiness = NodeReadiness(node.host, node.config, node.name, progress.note)
        return CredentialRecovery(node.engine, node.source, readiness, node.check_health).run()


@frozen
class CredentialRecovery:
    engine: Engine
    source: ConfigSource
    readiness: NodeReadiness
    check_health: Callable[[], NodeHealth]

    def run(self) -> JobResult:
        health = self.check_health()
        if not health.recovery_reason:
            return JobResult(JobKind.RECOVER, JobStatus.DONE, message="No recovery is required.")
        try:
            return self._recover(health)
        except ProviderRequestError as error:
            message = f"No new token was issued: {error.result.message}"
            return JobResult(JobKind.RECOVER, JobStatus.FAILED, error.result.state.value, message, retryable=True)
        except FlexError as error:
            return JobResult.of(JobKind.RECOVER, error)

    def _recover(self, health: NodeHealth) -> JobResult:
        host, earlier = self.engine.host, None
        if not health.node_missing:
            self._renew_join_credentials()
            earlier = None if health.uses_tokens else host.stat(self._certificate)
            if not health.uses_tokens and (health.expired or health.credentials_rejected or not health.lost_reason):
                # The kubelet writes a new file and switches this link; any other file here blocks it.
                host.apply(Remove(self._certificate))
            self.engine.set_damaged_aside(kubelet.COMPONENT)
        try:
            host.apply(RestartUnit(KUBELET_UNIT))
            self.readiness.wait_registered()
            self.readiness.wait_ready(lambda _: None)
        except FlexError:
            if earlier and earlier.target and not health.lost_reason:  # the old certificate is still valid
                host.apply(MakeLink(self._certificate, earlier.target))
                host.apply(RestartUnit(KUBELET_UNIT))
            raise
        self.engine.sync_to_disk()
        message = f"Node recovered: {health.recovery_reason}."
        self.engine.events.emit("recovered", message)
        return JobResult(JobKind.RECOVER, JobStatus.DONE, "Recovered", message)

    @property
    def _certificate(self) -> str:
        return kubelet_credential_file(self.engine.config)

    def _renew_join_credentials(self) -> None:
        """Renews the credentials for a join: a bootstrap token, or a token of the Azure identity.

        A standalone node uses the bootstrap token of its configuration again.
        """
        auth, folder = kubelet_auth(self.engine.config), self.engine.config.paths.kubernetes.kubelet_dir
        if auth == "bootstrapToken" and (grant := self.source.issue_bootstrap_token()):
            return install_bootstrap_token(self.engine, grant)
        self.engine.host.apply(Remove(f"{folder}/{TOKEN_CACHE_FILE}"))  # the cached token may be the rejected one
        for component in (credentials.COMPONENT, kubelet.COMPONENT):
            self.engine.apply(component)
        self.source.announce()
        return None
