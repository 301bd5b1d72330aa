"""One join, from the words of a command to a line that says how it ended."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent import discovering
from aks_flex_node.agent.cli import ahead, door, progress, screen
from aks_flex_node.agent.cli.door import Stays
from aks_flex_node.agent.cli.stays import check_following, stay
from aks_flex_node.agent.cluster.proof import LiveProof
from aks_flex_node.agent.components.agent import APPLIED, FETCHED_FROM
from aks_flex_node.agent.components.sequence import SEQUENCE
from aks_flex_node.agent.config import derived, loader
from aks_flex_node.agent.engine import state
from aks_flex_node.agent.engine.locking import alone
from aks_flex_node.agent.engine.workshop import StoreWorkshop
from aks_flex_node.agent.fetching import keeping
from aks_flex_node.agent.joining import Join, begin
from aks_flex_node.agent.recovering import recover
from aks_flex_node.agent.updating import journals
from aks_flex_node.agent.watching import Watcher
from aks_flex_node.agent.words import counted
from aks_flex_node.errors import ClusterError, ConfigError, MachineError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_node.agent.cli.door import Given
    from aks_flex_node.agent.cluster.nodes import Node
    from aks_flex_node.agent.config.loader import Loaded
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.engine import Engine


def join(
    given: Given, skip: Sequence[str], components: Sequence[Component] | None = None, stays: Stays | None = None
) -> NodeConfig:
    """Check the configuration and the machine, then do it."""
    start = time.monotonic()
    door.require_root()
    with alone():  # from the first look on: what is kept here may be about to change
        keeping.finish(RealHost())
        loaded, bundle = door.obtain(given)
        complete, found = ahead.ask_azure(loaded.config)
        loaded = replace(loaded, config=complete)
        follows = loaded.config.continuous_monitoring and stays in {Stays.HERE, Stays.AS_A_SERVICE}
        engine = _engine_for(loaded, follows=follows, fetched=given.url is not None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that goes away does not stop us half-way
        recover(engine)
        check(engine, skip, components)
        begin(engine, Watcher())  # the log is in a directory of its own
        if found:
            discovering.keep(engine.host, found)
        if bundle and given.url:
            journals.set_aside(engine.host)
            keeping.keep(engine.host, bundle, given.url)  # from here on, the next run needs no URL
        door.open_log(engine)
        with _renewable(engine):
            node = _run(engine, components or SEQUENCE, loaded)
        engine.host.do(WriteFile(APPLIED, keeping.applied_text(loaded.config).encode(), 0o600))
        stay(engine, loaded, stays, follows=follows)
    took = time.monotonic() - start
    what = f"Node {node.name} is Ready" if node else f"Done, {counted(len(engine.changed), 'change')}"
    screen.say(f"{what} ({took:.1f} s).")
    if follows and stays is Stays.AS_A_SERVICE:
        screen.say("aks-flex-node.service follows its configuration from now on; `aks-flex-node status` shows it.")
    return loaded.config


def _engine_for(loaded: Loaded, *, follows: bool, fetched: bool) -> Engine:
    """An engine for a configuration that this machine can take."""
    if not door.has_joined(loaded.config):
        loader.check_join(loaded.config)
    for warning in loaded.warnings:
        screen.warn(warning)
    engine = door.engine(loaded.config)
    if follows:
        check_following(loaded.config, door.node_name(engine))
        refuse_passing_tunnel(loaded)
    if fetched:
        refuse_another_node(engine, door.applied())
    refuse_another_name(engine)
    return engine


def _run(engine: Engine, components: Sequence[Component], loaded: Loaded) -> Node | None:
    workshop = StoreWorkshop(engine.config)
    engine.workshop = workshop
    name = engine.machine.node_name(engine.config)
    try:
        with progress.watching(workshop.transfers) as watcher:
            proof = LiveProof(engine.host, engine.config, name, watcher.note)
            stages = ahead.stages(engine, watcher.note) if components is SEQUENCE else []
            again = lambda: door.survey_of(engine.host, engine.config)  # noqa: E731
            join = Join(engine, proof, watcher, stages, again, ahead.introduction(engine, loaded))
            return join.run(components)
    finally:
        workshop.close()


@contextmanager
def _renewable(engine: Engine) -> Iterator[None]:
    """A token that came by a URL is for one attempt; whoever made another one in vain is told how to get the next."""
    try:
        yield
    except ClusterError as error:
        if error.name != "token-refused" or engine.host.look(FETCHED_FROM) is None:
            raise
        name = engine.machine.node_name(engine.config)
        raise ClusterError(
            "token-refused",
            "The API server does not accept the bootstrap token: it came with the URL, and both are good for one "
            "attempt to join, which was made, or for a day.",
            f"Make new ones where the provider runs: `aks-flex-rp node join-command --name {name}`. It prints the "
            "line to run here; what is installed already stays.",
        ) from error


def refuse_passing_tunnel(loaded: Loaded) -> None:
    """A node that is followed becomes what its resource says; without the tunnel it would be lost."""
    origin = loaded.origins.get("azure.vpn.enabled", "")
    if loaded.config.azure.vpn.enabled and origin.startswith(("flag", "environment")):
        raise ConfigError(
            "vpn-for-one-run",
            f"The VPN is asked for by {origin} alone. This node is to follow its resource, which would take it away.",
            "Say it in the resource: `aks-flex-rp node update --vpn`, and join with its new URL.",
        )


def refuse_another_name(engine: Engine) -> None:
    """A node's certificate is for one name. Under another it would be a stranger to its own Node."""
    known = state.read(engine.host, f"{engine.config.paths.data_dir}/state.json").node
    name = engine.machine.node_name(engine.config)
    if known and known != name and door.has_joined(engine.config):
        raise MachineError(
            "node-renamed",
            f"This machine joined as {known}, and would now be called {name}.",
            f"Set node.name to {known}, or take the node apart first: `aks-flex-node unbootstrap`.",
        )


def refuse_another_node(engine: Engine, applied: NodeConfig | None) -> None:
    """What was fetched must be for the node that this machine already is: of this name, in this cluster."""
    known = state.read(engine.host, f"{engine.config.paths.data_dir}/state.json").node
    name = engine.machine.node_name(engine.config)
    here, there = (cluster_name(each) if each else "" for each in (applied, engine.config))
    elsewhere = bool(here and there and here.lower() != there.lower())
    if door.has_joined(engine.config) and (elsewhere or (known and known != name)):
        raise MachineError(
            "bundle-for-another-node",
            f"This machine is node {known or name} of {here or 'its cluster'}, and the URL is for node {name} of "
            f"{there or 'a cluster'}. Nothing was changed.",
            "Use the URL of this node, or take it apart first: `aks-flex-node unbootstrap`.",
        )


def cluster_name(config: NodeConfig) -> str:
    """Subscription, resource group and name; nothing when the configuration does not name its cluster in full."""
    return "/".join(derived.cluster(config) or ())


def check(engine: Engine, skip: Sequence[str], components: Sequence[Component] | None = None) -> None:
    """Refuse before anything is changed what could not end well."""
    if "all" in skip:
        return
    from aks_flex_node.agent import preflight

    names = frozenset(component.name for component in components) if components else None
    situation = preflight.situation(engine.host, engine.config, engine.machine, engine.ledger, components=names)
    findings = preflight.run_all(situation, set(skip))
    wrong = [finding for finding in findings if finding.severity == "error"]
    for finding in findings:
        if finding.severity == "warning" and not engine.ledger.exists:  # said before the first join, and not for ever
            screen.warn(f"{finding.message} ({finding.check})")
    if wrong:
        lines = [f"{finding.check}: {finding.message} {finding.remedy}" for finding in wrong]
        raise MachineError(
            "preflight-failed",
            "\n".join([f"This machine is not ready to become a node ({counted(len(wrong), 'problem')}):", *lines]),
            "Nothing was changed. To go on in spite of a finding: --skip NAME.",
        )
