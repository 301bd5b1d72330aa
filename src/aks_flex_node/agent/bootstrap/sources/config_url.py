"""A configuration URL of a provider as a join source: fetched once with the key of this machine, then stored."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context
from aks_flex_node.agent.bootstrap import phases
from aks_flex_node.agent.bootstrap.join import initialize
from aks_flex_node.agent.bootstrap.sources.first_contact import fetch_with_key
from aks_flex_node.agent.bootstrap.sources.source import JoinSource
from aks_flex_node.agent.cluster.node_health import has_kubelet_credential
from aks_flex_node.agent.config import config_store, files, loader, resolved
from aks_flex_node.agent.config.remote import fetch_config, report_join_failure
from aks_flex_node.agent.config.sources import machine_settings
from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.machine import identify_machine
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.program_stager import artifact_sources
from aks_flex_node.api import config_urls
from aks_flex_node.errors import ConfigError, FlexError, MachineError
from aks_flex_node.host.host import read_text
from aks_flex_node.lean_dataclass import dataclass
from aks_flex_node.redaction import redact_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.bootstrap.phases import JoinPhase
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.config.remote import ConfigBundle
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.api.config_urls import ConfigUrl
    from aks_flex_node.settings.models import NodeConfig

MAX_REPORTED_LENGTH = 2000
# Another node's URL is no failure of that node, and after the join the daemon reports.
NOT_REPORTED = (phases.IDENTITY, phases.DAEMON)


@dataclass
class FromConfigUrl(JoinSource):
    url: ConfigUrl
    bundle: ConfigBundle | None = None  # fetched by this run
    is_first: bool = False  # this machine was no node before

    def fetch(self, progress: ProgressReporter) -> LoadedConfig:
        flags = context.parse_settings(self.selection.sets or ())
        if config_store.is_fetched_from(self.host, self.url):
            self.loaded = loader.load(Path(CURRENT_CONFIG), os.environ, flags)
            return self.loaded
        file = files.find_config(os.environ, files.CONFIG_DIRECTORY)
        own = loader.load_machine_settings(read_text(self.host, CURRENT_CONFIG), file)
        bundle = self._request(loader.load_fetch_settings(os.environ, flags, own), progress)
        loader.refuse_local_settings(bundle.text, self.url.origin)
        loaded = loader.load_text(bundle.text, self.url.origin, os.environ, flags, own)
        applied = context.applied_config(self.host)
        self.loaded = loader.with_join_method(loaded, applied)
        if file and not self.loaded.config.continuous_monitoring:
            self.loaded.warnings.append(
                f"{file} exists: later commands without the URL use it. Remove it if you do not need it."
            )
        kept = machine_settings(self.loaded.settings)
        if self.loaded is not loaded:
            kept["node.kubelet.auth"] = resolved.kubelet_auth(self.loaded.config)
        self.bundle = bundle.with_settings(kept)
        self.is_first = not (has_kubelet_credential(self.host, self.loaded.config) or applied)
        return self.loaded

    def _request(self, settings: NodeConfig, progress: ProgressReporter) -> ConfigBundle:  # noqa: ARG002
        url, sources = self.url, artifact_sources(settings)
        machine = identify_machine(self.host, url.origin)
        if url.key:  # a storage account binds no key
            bundle = fetch_config(url, sources, machine=machine)
            if not bundle.key_url:
                return bundle
            url = config_urls.parse(bundle.key_url)
        return fetch_with_key(
            self.host,
            str(settings.paths.data_dir),
            lambda prove: fetch_config(url, sources, machine=machine, prove=prove),
        )

    @property
    def decides_remotely(self) -> bool:
        return True

    @property
    def has_bound_key(self) -> bool:
        return bool(self.bundle and self.bundle.key_audience)

    def admit(self, engine: Engine) -> None:
        refuse_other_node(engine, context.applied_config(self.host))

    def persist(self, engine: Engine) -> None:
        """Stores the configuration, and first whether the provider has bound the key of this machine."""
        if self.bundle is None:
            return
        update_journal.supersede_journal(engine.host)
        NodeKeyStore(engine.host).bind(self.bundle.key_audience, self.bundle.key)
        config_store.save_fetched(engine.host, self.bundle, self.url)

    @contextmanager
    def explain_failure(self, phase: JoinPhase, config: NodeConfig) -> Iterator[None]:
        try:
            with super().explain_failure(phase, config):
                yield
        except FlexError as error:
            if phase is phases.IDENTITY and self.bundle:
                NodeKeyStore(self.host).discard(self.bundle.key)
            if phase not in NOT_REPORTED:
                self._report(error, config)
            if phase in phases.BEFORE_CHANGES and phase is not phases.POLICY:
                self.keep_fetched(error, lambda: context.make_engine(config, self.host))
            raise

    def keep_fetched(self, error: FlexError, make_engine: Callable[[], Engine]) -> None:
        """Stores a fetched configuration after a failure before the join, because its URL may be valid only once. The
        next run continues without the URL.
        """
        if self.bundle is None or not self.is_first or isinstance(error, ConfigError):
            return
        with suppress(FlexError, OSError):  # the disk may be the problem that was found
            engine = make_engine()
            initialize(engine, ProgressReporter())
            self.persist(engine)
            hint = error.hint.replace("Nothing was changed.", "Nothing was installed.")
            # A rejected token came with the URL, so the stored configuration does not help.
            refused = any(line.startswith("token: ") for line in error.message.splitlines())
            stored = "" if refused else " The configuration is stored: run the command again without the URL."
            error.hint = f"{hint}{stored}"

    def _report(self, error: FlexError, config: NodeConfig) -> None:
        """Tells the provider why the join failed, so that the operator sees it there, too."""
        message = redact_output(" ".join(error.message.split()), queries=True)[:MAX_REPORTED_LENGTH]
        key = NodeKeyStore(self.host).read() if self.url.is_enrolment else None
        report_join_failure(self.url, artifact_sources(config), message, key.prove if key else None)


def refuse_other_node(engine: Engine, applied: NodeConfig | None) -> None:
    """Raises MachineError if the fetched configuration is for another node or cluster than this node's."""
    known = node_state.load(engine.host, engine.config).node
    name = engine.machine.node_name(engine.config)
    here, there = ("/".join(resolved.target_cluster(each) or ()) if each else "" for each in (applied, engine.config))
    elsewhere = bool(here and there and here.lower() != there.lower())
    if has_kubelet_credential(engine.host, engine.config) and (elsewhere or (known and known != name)):
        raise MachineError(
            "config-node-mismatch",
            f"This machine is node {known or name} of {here or 'its cluster'}, but the URL is for node {name} of "
            f"{there or 'a cluster'}. Nothing was changed.",
            "Use the URL of this node. Or run `aks-flex-node unbootstrap` first, and use a new URL of the other.",
        )
