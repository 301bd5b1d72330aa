"""The works themselves, each in a process of its own. What became of one is written down for whoever started it."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import renewing, works
from aks_flex_node.agent.cli import door, progress, resets, screen, sites
from aks_flex_node.agent.cli.stays import install_service
from aks_flex_node.agent.cluster.own import node_api
from aks_flex_node.agent.cluster.proof import LiveProof
from aks_flex_node.agent.components import vpn
from aks_flex_node.agent.components.agent import CURRENT, WORK
from aks_flex_node.agent.components.sequence import SEQUENCE, kept
from aks_flex_node.agent.config import loader
from aks_flex_node.agent.drifting.repairs import repair
from aks_flex_node.agent.engine import state
from aks_flex_node.agent.engine.locking import alone
from aks_flex_node.agent.engine.workshop import StoreWorkshop
from aks_flex_node.agent.fetching import keeping
from aks_flex_node.agent.following import sights
from aks_flex_node.agent.following.recovery import Recovery
from aks_flex_node.agent.updating.update import Update
from aks_flex_node.agent.updating.workbench import Workbench
from aks_flex_node.agent.vpn import looking
from aks_flex_node.agent.works import Outcome, Result
from aks_flex_node.errors import FlexError
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.engine import Engine

ALONE = "--leave-alone="


def run(kind: str, words: Sequence[str]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    doing: dict[str, Callable[[], Outcome | None]] = {
        "update": update,
        "repair": lambda: _repair([word.removeprefix(ALONE) for word in words if word.startswith(ALONE)]),
        "recover": recover,
        "leave": leave,
        "connect": connect,
    }
    try:
        outcome = doing[kind]()
    except FlexError as error:
        outcome = Outcome(kind, Result.FAILED.value, error.name, error.message, error.hint, again=True)
    if outcome is None:
        return  # there is nobody left to tell
    works.write(RealHost(), WORK, outcome)
    screen.say(f"{outcome.kind} {outcome.result}: {outcome.message}".rstrip(": "))
    if kind == "update" and outcome.result == Result.DONE.value:
        renew(outcome.version)


def update() -> Outcome:
    """Take on the configuration that waits; or go on with what a crash interrupted."""
    with alone():
        return Update(Workbench(RealHost(), _engine_for, progress.Lines())).run()


def renew(version: str) -> None:
    """The agent's own service and version come last: whoever started us may be replaced by it."""
    with alone():
        engine = _engine_for(loader.load(Path(CURRENT), {}, {}).config)
        if kept(engine.ledger, engine.config) is SEQUENCE:
            return  # it stays in the foreground, where somebody looks after it
        outcome = install_service(engine)
    if outcome.result != Result.DONE.value:
        screen.say(f"the agent itself {outcome.result}: {outcome.message}")
        works.write(RealHost(), WORK, replace(outcome, version=version))


def _engine_for(config: NodeConfig) -> Engine:
    engine = door.engine(config)
    engine.machine = looking.steady(engine.host, engine.config, engine.machine)
    door.open_log(engine)
    return engine


def _repair(left_alone: Sequence[str]) -> Outcome:
    with alone():
        keeping.finish(RealHost())
        engine = _engine_for(loader.load(Path(CURRENT), {}, {}).config)
        engine.leave_alone = frozenset(left_alone)
        workshop = engine.workshop = StoreWorkshop(engine.config)
        try:
            outcome = repair(engine, repaired)
        finally:
            workshop.close()
        keep_address(engine)
        return outcome


def repaired(engine: Engine) -> Sequence[Component]:
    """All but a tunnel that the configuration does not know: that may be the only way to the cluster.

    An update proves that a node works without it, or goes back; a repair could do neither.
    """
    found = renewing.compared(engine)
    return found if engine.config.azure.vpn.enabled else tuple(one for one in found if one is not vpn.COMPONENT)


def keep_address(engine: Engine) -> None:
    """By which the node is known from now on; a tunnel may have given it another."""
    path = f"{engine.config.paths.data_dir}/state.json"
    known = state.read(engine.host, path)
    if known.address and known.address != engine.machine.address:
        state.write(engine.host, path, replace(known, address=engine.machine.address))


def recover() -> Outcome:
    with alone():
        keeping.finish(RealHost())
        site = sites.open_site()
        lines = progress.Lines()
        proof = LiveProof(site.host, site.config, site.node, lines.note)
        api = node_api(site.config)
        look = lambda: sights.look(site.host, site.config, site.node, api)  # noqa: E731
        return Recovery(site.engine, site.provider, proof, look).run()


def connect() -> Outcome:
    """Have the tunnel that the configuration means, with a certificate that lasts."""
    from aks_flex_node.agent.vpn.connection import Connection

    with alone():
        keeping.finish(RealHost())
        engine = _engine_for(loader.load(Path(CURRENT), {}, {}).config)
        Connection(engine, progress.Lines().note).run()
    return Outcome("connect", Result.DONE.value, message="The tunnel has what it needs.")


def leave() -> Outcome | None:
    """The same as `unbootstrap --yes`: the agent's own service goes first, and this process is not part of it."""
    config, _ = door.load_leniently(door.Given())
    resets.reset(config, keep_artifacts=False, seconds=float(config.update_policy.drain_timeout_seconds))
    return None
