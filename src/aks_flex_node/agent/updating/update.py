"""A node takes on the configuration that waits for it: the whole way on one page.

Everything is ready before anything is touched; what to go back to is the current configuration, which is replaced at
the very end. A crash at any instant is continued by the next run: before the change anew, after it with the proof,
and a way back is gone to its end.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.agent import CURRENT, NEXT
from aks_flex_node.agent.fetching import keeping
from aks_flex_node.agent.updating import changes, configurations, guards, journals
from aks_flex_node.agent.updating.guards import Verdict
from aks_flex_node.agent.updating.journals import Before, Cause, Failure, Journal, Stage
from aks_flex_node.agent.updating.proving import AwayError, Expected
from aks_flex_node.agent.works import Outcome, Result
from aks_flex_node.errors import ArtifactError, ClusterError, ConfigError, FlexError

if TYPE_CHECKING:
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.updating.changes import Changes
    from aks_flex_node.agent.updating.configurations import Configuration
    from aks_flex_node.agent.updating.workbench import Workbench

PASSING = frozenset(("disk-full", "read-only"))  # no configuration is to blame for these
REASONS = {"drain-timed-out": "DrainTimedOut"}  # names of conditions, where they have one of their own
CONTAINERD = "containerd.service"


@dataclass
class Update:
    bench: Workbench

    def run(self) -> Outcome:
        """Bring the machine to what waits for it, or leave it as it is, and say which and why."""
        host = self.bench.host
        try:
            keeping.finish(host)
            current = configurations.read(host, CURRENT, self.bench.env)
            if current is None:
                return _outcome(Result.FAILED, "CurrentConfigMissing", f"There is no {CURRENT} to go back to.")
            journal = journals.read(host)
            if journal and journal.stage is Stage.ROLLING_BACK:
                return self._roll_back(current, journal)
            if journal and journal.identity == current.identity:
                return self._conclude(current, journal)  # all is in effect; just pods may not come yet
            return self._go(current, journal)
        except FlexError as error:
            return _outcome(Result.FAILED, error.name, error.message, error.hint, again=True)

    def _go(self, current: Configuration, journal: Journal | None) -> Outcome:
        """Towards what waits, if something does."""
        try:
            wanted = configurations.read(self.bench.host, NEXT, self.bench.env)
        except ConfigError as error:
            refused = Verdict(Result.REFUSED, error.name, error.message, error.hint)
            return self._not_now(current, journal, refused, configurations.version_of(self.bench.host, NEXT))
        if wanted is None:
            nothing = Verdict(Result.DONE, "", "No other configuration waits.")
            return self._not_now(current, journal, nothing, current.version)
        if journal and journal.stage is Stage.APPLYING and journal.identity == wanted.identity:
            return self._resume(current, wanted, journal)
        return self._begin(current, wanted, journal)

    def _begin(self, current: Configuration, wanted: Configuration, journal: Journal | None) -> Outcome:
        """From the first look to the change."""
        difference = changes.between(current.config, wanted.config)
        with contextlib.ExitStack() as stack:
            try:
                if verdict := self._verdict(current, wanted, difference):
                    return self._wait(current, wanted, journal, verdict)
                engine = stack.enter_context(self.bench.opened(wanted.config))
                self.bench.stage(engine)
                journal = self._prepare(current, wanted, difference, journal)
                services = tuple(sorted({*journal.services, *self.bench.restarts(engine)}))
            except FlexError as error:
                return self._not_now(current, journals.read(self.bench.host), _untouched(error), wanted.version)
            journal = journal.at(Stage.APPLYING, identity=wanted.identity, version=wanted.version, services=services)
            journals.write(self.bench.host, journal)
            return self._carry_out(engine, current, wanted, journal)

    def _verdict(self, current: Configuration, wanted: Configuration, difference: Changes) -> Verdict | None:
        """Why not now, if there is a reason; the ones that stay before those that pass."""
        bench, config = self.bench, wanted.config
        name = bench.name(current.config)
        wanted_name = bench.engine_for(config).machine.node_name(config)
        found = (
            guards.for_another(current.config, config, name, wanted_name)
            or guards.relocated(current.config, config)
            or guards.incomplete(config)
            or guards.failed_before(wanted, journals.failure(bench.host))
            or guards.paused(config)
            or guards.downgrade(difference, config)
        )
        if not found and "kubernetes" in difference.components:
            found = guards.skew(config, bench.server_version(current.config))
        return found or guards.closed_window(difference, config, bench.now())

    def _prepare(
        self, current: Configuration, wanted: Configuration, difference: Changes, earlier: Journal | None
    ) -> Journal:
        """Look at the node as it is, and move its pods away where that is due."""
        touched = earlier if earlier and earlier.stage is Stage.APPLYING else None  # by a change that was overtaken
        journal = touched or Journal(wanted.identity, wanted.version)
        if not touched:
            journals.write(self.bench.host, journal)  # whoever finds a Node cordoned finds this, and uncordons it
        if difference.drains:
            self.bench.drain(current.config, float(wanted.config.update_policy.drain_timeout_seconds))
        return touched or journal.at(Stage.PREPARING, before=self._before(current, difference))

    def _before(self, current: Configuration, difference: Changes) -> Before:
        try:
            return self.bench.before(current.config, drained=difference.drains)
        except ClusterError:
            if difference.moves and not difference.disturbs:
                return Before()  # where the API server is now, only the new configuration knows
            raise

    def _resume(self, current: Configuration, wanted: Configuration, journal: Journal) -> Outcome:
        """A crash came after the change had begun."""
        with self.bench.opened(wanted.config) as engine:
            return self._carry_out(engine, current, wanted, journal)

    def _carry_out(self, engine: Engine, current: Configuration, wanted: Configuration, journal: Journal) -> Outcome:
        """Change the machine, prove that it works, and make it last."""
        difference = changes.between(current.config, wanted.config)
        try:
            self.bench.apply(engine)
            if journal.services:
                self.bench.prove(engine, _expected(wanted, difference, journal))
        except FlexError as error:
            if isinstance(error, AwayError) and not difference.moves:
                return _unproven(wanted, error)
            return self._roll_back(current, journal.at(Stage.ROLLING_BACK, cause=_cause(error)))
        try:
            self._make_last(engine, wanted)
        except FlexError as error:
            return _unproven(wanted, error)
        return self._conclude(wanted, journal)

    def _make_last(self, engine: Engine, wanted: Configuration) -> None:
        self.bench.label(wanted.config)
        engine.settle()
        name, machine = self.bench.name(wanted.config), engine.machine
        self.bench.remember(wanted.config, node=name, pod_cidr=machine.pod_cidr, address=machine.address)
        keeping.settle_update(self.bench.host, wanted.bundle, wanted.config, wanted.content)
        engine.events.say("updated", f"Configuration {wanted.version} is in effect", changes=len(engine.changed))

    def _conclude(self, current: Configuration, journal: Journal) -> Outcome:
        """Let pods come again, and forget the way that led here."""
        try:
            self.bench.uncordon(current.config)
        except ClusterError as error:
            message = f"Configuration {journal.version} is in effect, but the node is still cordoned: {error.message}"
            return _outcome(Result.FAILED, error.name, message, error.hint, journal.version, again=True)
        journals.forget_failure(self.bench.host)
        journals.remove(self.bench.host)
        return _outcome(
            Result.DONE, message=f"Configuration {journal.version} is in effect.", version=journal.version
        )

    def _wait(
        self, current: Configuration, wanted: Configuration, journal: Journal | None, verdict: Verdict
    ) -> Outcome:
        """Labels disturb nobody, and do not wait for a window."""
        if verdict.reason == "MaintenanceWindowClosed" and journal is None:
            with contextlib.suppress(ClusterError):  # it is tried again when the window is looked at again
                self.bench.label(wanted.config)
        return self._not_now(current, journal, verdict, wanted.version)

    def _not_now(self, current: Configuration, journal: Journal | None, verdict: Verdict, version: str) -> Outcome:
        """Leave the machine as it is; where an earlier run has left it half-way, go back."""
        if journal and journal.stage is Stage.APPLYING:
            cause = Cause(verdict.reason or "withdrawn", verdict.message, verdict.hint, passing=True)
            return self._roll_back(current, journal.at(Stage.ROLLING_BACK, cause=cause))
        try:
            if journal:
                self.bench.uncordon(current.config)
                journals.remove(self.bench.host)
        except ClusterError as error:  # which is not to wait as long as the verdict may
            message = f"{verdict.message} Also, the node is still cordoned: {error.message}"
            return _outcome(Result.FAILED, error.name, message, error.hint, version, again=True)
        return _outcome(verdict.result, verdict.reason, verdict.message, verdict.hint, version, again=verdict.again)

    def _roll_back(self, current: Configuration, journal: Journal) -> Outcome:
        """Bring back what worked, prove that it does, and remember what did not."""
        cause = journal.cause or Cause("unknown", "Nobody knows why.")
        journals.write(self.bench.host, journal)
        self.bench.watcher.note(f"going back to what was before: {cause.message}")
        try:
            with self.bench.opened(current.config) as engine:
                self.bench.apply(engine)
                if journal.services:
                    self.bench.prove(engine, _expected_again(journal))
                engine.settle()
                engine.events.say("rolled-back", cause.message, "error", error=cause.name, version=journal.version)
            if not cause.passing:
                journals.write_failure(self.bench.host, _failure(journal, cause))
            self.bench.label(current.config)
            self.bench.uncordon(current.config)
        except FlexError as error:
            return _stuck(journal, cause, error)
        journals.remove(self.bench.host)
        result = Result.FAILED if cause.passing else Result.ROLLED_BACK
        return _outcome(result, cause.name, cause.message, _hint(cause), journal.version, again=cause.passing)


def _hint(cause: Cause) -> str:
    """What to do about a change that was undone; there is no command that a person would give again."""
    look = cause.hint.removesuffix("; then run the same command again.")
    return f"{look.rstrip('.')}. The node is as it was; a configuration that differs is tried anew.".lstrip(". ")


def _expected(wanted: Configuration, difference: Changes, journal: Journal) -> Expected:
    """What the proof of a change looks for: the new versions, where there are any."""
    changed, config = difference.components, wanted.config
    return Expected(
        journal.services,
        f"v{config.kubernetes.version}" if "kubernetes" in changed else "",
        f"containerd://{config.containerd.version}" if "containerd" in changed else "",
        journal.before.pods,
        trial=CONTAINERD in journal.services,
    )


def _expected_again(journal: Journal) -> Expected:
    """What the proof of the way back looks for: all as it was."""
    before = journal.before
    return Expected(
        journal.services, before.kubelet, before.runtime, before.pods, trial=CONTAINERD in journal.services
    )


def _untouched(error: FlexError) -> Verdict:
    """Something was not there or did not come in time, before anything was touched."""
    reason = REASONS.get(error.name, error.name)
    return Verdict(Result.FAILED, reason, error.message, error.hint, again=True)


def _cause(error: FlexError) -> Cause:
    return Cause.of(error, passing=isinstance(error, ArtifactError) or error.name in PASSING)


def _failure(journal: Journal, cause: Cause) -> Failure:
    return Failure(journal.version, journal.identity.rpartition(" ")[2], cause.name, cause.message)


def _unproven(wanted: Configuration, error: FlexError) -> Outcome:
    """The machine keeps what it has, and the next run goes on with the proof."""
    message = f"The change is made, and not proven yet: {error.message}"
    return _outcome(Result.FAILED, error.name, message, error.hint, wanted.version, again=True)


def _stuck(journal: Journal, cause: Cause, error: FlexError) -> Outcome:
    """The way back did not lead to a node that works, or nobody can tell; it is gone again at the next run."""
    reason = error.name if error.name.startswith("api-server-") else "RollbackFailed"
    message = f"{cause.message} Going back to what was before is not proven either: {error.message}"
    return _outcome(Result.FAILED, reason, message, error.hint, journal.version, again=True)


def _outcome(
    result: Result, reason: str = "", message: str = "", hint: str = "", version: str = "", *, again: bool = False
) -> Outcome:
    return Outcome("update", result.value, reason, message, hint, version, again)
