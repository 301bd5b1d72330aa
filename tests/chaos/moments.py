"""Kills the agent, or cuts the power, at random moments of what it does on a managed node: the node ends in its
desired state without anybody's help.

An interruption is one operation with one or several moments, each with its own disruption.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.agents import differences, exists, flex, web_pod
from tests.chaos import invariants
from tests.chaos.attempts import Tried
from tests.chaos.expected_state import NEWER, OLDER, OURS, Wanted
from tests.chaos.operations import DRIFTS
from tests.managed_node import ManagedLabNode
from tests.releases import broken_kubelet, published
from tests.wait import until, until_named

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.snapshots import Snapshot

AGENT, BROKEN = "0.2.20", "1.35.96"  # another version of the agent; a kubelet that fails
DAEMON_UNIT, JOB_UNIT, COMMAND_UNIT = "aks-flex-node.service", "aks-flex-node-job.service", "moment-join.service"
PKI = "/var/lib/kubelet/pki"
SETTLE_SECONDS = 480.0  # a limit for a busy machine
LOOK_SECONDS = 5.0  # between two looks whether an operation is over while no job runs
MAX_RESTARTS = (
    8  # of the daemon since it was last started: more is a crash loop. A kubelet without its program restarts often
)
KILL_SCRIPT = 'pid=$(systemctl show -P MainPID "$1"); [ "${pid:-0}" != 0 ] && kill -9 "$pid" && echo killed; true'
TRACEBACKS = f"journalctl -q -o cat -u {DAEMON_UNIT} -u {JOB_UNIT} -u {COMMAND_UNIT} | grep -A20 Traceback"
# What only a crash loop, an unhandled exception or an unfinished write leaves behind.
LEFT_SCRIPT = f"""
count=$(systemctl show -P NRestarts {DAEMON_UNIT})
[ "$count" -le {MAX_RESTARTS} ] || echo "the daemon restarted $count times"
{TRACEBACKS}
find /etc /opt /usr/local /var/lib/aks-flex-node /var/lib/kubelet -xdev \
    '(' -name '*.damaged' -o -name '.*.flex-new' -o -name '.*.flex-old' -o -name 'agent-trial*' ')'
true
"""


@dataclass
class Subject:
    """A managed node, and its machine before the join."""

    it: Tried
    before: Snapshot
    url: str = ""  # of the last join

    @classmethod
    def joined(cls, lab: Lab, machine: EdgeMachine) -> Subject:
        wanted = Wanted()
        managed = ManagedLabNode.make(lab, machine, **wanted.properties)
        before = machine.snapshot()
        made = cls(Tried(managed, replace(wanted, secret=managed.principal.secret)), before)
        made.join()
        return made

    @property
    def name(self) -> str:
        return self.it.name

    @property
    def machine(self) -> EdgeMachine:
        return self.it.machine

    def join(self) -> None:
        managed = self.it.managed
        self.url = managed.provider.put(self.name, managed.body(self.it.wanted.secret))
        flex(self.machine, "agent", "--config-url", self.url, timeout=600)

    def agent_version(self) -> str:
        return str(self.it.managed.provider.get(self.name).get("status", {}).get("agentVersion", ""))

    def run_pod(self) -> None:
        """Runs a pod that a drain must evict."""
        cluster, name = self.it.managed.lab.cluster, f"web-{self.name}"
        cluster.run("delete", "pod", name, "--ignore-not-found", "--force", "--grace-period=0")
        cluster.apply(web_pod(name, self.name))
        until(lambda: cluster.get("pod", name)["status"].get("phase") == "Running", "the pod runs")

    def job_runs(self) -> bool:
        return self.machine.run("systemctl", "is-active", "--quiet", JOB_UNIT, check=False).ok


@contextmanager
def joined_subject(lab: Lab, machine: EdgeMachine) -> Iterator[Subject]:
    """Joins a machine as a managed node; deletes its resource afterwards."""
    made = Subject.joined(lab, machine)
    try:
        with published(lab, machine, AGENT, works=True), broken_kubelet(lab, BROKEN):
            yield made
    finally:
        made.it.lane.shutdown(cancel_futures=True)
        made.it.managed.delete()


def start_update(on: Subject, chance: random.Random) -> None:
    """Changes labels and versions, which requires a drain."""
    on.run_pod()
    up, known = on.it.wanted.versions["kubernetes"] == OLDER["kubernetes"], dict(on.it.wanted.versions)
    labels = {f"{OURS}moment": f"m{chance.randrange(10**6)}"}
    on.it.want(downgrade=not up, labels=labels, versions={**known, **(NEWER if up else OLDER)})


def start_rollback(on: Subject, _chance: random.Random) -> None:
    """Sets a version that does not work."""
    versions = {**on.it.wanted.versions, "kubernetes": BROKEN}
    properties = {**on.it.wanted.properties, "versions": versions}
    on.it.managed.update(on.it.wanted.secret, "&allowDowngrade=true", **properties)


# Another damage would follow this link to a program of the machine, which nobody repairs.
CHANGES = sorted(set(DRIFTS) - {"somebody has runc lead elsewhere"})


def start_repair(on: Subject, chance: random.Random) -> None:
    """Changes several files and stops services."""
    for sentence in chance.sample(CHANGES, 3):
        print(f"    {sentence}", flush=True)
        on.it.shell(DRIFTS[sentence], check=False)


LOSSES = {
    "the certificates are removed": f"rm -rf {PKI}/*; systemctl kill -s KILL kubelet",
    "the client certificate is cut short": f"truncate -s 700 $(readlink -f {PKI}/kubelet-client-current.pem); "
    "systemctl kill -s KILL kubelet",
    "the client certificate is empty": f"truncate -s 0 $(readlink -f {PKI}/kubelet-client-current.pem); "
    "systemctl kill -s KILL kubelet",
    "the kubeconfig is empty": "truncate -s 0 /var/lib/kubelet/kubeconfig; systemctl kill -s KILL kubelet",
    "the Node is deleted": "",
}


def start_recovery(on: Subject, chance: random.Random) -> None:
    """Takes the node's credentials or its Node."""
    sentence = chance.choice(sorted(LOSSES))
    print(f"    {sentence}", flush=True)
    if script := LOSSES[sentence]:
        on.it.shell(script)
    else:
        on.it.managed.lab.cluster.run("delete", "node", on.name, "--wait=false")


def start_self_update(on: Subject, _chance: random.Random) -> None:
    """Switches between another version of the agent and the installed one."""
    known = dict(on.it.wanted.versions)
    if not known.pop("agent", ""):
        known["agent"] = AGENT
    on.it.want(versions=known)


def start_leave(on: Subject, _chance: random.Random) -> None:
    on.run_pod()
    on.it.managed.delete()


def unsettled(on: Subject) -> list[str]:
    """Returns what is not as desired on a node; the cheapest sources first."""
    return invariants.wrong(on.it) or _other_agent(on) or _unhealthy(on) or on.it.shell(LEFT_SCRIPT).splitlines()


def _other_agent(on: Subject) -> list[str]:
    wanted, found = "agent" in on.it.wanted.versions, on.agent_version()
    return [] if (found == AGENT) == wanted and found else [f"the agent is version {found!r}"]


def _unhealthy(on: Subject) -> list[str]:
    done = flex(on.machine, "health", check=False)
    return [] if done.ok else [f"health: {done.out}"]


def unsettled_recovery(on: Subject) -> list[str]:
    """Files that the kubelet cannot read are set aside, which is intended."""
    on.it.shell(f"rm -rf {PKI}/*.damaged")
    return unsettled(on)


def not_rolled_back(on: Subject) -> list[str]:
    failed, ready = (on.it.managed.condition(kind) for kind in ("UpgradeFailed", "Ready"))
    found = [] if failed.get("status") == ready.get("status") == "True" else [f"{failed}, {ready}"]
    return found or invariants.in_the_cluster(on.it) or _unhealthy(on)


def not_left(on: Subject) -> list[str]:
    if exists(on.machine, invariants.HOME):
        return [f"{invariants.HOME} exists"]
    if on.it.managed.node() is not None:
        return ["the Node exists"]
    return differences(on.before, on.machine)


def set_working_version(on: Subject, chance: random.Random) -> None:
    on.it.want(downgrade=True, labels={f"{OURS}moment": f"r{chance.randrange(10**6)}"})
    settle(on, unsettled, "the working version is set again")


def join_again(on: Subject, chance: random.Random) -> None:
    """Kills the command that joins the machine, or cuts the power; the same command then completes the join."""
    managed, moment = on.it.managed, chance.uniform(0, JOIN_SECONDS)
    how = chance.choice((kill_command, cut_power))
    on.url = managed.provider.put(on.name, managed.body(on.it.wanted.secret))
    command = ("aks-flex-node", "agent", "--config-url", on.url)
    on.machine.run("systemd-run", f"--unit={COMMAND_UNIT}", "--collect", "--quiet", "--no-block", *command)
    time.sleep(moment)
    print(f"    {how.__name__} {moment:.1f} s into the join: {how(on)}", flush=True)
    until(lambda: _joins(on), "the daemon's job has ended, as the message advises")
    settle(on, unsettled, "the machine is a node again")


def _joins(on: Subject) -> bool:
    """Returns whether the join is complete. The killed command may have started the daemon, whose job then runs."""
    done = flex(on.machine, "agent", "--config-url", on.url, check=False, timeout=600)
    assert done.ok or "agent-locked" in done.err, done.out + done.err
    return done.ok


@dataclass(frozen=True)
class Operation:
    name: str
    start: Callable[[Subject, random.Random], None]
    seconds: float  # about how long it takes until its job ends
    job_seconds: float  # about how long its job takes
    unsettled: Callable[[Subject], list[str]] = unsettled  # what is not yet as it must be afterwards
    restore: Callable[[Subject, random.Random], None] | None = None  # makes it a node with its desired state again


JOIN_SECONDS = 12.0
OPERATIONS = (
    Operation("update", start_update, 9.0, 8.0),
    Operation("repair", start_repair, 4.0, 2.0),
    Operation("recover", start_recovery, 12.0, 2.0, unsettled_recovery),
    Operation("self-update", start_self_update, 8.0, 7.0),
    Operation("leave", start_leave, 12.0, 7.0, not_left, join_again),
)
ROLLBACK = Operation("rollback", start_rollback, 10.0, 8.0, not_rolled_back, set_working_version)


def kill_daemon(on: Subject) -> str:
    return _kill(on, DAEMON_UNIT)


def kill_job(on: Subject) -> str:
    return _kill(on, JOB_UNIT)


def kill_command(on: Subject) -> str:
    return _kill(on, COMMAND_UNIT)


def _kill(on: Subject, unit: str) -> str:
    return on.machine.run("sh", "-c", KILL_SCRIPT, "sh", unit).out.strip() or "had ended"


def cut_power(on: Subject) -> str:
    """The journal, which is in memory, is read before."""
    assert (found := on.it.shell(TRACEBACKS, check=False)) == "", found
    on.machine.power_cycle()
    until_named(on.machine, "api.flex.internal")
    return "booted"


DISRUPTIONS = (kill_daemon, kill_job, cut_power)


@dataclass(frozen=True)
class Moment:
    disrupt: Callable[[Subject], str]
    share: float  # of the operation's time since the moment before, or of its job's time


@dataclass(frozen=True)
class Interruption:
    operation: Operation
    moments: tuple[Moment, ...]


def every_cell(chance: random.Random) -> Iterator[Interruption]:
    """Yields every operation with every disruption, in random order and at random moments."""
    for operation in chance.sample(OPERATIONS, len(OPERATIONS)):
        yield Interruption(operation, _moments(chance, len(DISRUPTIONS)))


def random_cells(chance: random.Random, count: int) -> Iterator[Interruption]:
    """Yields random operations with one to three moments each, until there are so many moments."""
    while count > 0:
        moments = _moments(chance, min(count, chance.randint(1, len(DISRUPTIONS))))
        yield Interruption(chance.choice((*OPERATIONS, ROLLBACK)), moments)
        count -= len(moments)


def _moments(chance: random.Random, count: int) -> tuple[Moment, ...]:
    """A version of the agent on trial may start three times, so no disruption occurs twice."""
    return tuple(Moment(how, chance.random()) for how in chance.sample(DISRUPTIONS, count))


def interrupt(on: Subject, chance: random.Random, cells: Sequence[Interruption]) -> None:
    for number, each in enumerate(cells, 1):
        print(f"{number} of {len(cells)}: {each.operation.name}", flush=True)
        begun = time.monotonic()
        each.operation.start(on, chance)
        for moment in each.moments:
            _disrupt(on, each.operation, moment, len(each.moments))
        settle(on, each.operation.unsettled, f"{each.operation.name} is complete")
        print(f"    as desired after {time.monotonic() - begun:.0f} s", flush=True)
        if each.operation.restore:
            each.operation.restore(on, chance)


def _disrupt(on: Subject, operation: Operation, moment: Moment, count: int) -> None:
    """Waits for a moment of which there are so many in this operation, and disrupts what runs then."""
    seconds = operation.seconds
    if moment.disrupt is kill_job:
        _wait_for_job(on, operation)
        seconds = operation.job_seconds
    seconds *= moment.share / count
    time.sleep(seconds)
    print(f"    {moment.disrupt.__name__} after {seconds:.1f} s: {moment.disrupt(on)}", flush=True)


def _wait_for_job(on: Subject, operation: Operation) -> None:
    """Waits until a job runs, or until the operation is over."""
    look = time.monotonic() + LOOK_SECONDS
    while not on.job_runs():
        if time.monotonic() >= look:
            if not operation.unsettled(on):
                return
            look = time.monotonic() + LOOK_SECONDS
        time.sleep(0.1)


def settle(on: Subject, unsettled: Callable[[Subject], list[str]], what: str) -> None:
    end = time.monotonic() + SETTLE_SECONDS
    while found := unsettled(on):
        if time.monotonic() > end:
            words = on.it.shell(invariants.LAST_WORDS, check=False)
            raise AssertionError("\n".join([f"{what}: not within {SETTLE_SECONDS:.0f} s:", *found, words]))
        time.sleep(1)
