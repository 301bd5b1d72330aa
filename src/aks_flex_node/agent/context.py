"""Builds the objects that commands and jobs use: configuration, host, ledger, event log and engine."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.aks_pool import pool_facts
from aks_flex_node.agent.aks_pool.pool_ids import PoolId, configured_pool, parse_pool_id
from aks_flex_node.agent.argument_eraser import erase_argument
from aks_flex_node.agent.cluster import discovery
from aks_flex_node.agent.components import cni
from aks_flex_node.agent.config import config_store, files, loader, resolved
from aks_flex_node.agent.config.remote import select_config_url
from aks_flex_node.agent.config.resolved import ConfigSourceKind, log_file
from aks_flex_node.agent.event_log import EventLog, JournalSink, LogFileSink
from aks_flex_node.agent.machine import UNIT_FILE, Machine, read_machine
from aks_flex_node.agent.paths import APPLIED_CONFIG, CURRENT_CONFIG, state_file
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.engine import Engine
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.errors import CommandUsageError, ConfigError, MachineError
from aks_flex_node.host.host import EntryKind, Host
from aks_flex_node.host.real import RealHost
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.models import NodeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.config.sources import SettingsSource
    from aks_flex_node.api.config_urls import ConfigUrl


class DaemonMode(Enum):
    """How the daemon runs after a join."""

    NONE = "none"
    FOREGROUND = "foreground"
    SERVICE = "service"

    @property
    def runs_daemon(self) -> bool:
        return self is not DaemonMode.NONE


@frozen
class ConfigSelection:
    """The configuration options of a command line: files, `--set` values, URL and AKS pool."""

    config: Path | Sequence[Path] | None = None  # later files override earlier ones
    sets: Sequence[str] | None = None
    url: ConfigUrl | None = None
    pool: PoolId | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.config,) if isinstance(self.config, Path) else tuple(self.config or ())

    @property
    def flags(self) -> dict[str, object]:
        """The settings of the command line, by path."""
        return {**(pool_settings(self.pool) if self.pool else {}), **parse_settings(self.sets or ())}


def require_root() -> None:
    if os.geteuid() != 0:
        raise MachineError("root-required", "This command must run as root.", "Run the same command with `sudo`.")


def require_node() -> None:
    if not config_store.exists(RealHost()):
        raise MachineError(
            "node-not-managed",
            f"The daemon has no configuration on this machine: {CURRENT_CONFIG} does not exist.",
            "Join the machine first: `aks-flex-node agent`, with `--config FILE` or `--config-url URL`.",
        )


def require_installation(config: NodeConfig) -> None:
    """Raises MachineError when nothing of a node is on this machine."""
    data = str(config.paths.data_dir)
    if not any(Path(path).exists() for path in (CURRENT_CONFIG, state_file(data), *ledger_paths(config))):
        raise MachineError(
            "machine-not-joined",
            "This machine is not a node: the agent installed nothing on it.",
            "To join it, run `aks-flex-node agent`. To see what a join would change, run `aks-flex-node plan`.",
        )


def config_selection(
    config: Sequence[Path] | None,
    sets: Sequence[str] | None,
    url: str | None,
    url_file: str | None,
    *,
    plain: bool = False,
    aks_pool: str | None = None,
) -> ConfigSelection:
    """Builds the selection for commands that also accept a configuration URL or an AKS pool."""
    pool = parse_pool_id(aks_pool) if aks_pool is not None else None
    if url:
        erase_argument(url)
    chosen = select_config_url(url, url_file, config[0] if config else None, os.environ, plain=plain, pool=aks_pool)
    return ConfigSelection(config, sets, chosen, pool)


def pool_settings(pool: PoolId) -> dict[str, object]:
    """Returns the settings that `--aks-pool` stands for."""
    return {"azure.targetCluster.resourceId": pool.cluster_id, "azure.targetAgentPoolName": pool.pool}


def load_config(
    selection: ConfigSelection, base: Sequence[SettingsSource] | None = None, last: Sequence[SettingsSource] = ()
) -> LoadedConfig:
    """Loads the configuration from the selected files, or else the configuration that was fetched before.

    On a managed node, the stored configuration takes precedence over a local file that is not named explicitly. The
    settings of an AKS pool complete the files: `base`, or else those that are stored on this machine.
    """
    stored = Path(CURRENT_CONFIG)
    chosen = selection.files
    if not chosen and stored_source() in {"provider", "aksPool"}:
        chosen = (stored,)
    if not chosen and (found := files.find_config(os.environ, files.CONFIG_DIRECTORY)):
        chosen = (found,)
    if not chosen and stored.exists():
        chosen = (stored,)
    if chosen == (stored,):
        content = RealHost().read(CURRENT_CONFIG)
        if content is None or not config_store.is_bundle(content):
            raise ConfigError(
                "stored-config-damaged",
                f"{CURRENT_CONFIG} is damaged.",
                "If the daemon runs, it restores the file from its copy within a minute. If it does not, join the "
                "machine again with a new URL: `aks-flex-rp node join-command --name NAME` prints the command.",
            )
    loaded = loader.load(
        chosen,
        os.environ,
        selection.flags,
        base=_stored_pool(selection, chosen) if base is None else base,
        last=last,
    )
    if selection.pool:
        loaded.origins.update(dict.fromkeys(pool_settings(selection.pool), "flag --aks-pool"))
    return loaded if chosen == (stored,) else loader.with_join_method(loaded, applied_config())


def _stored_pool(selection: ConfigSelection, chosen: Sequence[Path]) -> list[SettingsSource]:
    """Returns the settings of the pool that this machine has read before, if the configuration is for this pool."""
    facts = pool_facts.POOL_FACTS_FILE.read(RealHost())
    if facts is None:
        return []
    if chosen or selection.flags:
        config = loader.load(chosen, os.environ, selection.flags).config
        if str(configured_pool(config) or "").lower() != facts.pool.lower():
            return []
    return [pool_facts.config_source(facts, applied_config())]


def parse_settings(assignments: Sequence[str]) -> dict[str, object]:
    """Parses `key.path=value` assignments of `--set` into a mapping."""
    found: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise CommandUsageError(
                "set-option-invalid", f"--set {key} has no value.", "Use the form `--set node.maxPods=50`."
            )
        found[key] = value
    return found


def load_config_or_default(selection: ConfigSelection) -> tuple[NodeConfig, bool]:
    """Loads the configuration, or else the one applied last, or else the defaults.

    For commands that must work without a valid configuration. The flag is true only for the complete configuration:
    the applied one is stored without secrets and cannot be compared for drift.
    """
    if selection.files:
        return load_config(selection).config, True  # a file named explicitly must be valid
    with contextlib.suppress(ConfigError):
        return load_config(selection).config, True
    return applied_config() or NodeConfig(), False


def applied_config(host: Host | None = None) -> NodeConfig | None:
    """Returns the configuration applied last to this machine, without secrets, or None."""
    try:
        return load_stored(host or RealHost(), APPLIED_CONFIG)
    except (ConfigError, OSError):
        return None


def load_stored(host: Host, path: str) -> NodeConfig:
    """Loads a configuration that the agent has stored. Raises ConfigError if it is missing or damaged."""
    entry, content = host.stat(path), host.read(path)
    if entry is None:
        raise files.config_missing_error(Path(path))
    if content is None:
        raise files.config_unreadable_error(Path(path), "it is not a regular file")
    mode = entry.mode if entry.kind is EntryKind.FILE else 0  # of a link, the mode does not matter
    return loader.load_content(content, mode, Path(path)).config


def is_managed() -> bool:
    """Returns whether this machine has the daemon's unit and a configuration from the provider."""
    return stored_source() == "provider"


def stored_source() -> ConfigSourceKind | None:
    """Returns from where the configuration of a machine with the daemon's unit comes, or None on another machine."""
    if not (Path(UNIT_FILE).exists() and os.path.lexists(CURRENT_CONFIG)):
        return None
    try:
        return resolved.config_source_kind(loader.load(Path(CURRENT_CONFIG)).config)
    except ConfigError:
        return "provider"  # so that a damaged configuration is reported, not replaced


def ledger_paths(config: NodeConfig) -> tuple[str, ...]:
    return (f"{config.paths.data_dir}/ledger.json", f"{config.paths.install_dir}/ledger.json")


def make_engine(config: NodeConfig, host: Host | None = None) -> Engine:
    """Creates the engine for this machine."""
    host = host or RealHost()
    config = discovery.with_facts(config, discovery.FACTS_FILE.read(host))
    events = EventLog(JournalSink(), level=config.agent.log_level)
    return Engine(host, config, read_known_machine(host, config), Ledger(host, ledger_paths(config)), events)


def command_engine(config: Sequence[Path] | None, sets: Sequence[str] | None) -> Engine:
    """Creates the engine for the options of a command, whose configuration must be valid."""
    return make_engine(load_config(ConfigSelection(config, sets)).config)


def engine_or_default(config: Sequence[Path] | None) -> Engine:
    """Creates the engine for a command that must work without a valid configuration."""
    return make_engine(load_config_or_default(ConfigSelection(config))[0])


def make_job_engine(config: NodeConfig) -> Engine:
    """Creates the engine for a job: keeps the address assigned by the VPN and logs to the log file."""
    from aks_flex_node.agent.vpn import local_state

    engine = make_engine(config)
    engine.machine = local_state.with_stable_address(engine.host, engine.config, engine.machine)
    engine.kept_stopped = frozenset((Path(UNIT_FILE).name,))  # the daemon that started the job was running then
    open_log_file(engine)
    return engine


@contextlib.contextmanager
def current_engine() -> Iterator[Engine]:
    """Acquires the lock and yields an engine for the configuration in effect."""
    with exclusive():
        config_store.finish_interrupted(RealHost())
        yield make_job_engine(config_in_effect())


def config_in_effect(host: Host | None = None) -> NodeConfig:
    """Loads the configuration in effect. Restores its last good copy if its file is damaged. Raises ConfigError."""
    host = host or RealHost()
    with contextlib.suppress(MachineError):  # for example a full disk
        if config_store.restore_damaged(host):
            message = f"{CURRENT_CONFIG} was damaged, and is restored from its copy."
            EventLog(JournalSink()).emit("configuration-restored", message, "warning")
    return load_stored(host, CURRENT_CONFIG)


def config_or_applied(host: Host | None = None) -> tuple[NodeConfig, bool]:
    """Loads the configuration in effect, or else, if its file is damaged and has no copy, the one applied last.

    The flag is true only for the complete configuration. Without secrets and proxy, the daemon can report and be
    removed, but must not compare or repair the machine: that would remove them from the files of the node. Raises
    ConfigError.
    """
    host = host or RealHost()
    try:
        return config_in_effect(host), True
    except ConfigError:
        is_damaged = config_store.exists(host) and not config_store.is_bundle(host.read(CURRENT_CONFIG))
        if is_damaged and (applied := applied_config(host)):
            return applied, False
        raise


def read_known_machine(host: Host, config: NodeConfig) -> Machine:
    """Reads the facts of this machine, completed with stored ones: the pod CIDR and the last known address."""
    state = node_state.load(host, config)
    network = host.read(f"{config.paths.cni.conf_dir}/{cni.NETWORK}")
    machine = read_machine(host, config, state.pod_cidr or cni.subnet(network))
    if not machine.address:
        machine = replace(machine, address=state.address)  # not known at present, so the stored address is used
    return machine


def node_name(engine: Engine) -> str:
    """Returns the name with which the machine joined, even if the host name has changed since."""
    known = node_state.load(engine.host, engine.config).node
    return known or engine.machine.node_name(engine.config)


def open_log_file(engine: Engine) -> None:
    """Adds the log file to the outputs of the engine's event log."""
    path = log_file(engine.config)
    Path(path).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    engine.events.add(LogFileSink(path))
