"""Builds what commands and jobs work with: the configuration, the host, the ledger, the event log and the engine."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.cluster import discovery
from aks_flex_node.agent.components import cni
from aks_flex_node.agent.config import config_store, files, loader
from aks_flex_node.agent.config.models import NodeConfig
from aks_flex_node.agent.config.remote import select_config_url
from aks_flex_node.agent.config.resolved import kubelet_credential_file, log_file
from aks_flex_node.agent.event_log import EventLog, JournalSink, LogFileSink
from aks_flex_node.agent.machine import UNIT_FILE, read_machine
from aks_flex_node.agent.paths import APPLIED_CONFIG, CURRENT_CONFIG, state_file
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.engine import Engine
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.errors import CommandUsageError, ConfigError, MachineError
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.config.remote import ConfigBundle
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.api.config_urls import ConfigUrl
    from aks_flex_node.host.host import Host


READ_STATUS = "look at all of a node"  # what commands need root for that only look


class DaemonMode(Enum):
    """What becomes of the agent after a join, where the configuration asks for continuous monitoring."""

    NONE = "not"
    FOREGROUND = "here"
    SERVICE = "as a service"


@dataclass(frozen=True)
class ConfigSelection:
    """What the words of a command say about the configuration."""

    config: Path | None = None
    sets: tuple[str, ...] = ()
    url: ConfigUrl | None = None


def require_root(why: str = "make this machine a node") -> None:
    if os.geteuid() != 0:
        raise MachineError("root-required", f"Only root can {why}.", "Run the same command again with `sudo`.")


def require_node() -> None:
    if not Path(CURRENT_CONFIG).exists():
        raise MachineError(
            "node-not-managed",
            f"There is no {CURRENT_CONFIG}: this machine is no node that is followed.",
            "Join first: `aks-flex-node agent --config-url URL`.",
        )


def config_selection(
    config: Path | None, sets: Sequence[str] | None, url: str | None, url_file: str | None, *, plain: bool = False
) -> ConfigSelection:
    """For commands to which a URL may be given as well."""
    return ConfigSelection(
        config, tuple(sets or ()), select_config_url(url, url_file, config, os.environ, plain=plain)
    )


def load_config(selection: ConfigSelection) -> LoadedConfig:
    """The configuration from the file that is meant; where there is none, from what was fetched before.

    A node that follows its provider is what the provider wants, whatever a file says that it once was made from.
    """
    if selection.config is None and is_managed():
        return loader.load(Path(CURRENT_CONFIG), os.environ, parse_settings(selection.sets))
    file = selection.config or files.find_config(None, os.environ, files.CONFIG_DIRECTORY)
    if file is None and Path(CURRENT_CONFIG).exists():
        file = Path(CURRENT_CONFIG)
    return loader.load(file, os.environ, parse_settings(selection.sets))


def load_or_fetch_config(selection: ConfigSelection) -> tuple[LoadedConfig, ConfigBundle | None]:
    """The configuration from a file or a URL; and the bundle that it came in, if that was fetched just now."""
    if selection.url is None:
        return load_config(selection), None
    flags = parse_settings(selection.sets)
    if config_store.is_fetched_from(RealHost(), selection.url):
        return loader.load(Path(CURRENT_CONFIG), os.environ, flags), None
    from aks_flex_node.agent.config.remote import fetch_config
    from aks_flex_node.agent.reconcile.program_stager import artifact_sources

    bundle = fetch_config(selection.url, artifact_sources(loader.load_fetch_settings(os.environ, flags)))
    loaded = loader.load_text(bundle.text, selection.url.origin, os.environ, flags)
    if other := files.find_config(None, os.environ, files.CONFIG_DIRECTORY):
        loaded.warnings.append(f"{other} is there, too: later commands without the URL use it. Remove it or mean it.")
    return loaded, bundle


def parse_settings(assignments: Sequence[str]) -> dict[str, object]:
    """`key.path=value` words, as a mapping."""
    found: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise CommandUsageError(
                "set-option-invalid", f"--set {key} has no value.", "Write --set node.maxPods=50."
            )
        found[key] = value
    return found


def load_config_or_default(selection: ConfigSelection) -> tuple[NodeConfig, bool]:
    """For commands that must work whatever became of the configuration: it, else what was applied, else defaults.

    Also whether it is the real one: what was applied is kept without its secrets, and says nothing about drift.
    """
    if selection.config is not None:
        return load_config(selection).config, True  # whoever names a file means it
    with contextlib.suppress(ConfigError):
        return load_config(selection).config, True
    return applied_config() or NodeConfig(), False


def applied_config() -> NodeConfig | None:
    """What was last applied to this machine, without its secrets; None when nothing was."""
    try:
        return loader.load_text(Path(APPLIED_CONFIG).read_text(), APPLIED_CONFIG, {}, {}).config
    except (ConfigError, OSError):
        return None


def is_managed() -> bool:
    """Whether this machine has an agent that stays, and what it was told last."""
    return Path(UNIT_FILE).exists() and Path(CURRENT_CONFIG).exists()


def has_credentials(config: NodeConfig) -> bool:
    """Whether this machine has what a node shows the cluster."""
    return Path(kubelet_credential_file(config)).exists()


def ledger_paths(config: NodeConfig) -> tuple[str, ...]:
    return (f"{config.paths.data_dir}/ledger.json", f"{config.paths.install_dir}/ledger.json")


def make_engine(config: NodeConfig, host: Host | None = None) -> Engine:
    """An engine for this machine."""
    host = host or RealHost()
    config = discovery.with_facts(config, discovery.stored_facts(host))
    events = EventLog(JournalSink(), level=config.agent.log_level)
    return Engine(host, config, read_known_machine(host, config), Ledger(host, ledger_paths(config)), events)


def make_job_engine(config: NodeConfig) -> Engine:
    """An engine for a job: it keeps the address that a VPN gave this machine, and writes to the log file."""
    from aks_flex_node.agent.vpn import local_state

    engine = make_engine(config)
    engine.machine = local_state.with_stable_address(engine.host, engine.config, engine.machine)
    open_log_file(engine)
    return engine


@contextlib.contextmanager
def current_engine() -> Iterator[Engine]:
    """Holds the lock, and gives an engine for the configuration in effect."""
    with exclusive():
        config_store.finish_interrupted(RealHost())
        yield make_job_engine(loader.load(Path(CURRENT_CONFIG), {}, {}).config)


def read_known_machine(host: Host, config: NodeConfig) -> Machine:
    """What the machine is, and what is known of it from before."""
    state = node_state.read(host, state_file(config.paths.data_dir))
    network = host.read(f"{config.paths.cni.conf_dir}/{cni.NETWORK}")
    machine = read_machine(host, config, state.pod_cidr or cni.subnet(network))
    if not machine.address:
        machine = replace(machine, address=state.address)  # nobody can tell now, so it is what it was
    return machine


def node_name(engine: Engine) -> str:
    """By which the machine joined, whatever it is called now."""
    known = node_state.read(engine.host, state_file(engine.config.paths.data_dir)).node
    return known or engine.machine.node_name(engine.config)


def open_log_file(engine: Engine) -> None:
    """From now on, events go to the log file, too."""
    path = log_file(engine.config)
    Path(path).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    engine.events.add(LogFileSink(path))
