"""The join through a flex node pool of AKS: reads the pool's bootstrap data before any change, registers the node's
Machine, and deletes the Machine when the node leaves.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aks_flex_node.agent import context
from aks_flex_node.agent.aks_pool import machine_document, registration
from aks_flex_node.agent.aks_pool.bootstrap_data import TOKEN, BootstrapData
from aks_flex_node.agent.aks_pool.pool_client import PoolRequests, open_pool
from aks_flex_node.agent.aks_pool.pool_facts import PoolFacts, config_source
from aks_flex_node.agent.aks_pool.pool_ids import (
    PoolId,
    check_machine_name,
    configured_pool,
    machine_name,
    new_token_hint,
    parse_pool_id,
)
from aks_flex_node.agent.cluster.discovery import needs_discovery
from aks_flex_node.agent.config import loader
from aks_flex_node.agent.config.resolved import config_source_kind, join_token
from aks_flex_node.agent.config.sources import SettingsSource
from aks_flex_node.agent.identity.azure_sign_in import identity_kind
from aks_flex_node.agent.stored_config import ConfigVersions
from aks_flex_node.errors import ClusterError, FlexError, MachineError
from aks_flex_node.host.real import RealHost
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.base import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.aks_pool.machine_document import PoolMachine
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.context import ConfigSelection
    from aks_flex_node.agent.progress import NoteProgress, ProgressReporter
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


@frozen
class PoolAnswer:
    """What the pool returned for this machine."""

    data: BootstrapData
    machine: PoolMachine | None = None  # an existing Machine that this node adopts


def complete_from_pool(
    selection: ConfigSelection, loaded: LoadedConfig, progress: ProgressReporter
) -> tuple[LoadedConfig, PoolFacts | None]:
    """Completes the configuration with the bootstrap data of its pool; returns also what is to be stored if it was
    read by this call. Changes nothing on the machine.

    A joined node needs no bootstrap data. With an Azure identity the token is always a new one, so an expired token
    of a file does not matter. Without one, the token of a file is used if the operator cannot sign in.
    """
    config, pool = loaded.config, configured_pool(loaded.config)
    if pool is None or config.continuous_monitoring or selection.url:
        return loaded, None
    name, kind, has_token = node_name(config), identity_kind(config), join_token(config) is not None
    applied = context.applied_config()
    here = configured_pool(applied) if applied else None
    if here and str(here).lower() != str(pool).lower() and context.has_credentials(config):
        raise MachineError(
            "aks-pool-changed",
            f"This machine is a node of {here}, but the configuration is for {pool}. Nothing was changed.",
            "Use the configuration of its own pool, or run `aks-flex-node unbootstrap` first.",
        )
    if kind:
        check_machine_name(machine_name(config, name))
    registration.refuse_other_record(RealHost(), pool, machine_name(config, name))
    is_known = is_joined(pool, config) and not needs_discovery(config)
    if is_known or (has_token and kind is None and selection.pool is None):
        return loaded, None
    progress.message(f"Reading the bootstrap data of {pool} from Azure.")
    try:
        answer = request_pool(config, pool, name)
    except FlexError as error:
        if not has_token or kind not in {None, "arc"} or isinstance(error, MachineError):
            raise  # a node's own identity must be able to register it, too
        progress.warning(f"The bootstrap data cannot be read, so the token of the configuration is used: {error}")
        return loaded, None
    settings = answer.data.settings
    if answer.machine:
        settings = machine_document.with_machine_settings(settings, answer.machine.settings, complete=False)
    facts = PoolFacts(str(pool), dict(settings))
    origin = f"AKS pool {pool.pool}"
    source = config_source(facts)
    loader.refuse_source(source, origin, {})
    token = SettingsSource({TOKEN: answer.data.token}, origins={TOKEN: origin})
    return context.load_config(selection, [source], [token]), facts


def request_pool(config: NodeConfig, pool: PoolId, node: str) -> PoolAnswer:
    """Requests the bootstrap data, and the Machine that this node would use. Raises MachineError if that runs on
    another host.

    A machine that Azure Arc does not know yet has no identity, so the operator asks for it.
    """
    kind, name = identity_kind(config), machine_name(config, node)
    with open_pool(config, pool, operator=kind in {None, "arc"}) as client:
        data = client.bootstrap_data()
        machine = client.find_machine(name)
    registration.refuse_foreign_machine(RealHost(), pool, name, machine)
    return PoolAnswer(data, machine if kind else None)


def node_name(config: NodeConfig) -> str:
    return context.read_known_machine(RealHost(), config).node_name(config)


def is_joined(pool: PoolId, config: NodeConfig) -> bool:
    """Returns whether this machine is a node of this pool."""
    applied = context.applied_config()
    here = configured_pool(applied) if applied else None
    return str(here or "").lower() == str(pool).lower() and context.has_credentials(config)


@contextlib.contextmanager
def machine_registration(engine: Engine, note: NoteProgress) -> Iterator[registration.MachineRegistration | None]:
    """Yields the registration of this node's Machine; None if the node does not follow a pool."""
    config, pool = engine.config, configured_pool(engine.config)
    if config_source_kind(config) != "aksPool" or pool is None:
        yield None
        return
    with contextlib.ExitStack() as stack:

        def connect() -> PoolRequests:
            return stack.enter_context(open_pool(config, pool))

        yield registration.MachineRegistration(
            connect,
            engine.host,
            pool,
            machine_name(config, engine.machine.node_name(config)),
            machine_document.node_settings(config),
            note,
            known_etag=ConfigVersions(engine.host).current,
            node=engine.machine.node_name(config),
            wait_for_roles=config.azure.arc.enabled and config.azure.arc.auto_role_assignment,
        )


def machine_cleanup(engine: Engine, note: NoteProgress) -> Callable[[], list[str]] | None:
    """Returns a function that deletes this node's Machine; None if the node has none.

    The role of a node does not include this action, so the operator is asked after the node's identity.
    """
    record = registration.read_record(engine.host)
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


@contextlib.contextmanager
def explain_expired_token(config: NodeConfig) -> Iterator[None]:
    """Explains a rejected bootstrap token of a pool, which is valid for one hour."""
    try:
        yield
    except ClusterError as error:
        pool = configured_pool(config)
        if error.name != "bootstrap-token-rejected" or pool is None:
            raise
        raise ClusterError(
            error.name,
            "The API server rejects the bootstrap token. A token of an AKS pool is valid for one hour.",
            new_token_hint(config),
        ) from error


def describe_pool_node(host: Host, config: NodeConfig) -> str:
    """Returns a sentence about the pool of a node that has joined; empty if it names no pool."""
    pool, record = configured_pool(config), registration.read_record(host)
    if pool is None or config.continuous_monitoring:
        return ""
    if config_source_kind(config) == "aksPool" and record:
        return f"The node is Machine {record.name} of {pool}."
    return (
        f"The node joined {pool}, but has no Azure identity. It is not registered as a Machine and does not follow "
        "changes of the pool. To change that, configure an identity and run `aks-flex-node agent` again."
    )
