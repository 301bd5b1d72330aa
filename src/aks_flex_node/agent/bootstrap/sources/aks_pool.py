"""A flex node pool of AKS as a join source: reads the pool's bootstrap data before any change, registers the node's
Machine, and deletes the Machine when the node leaves.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aks_flex_node.agent import context
from aks_flex_node.agent.aks_pool import machine_document, registration
from aks_flex_node.agent.aks_pool.bootstrap_data import TOKEN
from aks_flex_node.agent.aks_pool.pool_client import open_pool
from aks_flex_node.agent.aks_pool.pool_facts import POOL_FACTS_FILE, PoolFacts, config_source
from aks_flex_node.agent.aks_pool.pool_ids import (
    check_machine_name,
    configured_pool,
    machine_name,
    new_token_hint,
    parse_pool_id,
)
from aks_flex_node.agent.bootstrap.sources.source import FromLocalFile, Registration
from aks_flex_node.agent.cluster.discovery import needs_discovery
from aks_flex_node.agent.cluster.node_health import has_kubelet_credential
from aks_flex_node.agent.config import loader
from aks_flex_node.agent.config.resolved import config_source_kind, join_token
from aks_flex_node.agent.config.sources import SettingsSource
from aks_flex_node.agent.identity.azure_sign_in import identity_kind
from aks_flex_node.agent.stored_config import ConfigVersions
from aks_flex_node.errors import ClusterError, FlexError, MachineError
from aks_flex_node.lean_dataclass import dataclass
from aks_flex_node.settings.base import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.aks_pool.bootstrap_data import BootstrapData
    from aks_flex_node.agent.aks_pool.machine_document import PoolMachine
    from aks_flex_node.agent.aks_pool.pool_ids import PoolId
    from aks_flex_node.agent.bootstrap.phases import JoinPhase
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.progress import NoteProgress, ProgressReporter
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.settings.models import NodeConfig


@dataclass
class FromPool(FromLocalFile):
    """A configuration that names a pool. The pool's bootstrap data completes it, until the machine is a node."""

    pool: PoolId
    facts: PoolFacts | None = None  # read by this run

    def fetch(self, progress: ProgressReporter) -> LoadedConfig:
        """Completes the configuration of this machine with the bootstrap data of the pool.

        A joined node needs no bootstrap data. With an Azure identity the token is always a new one, so an expired
        token of a file does not matter. Without one, the token of a file is used if the operator cannot sign in.
        """
        self.loaded, config, pool = self.own, self.own.config, self.pool
        kind, has_token = identity_kind(config), join_token(config) is not None
        name = machine_name(config, context.read_known_machine(self.host, config).node_name(config))
        applied = context.applied_config(self.host)
        here = configured_pool(applied) if applied else None
        is_other = str(here or "").lower() != str(pool).lower()
        has_credentials = has_kubelet_credential(self.host, config)
        if here and is_other and has_credentials:
            raise MachineError(
                "aks-pool-changed",
                f"This machine is a node of {here}, but the configuration is for {pool}. Nothing was changed.",
                "Use the configuration of its own pool, or run `aks-flex-node unbootstrap` first.",
            )
        if kind:
            check_machine_name(name)
        registration.refuse_other_record(self.host, pool, name)
        is_known = has_credentials and not is_other and not needs_discovery(config)
        if is_known or (has_token and kind is None and self.selection.pool is None):
            return self.own
        progress.message(f"Reading the bootstrap data of {pool} from Azure.")
        try:
            data, machine = self._request(config, name)
        except FlexError as error:
            if not has_token or kind not in {None, "arc"} or isinstance(error, MachineError):
                raise  # a node's own identity must be able to register it, too
            progress.warning(f"The bootstrap data cannot be read, so the token of the configuration is used: {error}")
            return self.own
        settings = data.settings
        if machine and kind:  # an existing Machine that this node adopts
            settings = machine_document.with_machine_settings(settings, machine.settings, complete=False)
        self.facts = PoolFacts(str(pool), dict(settings))
        origin, source = f"AKS pool {pool.pool}", config_source(self.facts)
        loader.refuse_source(source, origin, {})
        token = SettingsSource({TOKEN: data.token}, origins={TOKEN: origin})
        self.loaded = context.load_config(self.selection, [source], [token])
        return self.loaded

    def _request(self, config: NodeConfig, name: str) -> tuple[BootstrapData, PoolMachine | None]:
        """Requests the bootstrap data, and the Machine that this node would use. Raises MachineError if that runs on
        another host.

        A machine that Azure Arc does not know yet has no identity, so the operator asks for it.
        """
        with open_pool(config, self.pool, operator=identity_kind(config) in {None, "arc"}) as client:
            data = client.bootstrap_data()
            machine = client.find_machine(name)
        registration.refuse_foreign_machine(self.host, self.pool, name, machine)
        return data, machine

    @property
    def decides_remotely(self) -> bool:
        return self.facts is not None or self.comes_from_provider

    def persist(self, engine: Engine) -> None:
        if self.facts:
            POOL_FACTS_FILE.write(engine.host, self.facts)

    @contextlib.contextmanager
    def register(self, engine: Engine, note: NoteProgress) -> Iterator[Registration]:
        """Yields the registration of this node's Machine, if the node has an identity to follow it."""
        config = engine.config
        if config_source_kind(config) != "aksPool":
            with super().register(engine, note) as announcement:
                yield announcement
            return
        node = engine.machine.node_name(config)
        with contextlib.ExitStack() as stack:
            machine = registration.MachineRegistration(
                lambda: stack.enter_context(open_pool(config, self.pool)),
                engine.host,
                self.pool,
                machine_name(config, node),
                machine_document.node_settings(config),
                note,
                known_etag=ConfigVersions(engine.host).current,
                node=node,
                wait_for_roles=config.azure.arc.enabled and config.azure.arc.auto_role_assignment,
            )
            yield Registration(machine.start, machine.finish)

    def describe_node(self, config: NodeConfig) -> str:
        record = registration.MACHINE_FILE.read(self.host)
        if config_source_kind(config) == "aksPool" and record:
            return f"The node is Machine {record.name} of {self.pool}."
        return (
            f"The node joined {self.pool}, but has no Azure identity. It is not registered as a Machine and does not "
            "follow changes of the pool. To change that, configure an identity and run `aks-flex-node agent` again."
        )

    @contextlib.contextmanager
    def explain_failure(self, phase: JoinPhase, config: NodeConfig) -> Iterator[None]:
        """Explains a rejected bootstrap token of a pool, which is valid for one hour."""
        try:
            with super().explain_failure(phase, config):
                yield
        except ClusterError as error:
            if error.name != "bootstrap-token-rejected":
                raise
            raise ClusterError(
                error.name,
                "The API server rejects the bootstrap token. A token of an AKS pool is valid for one hour.",
                new_token_hint(config),
            ) from error


def machine_cleanup(engine: Engine, note: NoteProgress) -> Callable[[], list[str]] | None:
    """Returns a function that deletes this node's Machine; None if the node has none.

    The role of a node does not include this action, so the operator is asked after the node's identity.
    """
    record = registration.MACHINE_FILE.read(engine.host)
    if record is None:
        return None
    pool, config = parse_pool_id(record.pool), engine.config

    def delete(*, operator: bool) -> bool:
        who = _without_principal(config) if operator else config
        with open_pool(who, pool, operator=operator) as client:
            machine = client.find_machine(record.name)
            if machine and registration.belongs_to_another_host(engine.host, pool, record.name, machine):
                note(f"Machine {record.name} belongs to another host and is kept")
                return True
            return client.delete_machine(record.name, note)

    def clean_up() -> list[str]:
        attempts: list[tuple[str, Callable[[], bool]]] = [("the operator", lambda: delete(operator=True))]
        if identity_kind(config):
            attempts.insert(0, ("this node", lambda: delete(operator=False)))
        return registration.delete_registered(pool, record.name, attempts, note)

    return clean_up


def _without_principal(config: NodeConfig) -> NodeConfig:
    """Returns a configuration with which the operator is the user of `az login`, not the node's service principal."""
    azure = config.azure
    if azure.service_principal is None:
        return config
    tenant = azure.tenant_id or azure.service_principal.tenant_id
    return replace(config, azure=replace(azure, service_principal=None, tenant_id=tenant))
