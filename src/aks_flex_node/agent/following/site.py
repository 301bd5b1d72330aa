"""This machine under one configuration: what is asked, watched and compared as long as that one is in effect."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import renewing
from aks_flex_node.agent.components import vpn as tunnel
from aks_flex_node.agent.components.agent import CURRENT, FOLLOWING, NEXT, UPDATE
from aks_flex_node.agent.components.sequence import SEQUENCE, kept
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.drifting import fights
from aks_flex_node.agent.drifting.drifts import drifts
from aks_flex_node.agent.engine import state
from aks_flex_node.agent.engine.ledger import Ledger
from aks_flex_node.agent.engine.locking import is_held
from aks_flex_node.agent.engine.state import Phase
from aks_flex_node.agent.fetching.keeping import TOGETHER
from aks_flex_node.agent.following import deciding, metrics, nexts, notes, reports, sights
from aks_flex_node.agent.following.deciding import REPAIR, Wants
from aks_flex_node.agent.following.endpoints import endpoint
from aks_flex_node.agent.following.provider import Provider
from aks_flex_node.agent.following.sights import Sight
from aks_flex_node.agent.following.tokens import Tokens
from aks_flex_node.agent.following.watching import Lookout
from aks_flex_node.agent.machine import running_program
from aks_flex_node.agent.updating import journals, windows
from aks_flex_node.agent.updating.journals import Stage
from aks_flex_node.agent.vpn import looking as vpn
from aks_flex_node.agent.works import Outcome, Result
from aks_flex_node.errors import ConfigError, MachineError
from aks_flex_node.host.actions import WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.cluster.api import Api
    from aks_flex_node.agent.config.models import MaintenanceWindow, NodeConfig
    from aks_flex_node.agent.drifting.drifts import Drift
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.following.deciding import Memory
    from aks_flex_node.agent.following.notes import Notes
    from aks_flex_node.agent.following.verdicts import Verdict
    from aks_flex_node.host.host import Host


@dataclass
class Site:
    engine: Engine
    api: Api
    node: str
    provider: Provider
    now: Callable[[], float] = time.time
    sight: Sight = field(default_factory=Sight)
    drift: tuple[Drift, ...] = ()
    _fights: fights.Fights = field(default_factory=fights.Fights)
    _saved: Notes | None = None
    _measures: bytes = b""
    _complaint: str = ""
    _proven: bool = False
    _worn: bool = False  # the tunnel's certificate is about to end, or another tunnel is meant
    _lookout: Lookout | None = None

    @property
    def host(self) -> Host:
        return self.engine.host

    @property
    def config(self) -> NodeConfig:
        return self.engine.config

    @property
    def program(self) -> str:
        """The agent that runs: works are done by the same version."""
        return running_program() or self.engine.machine.program

    @property
    def notes_file(self) -> str:
        return FOLLOWING

    @property
    def current(self) -> str:
        """The version in effect."""
        return nexts.version_of(self._text(CURRENT))

    @property
    def has_left(self) -> bool:
        """Whether this is no node any more: nothing is there to be followed, and nothing to be written down."""
        return self.host.look(CURRENT) is None

    @property
    def next(self) -> str:
        """The version that is wanted and not in effect."""
        return nexts.version_of(self._text(NEXT))

    def newest(self) -> str:
        return self.next or self.current

    def say(self, event: str, message: str, level: str = "info", **fields: Any) -> None:
        self.engine.events.say(event, message, level, **fields)

    def watch(self, touched: Callable[[frozenset[str]], None]) -> None:
        """Look at files as they change, from now on."""
        self._lookout = Lookout(self.engine, touched)
        self._lookout.start()

    def close(self) -> None:
        if self._lookout:
            self._lookout.close()
        self.api.close()
        self.provider.close()

    def look(self) -> None:
        self.sight = sights.look(self.host, self.config, self.node, self.api)

    def look_for_drift(self) -> tuple[Drift, ...]:
        """Compare all of the machine with its configuration; what was not known to differ before."""
        if is_held() or self._is_half_way():
            return ()  # what is seen now is half of something
        self.engine.ledger = Ledger(self.host, self.engine.ledger.places)
        self._look_at_tunnel()
        known = {(one.subject, one.what) for one in self.drift}
        self.drift = drifts(self.engine, renewing.compared(self.engine))
        return tuple(one for one in self.drift if (one.subject, one.what) not in known)

    def _look_at_tunnel(self) -> None:
        """Its certificate may be about to end, the configuration may mean another one; and a gateway may give this
        machine another address."""
        due = vpn.due(self.host, self.config, self.now())
        self._worn = due or vpn.is_other(self.host, self.config)
        self.engine.machine = vpn.steady(self.host, self.config, self.engine.machine)

    def wants(self, *, deleted: bool, lost: bool) -> Wants:
        wanted = self._wanted()
        policy = wanted.update_policy
        phase = state.read(self.host, f"{self.config.paths.data_dir}/state.json").phase
        return Wants(
            deleted=deleted,
            leaving=phase == Phase.RESETTING.value,
            may_leave=self.config.agent.unbootstrap_on_delete,
            next=self.next,
            unfinished=self.is_unfinished(),
            window=_is_open(policy.maintenance_window, self.now()),
            lost=lost,
            drifted=bool(self._repairable()),
            repairs=self.config.drift_policy == "repair",
            paused=policy.paused,
            worn=self._worn,
        )

    def words_for(self, kind: str) -> tuple[str, ...]:
        """What a work has to be told."""
        if kind != REPAIR:
            return ()
        subjects = self._repairable()
        self._fights = self._fights.under(self.current).after(subjects, self.now())
        # What is given up with this very repair is repaired once more, and left alone from then on.
        return tuple(f"--leave-alone={each}" for each in sorted(self._left_alone() - subjects))

    def _repairable(self) -> set[str]:
        """What a repair is to put right."""
        found = [one for one in self.drift if not (one.foreign or self._is_way_in(one))]
        return {one.subject for one in found} - self._left_alone()

    def _is_way_in(self, one: Drift) -> bool:
        """Whether a repair leaves it as it is, because it may be the way to the cluster."""
        return one.component == tunnel.COMPONENT.name and not self.config.azure.vpn.enabled

    def report(self, known: Notes, memory: Memory, working: str) -> dict[str, Any]:
        fought = tuple(sorted(self._left_alone() & {one.subject for one in self.drift}))
        situation = reports.Situation(
            known,
            self.sight,
            self.current,
            self.next,
            memory.outcomes.get(deciding.UPDATE),
            self._failed(),
            working,
            fought,
            self._agent_failure(memory.outcomes.get(deciding.UPDATE)),
            self._tunnel_failure(memory.outcomes.get(deciding.CONNECT)),
        )
        told = reports.report(situation)
        if file := self.config.agent.metrics_file:
            self._measure(file, metrics.text(known, self.sight, told))
        return told

    def remember(self, known: Notes) -> None:
        """Take up what an earlier life knew."""
        self._saved, self._fights = known, fights.read(known.fights).under(self.current)

    def save(self, known: Notes) -> None:
        known = replace(known, fights=self._fights.document())
        if self._saved is None or not known.says_the_same(self._saved):
            with self._if_it_can():
                notes.write(self.host, FOLLOWING, known)
                self._saved = known

    def try_way(self, text: str) -> Verdict:
        """How the provider answers when it is asked the way that another configuration says."""
        config = load_text(text, NEXT, {}, {}).config
        tokens = Tokens(self.provider.tokens.program, lambda: text)
        other = Provider(endpoint(config, self.node), config, tokens)
        try:
            return other.poll("", 0)
        finally:
            other.close()

    def prove_agent(self) -> None:
        """Whoever got as far as to ask the provider is an agent that runs."""
        if not self._proven:
            self._proven = True
            renewing.prove(self.host, self.config)

    def _measure(self, file: str, text: bytes) -> None:
        if text != self._measures:
            with self._if_it_can():
                self.host.do(WriteFile(file, text, 0o644))
                self._measures = text

    @contextlib.contextmanager
    def _if_it_can(self) -> Iterator[None]:
        """A full disk keeps nobody from following; it is said once."""
        try:
            yield
        except MachineError as error:
            if error.message != self._complaint:
                self._complaint = error.message
                self.say(error.name, error.message, "warning")

    def is_unfinished(self) -> bool:
        """Whether a work was stopped half-way, or the agent's own version is still to come."""
        left = any(self.host.look(path) is not None for path in (UPDATE, TOGETHER))
        # One that stays in the foreground has no service of its own, and nobody brings it another version.
        return left or (
            kept(self.engine.ledger, self.config) is not SEQUENCE and renewing.due(self.host, self.config)
        )

    def _is_half_way(self) -> bool:
        """Whether an update has begun to change the machine, and waits to be gone on with: then it is no drift that
        the machine is not as the configuration before wants it."""
        journal = journals.read(self.host)
        return journal is not None and journal.stage is not Stage.PREPARING

    def _agent_failure(self, outcome: Outcome | None) -> str:
        """Why the version of the agent that is wanted does not run: it did not work, or could not be had yet."""
        if known := renewing.failure(self.host, self.config):
            return known
        late = outcome is not None and outcome.result == Result.FAILED.value and outcome.version == self.current
        return outcome.message if outcome and late and renewing.due(self.host, self.config) else ""

    def _tunnel_failure(self, outcome: Outcome | None) -> Outcome | None:
        return outcome if outcome and self._worn and outcome.result == Result.FAILED.value else None

    def _failed(self) -> Outcome | None:
        """The version that is wanted, if it was tried and did not work."""
        known = journals.failure(self.host)
        if known is None or known.version != self.next:
            return None
        reason, result = known.reason, Result.ROLLED_BACK.value
        return Outcome(deciding.UPDATE, result, reason, known.message, version=known.version, at=known.at)

    def _left_alone(self) -> frozenset[str]:
        return self._fights.under(self.current).left_alone(self.now())

    def _wanted(self) -> NodeConfig:
        """What is wanted decides when it may come; what is in effect, when nothing else is wanted."""
        text = self._text(NEXT)
        try:
            return load_text(text, NEXT, {}, {}).config if text else self.config
        except ConfigError:
            return self.config

    def _text(self, path: str) -> str:
        return (self.host.read(path) or b"").decode(errors="replace")


def _is_open(window: MaintenanceWindow, now: float) -> bool:
    try:
        return windows.opens(window, datetime.fromtimestamp(now, timezone.utc)) is None
    except MachineError:
        return True  # whoever tries says what is wrong with it
