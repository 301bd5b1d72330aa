"""Brings the agent to another version, from outside of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.cluster import causes
from aks_flex_node.agent.components import service
from aks_flex_node.agent.components.agent import CURRENT
from aks_flex_node.agent.components.service import release
from aks_flex_node.agent.components.sources import plain
from aks_flex_node.agent.identities.handing import IDENTITY
from aks_flex_node.agent.renewing import trials
from aks_flex_node.agent.works import Outcome, Result
from aks_flex_node.errors import FlexError, MachineError, WordsError
from aks_flex_node.host.actions import MakeLink, RestartUnit, StartUnit
from aks_flex_node.host.host import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.renewing.trials import Trial

KIND = "update"
FAILED = "AgentUpdateFailed"
ANSWER_SECONDS = 30.0
PROOF_SECONDS = 180.0  # longer than its first answer from a provider that is away takes
LOOK_SECONDS = 0.5


@dataclass
class Renewal:
    engine: Engine
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> Outcome:
        """Put it in place, check it, try it, and see whether it proves itself; go back when it does not."""
        engine, config = self.engine, self.engine.config
        if known := trials.failure(engine.host, config):
            return Outcome(KIND, Result.FAILED.value, FAILED, known)
        if (trial := trials.read(engine.host, config)) and trial.target == trials.leads_to(engine.host, config):
            return self._see(trial)  # whoever began it was cut off
        if not trials.due(engine.host, config):
            return Outcome(KIND, Result.DONE.value)
        try:
            self._place()
            self._check()
        except FlexError as error:
            return Outcome(KIND, Result.FAILED.value, error.name, error.message, error.hint, again=error.again)
        trial = self._begin()
        try:
            self._start()
        except FlexError as error:
            return self._go_back(trial, self._cause(error))
        return self._see(trial)

    def _place(self) -> None:
        """It reaches the disk before anything leads to it."""
        self.engine.stage((service.RELEASE,))
        self.engine.apply(service.RELEASE)
        self.engine.settle()

    def _check(self) -> None:
        """It must say that it is what it should be, and take the configuration that is in effect."""
        host, config = self.engine.host, self.engine.config
        program, version = f"{release.place(config)}/bin/aks-flex-node", plain(config.agent.version or "")
        said = self._ask(program, "version")
        if not said.ok or said.out.strip() != version:
            self._refuse(f"asked for its version, it says: {said.out.strip() if said.ok else said.last_words}")
        if host.look(CURRENT):
            judged = self._ask(program, "config", "validate", "--config", CURRENT)
            if not judged.ok:
                self._refuse(f"it does not take this machine's configuration: {judged.last_words}")
        identity = f"{config.paths.kubernetes.kubelet_dir}/{IDENTITY}"
        if host.look(identity):
            handed = self._ask(program, "token", "kubernetes", "--identity", identity)
            if handed.code == WordsError.exit_code:  # whoever signs us in may be away, but the command must be there
                self._refuse(f"it has no token for the kubelet of this machine: {handed.last_words}")

    def _ask(self, *argv: str) -> Answer:
        try:
            return self.engine.host.ask(*argv, seconds=ANSWER_SECONDS)
        except OSError as error:  # it is a program of another kind of machine
            return Answer(1, err=error.strerror or str(error))

    def _refuse(self, why: str) -> None:
        trials.fail(self.engine.host, self.engine.config, why)
        raise MachineError(
            "agent-refused",
            f"Version {self.engine.config.agent.version} of the agent was not started: {why}",
            "Set agent.version to one that works, or agent.url and agent.sha256 to the right archive.",
        )

    def _begin(self) -> Trial:
        engine, config = self.engine, self.engine.config
        spec = service.RELEASE.desired(config, engine.machine)
        link = MakeLink(release.current(config), release.place(config))
        engine.ledger.before(service.RELEASE.name, spec, (link,), engine.originals)
        engine.events.say("agent-update", f"trying version {config.agent.version} of the agent")
        return trials.begin(engine.host, config)

    def _start(self) -> None:
        done = self.engine.apply(service.COMPONENT)
        if not any(isinstance(action, StartUnit | RestartUnit) for action in done):
            self.engine.host.do(RestartUnit(service.NAME))

    def _see(self, trial: Trial) -> Outcome:
        """Wait until the agent has ended its trial, or whoever starts it has."""
        host, config, end = self.engine.host, self.engine.config, self.clock() + PROOF_SECONDS
        while trials.read(host, config):
            if self.clock() >= end:
                return self._go_back(trial, f"It did not ask for its configuration within {PROOF_SECONDS:.0f} s.")
            self.sleep(LOOK_SECONDS)
        if why := trials.failure(host, config):
            return Outcome(KIND, Result.ROLLED_BACK.value, FAILED, why)
        return Outcome(KIND, Result.DONE.value, message=f"The agent is at version {config.agent.version}.")

    def _cause(self, error: FlexError) -> str:
        """Its own last words say more than that it could not be started."""
        host = self.engine.host
        lines = causes.journal(host, host.unit(service.NAME), lines=20)
        return f"It does not start: {causes.worst_line(lines)}" if lines else error.message

    def _go_back(self, trial: Trial, why: str) -> Outcome:
        host, config = self.engine.host, self.engine.config
        trials.go_back(host, config, trial, why)
        message = trials.failure(host, config)
        try:
            host.do(RestartUnit(service.NAME))
        except FlexError as error:
            message = f"{message} Nor does that one: {error.message}"
        return Outcome(KIND, Result.ROLLED_BACK.value, FAILED, message)
