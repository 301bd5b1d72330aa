"""The damage matrix on a managed node of the lab: the paths of its ledger, damaged with shell commands.

Independent cells are injected together. The node must be Ready again without help, or a command must name the problem
and following its remedy must help.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent import paths
from aks_flex_node.agent.reconcile.lock import LOCK_FILE
from aks_flex_node.host.actions import aside_path
from tests.agents import differences, flex
from tests.damage.matrix import SEED, WANTS, Cell, Owner
from tests.damage.verdict import REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aks_flex_lab.processes import CommandResult
    from aks_flex_lab.snapshots import Snapshot
    from tests.managed_node import ManagedLabNode

MOMENTS = ("running", "restarted", "rebooted", "bootstrap", "unbootstrap")
RECOVERY_SECONDS = 240.0
RESTARTS = 3  # of the daemon: more is a crash loop
TOGETHER = 3  # cells
PKI = "/var/lib/kubelet/pki"
WRITTEN_BY_KUBELET = (
    "/var/lib/kubelet/kubeconfig",
    *(f"{PKI}/{name}" for name in ("kubelet-client-current.pem", "kubelet-server-current.pem")),
    *(f"{PKI}/{name}" for name in ("kubelet.crt", "kubelet.key")),
)
# Called with the path, and the name of the node.
DAMAGES = {
    "missing": 'rm -r "$1"',
    "empty": 'rm -r "$1"; : >"$1"',
    "truncated": 'truncate -s "$(($(stat -Lc %s "$1") / 2))" "$1"',
    "random": 'rm -r "$1"; head -c 97 /dev/urandom >"$1"',
    "other-node": 'sed -i "s/$2/another-1/g" "$1"',
    "other-certificate": (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -keyout /run/key"
        ' -subj /O=system:nodes/CN=system:node:another-1 2>/dev/null >"$1"; cat /run/key >>"$1"; rm /run/key'
    ),
    "directory": 'rm -r "$1"; mkdir "$1"',
    "dangling-link": 'rm -r "$1"; ln -s /nowhere/at-all "$1"',
    "unreadable": 'chmod 0 "$1"',
    "immutable": 'test -d "$1" || : >"$1"; chattr +i "$1"',
    "owner": 'chown 1234:1234 "$1"; chmod 777 "$1"',
}
OF_DIRECTORIES = ("missing", "empty", "dangling-link", "unreadable", "immutable", "owner")
OF_LINKS = ("missing", "empty", "random", "directory", "dangling-link")
OF_FILES = tuple(name for name in DAMAGES if not name.startswith("other-"))
KINDS = """
import json, os, sys
found = {}
for path in json.load(sys.stdin):
    if os.path.islink(path):
        found[path] = "link"
    elif os.path.isdir(path):
        found[path] = "directory"
    elif os.path.isfile(path):
        found[path] = "named" if sys.argv[1].encode() in open(path, "rb").read(1 << 20) else "file"
print(json.dumps(found))
"""


# --- Cells ---


def cells_of(node: ManagedLabNode) -> list[Cell]:
    """Returns all cells of the node's paths as they are now."""
    owners = _owned_paths(node)
    asked = node.machine.run("python3", "-c", KINDS, node.name, input=json.dumps(list(owners)))
    kinds: dict[str, str] = json.loads(asked.out)
    return [
        Cell(path, damage, owners[path]) for path, kind in sorted(kinds.items()) for damage in _damages(path, kind)
    ]


def _owned_paths(node: ManagedLabNode) -> dict[str, Owner]:
    ledger = json.loads(node.machine.run("cat", f"{paths.STATE_DIR}/ledger.json").out)
    programs = node.machine.run("find", "/opt/aks-flex-node", "-type", "f").out.split()
    constants = [value for name, value in vars(paths).items() if name.isupper() and isinstance(value, str)]
    found = dict.fromkeys(programs, Owner.COMPONENT)
    for owned in ledger["components"].values():
        records = owned.get("paths", {}).items()
        found |= {path: Owner.RUNTIME if record.get("ours") else Owner.COMPONENT for path, record in records}
        found |= {f"{WANTS}/{name}": Owner.COMPONENT for name in owned.get("services", ())}
    found |= dict.fromkeys((*constants, f"{paths.STATE_DIR}/state.json", LOCK_FILE), Owner.AGENT)
    found |= dict.fromkeys((f"{paths.STATE_DIR}/ledger.json", "/opt/aks-flex-node/ledger.json"), Owner.AGENT)
    return found | dict.fromkeys(WRITTEN_BY_KUBELET, Owner.OTHER)


def _damages(path: str, kind: str) -> Iterable[str]:
    if path.startswith(WANTS):
        return ("missing",)
    if path.endswith("client-current.pem"):
        return (*OF_LINKS, "truncated", "other-certificate", "unreadable", "owner")
    of_kind = {"directory": OF_DIRECTORIES, "link": OF_LINKS, "named": (*OF_FILES, "other-node")}.get(kind, OF_FILES)
    return [each for each in of_kind if each != "immutable" or not path.startswith("/run/")]


@dataclass(frozen=True)
class Batch:
    """Cells that are injected together, and when."""

    moment: str
    cells: tuple[Cell, ...]

    def __str__(self) -> str:
        return f"{self.moment}: {', '.join(map(str, self.cells))}"


def batches(cells: list[Cell], seed: object = SEED) -> Iterator[Batch]:
    """Yields all cells at all moments, each once, in a seeded order; in turn a batch of each moment."""
    chance = random.Random(f"{seed}")  # noqa: S311 - seeded
    left = {moment: _diverse(chance.sample(cells, len(cells))) for moment in MOMENTS}
    while any(left.values()):
        for moment in MOMENTS:
            if chosen := _independent(left[moment]):
                left[moment] = [cell for cell in left[moment] if cell not in chosen]
                yield Batch(moment, chosen)


def _diverse(cells: list[Cell]) -> list[Cell]:
    """Returns the cells with those first of which no other program file in the same directory came earlier."""
    folders: set[str] = set()
    first: list[Cell] = []
    for cell in cells:
        is_program = cell.path.startswith("/opt/") and cell.owner is Owner.COMPONENT
        folder = "/".join(cell.path.split("/")[:4]) if is_program else cell.path
        if (folder if is_program else str(cell)) not in folders:
            first.append(cell)
        folders |= {folder, str(cell)}
    later = set(first)
    return [*first, *(cell for cell in cells if cell not in later)]


def _independent(cells: list[Cell]) -> tuple[Cell, ...]:
    """Returns the next cells of which none contains another, with at most one of the agent's own state."""
    chosen: list[Cell] = []
    for cell in cells:
        if len(chosen) < TOGETHER and all(_are_independent(cell, other) for other in chosen):
            chosen.append(cell)
    return tuple(chosen)


def _are_independent(one: Cell, other: Cell) -> bool:
    is_inside = f"{one.path}/".startswith(f"{other.path}/") or f"{other.path}/".startswith(f"{one.path}/")
    both_state = all(is_state(cell) for cell in (one, other))
    both_kubelet = all(cell.path.startswith("/var/lib/kubelet") for cell in (one, other))
    return not (is_inside or both_state or both_kubelet)


def is_state(cell: Cell) -> bool:
    """Returns whether a cell damages what the agent knows of the node; two of them can destroy all copies."""
    return cell.owner is Owner.AGENT or cell.path in {paths.STATE_DIR, "/opt/aks-flex-node"}


def may_be_refused(cell: Cell) -> bool:
    """Returns whether only a person can decide what is right."""
    if cell.damage == "immutable" or cell.owner is Owner.RUNTIME or cell.path == paths.NEXT_CONFIG:
        return True
    damage = {"owner": "mode", "unreadable": "mode", "directory": "full-directory"}.get(cell.damage, cell.damage)
    return damage in REFUSED.get(cell.path, ()) or cell.damage == "dangling-link"


# --- Judgement ---


class RealJudge:
    """Damages a managed node, and says what is wrong with the result. The node is whole before and after."""

    def __init__(self, node: ManagedLabNode, before: Snapshot) -> None:
        self.node, self.before = node, before

    def find_problems(self, batch: Batch) -> list[str]:
        start = self._now()
        try:
            problems = self._unbootstrapped(batch) if batch.moment == "unbootstrap" else self._recovered(batch)
        finally:
            self._permit_changes(batch)
        problems += self._journal_problems(start)
        if problems:
            self._join_again()
        return [f"{batch}: {problem}" for problem in problems]

    def _recovered(self, batch: Batch) -> list[str]:
        self._inject(batch)
        if problem := self._wait(allow_named=any(map(may_be_refused, batch.cells)), batch=batch):
            return [problem]
        if self.is_whole():
            return []
        # Somebody follows the remedy: permits changes and runs `bootstrap`, or removes what is in the place of a
        # directory and runs `agent` with a new URL.
        self._permit_changes(batch)
        self._clear_directories(batch)
        if all(cell.damage == "immutable" for cell in batch.cells if may_be_refused(cell)):
            self._flex("bootstrap")
        elif said := self._agent_with_new_url():
            return [said]
        problem = self._wait(allow_named=False, batch=batch)
        return [problem] if problem else []

    def _inject(self, batch: Batch) -> None:
        match batch.moment:
            case "running":
                self._damage(batch)
            case "restarted":
                self._run("systemctl stop aks-flex-node")
                self._damage(batch)
                self._run("systemctl restart kubelet --no-block; systemctl start aks-flex-node --no-block")
            case "rebooted":
                self._damage(batch)
                self._run("sync")
                self.node.machine.power_cycle()
            case _:
                self._run("systemctl stop aks-flex-node")
                self._damage(batch)
                self._flex("bootstrap")
                self._run("systemctl start aks-flex-node --no-block")

    def _damage(self, batch: Batch) -> None:
        for cell in batch.cells:
            words = ("sh", "-c", DAMAGES[cell.damage], "sh", cell.path, self.node.name)
            self.node.machine.run(*words, check=False)

    def _wait(self, batch: Batch, *, allow_named: bool) -> str:
        """Waits until the node is whole, or a command names the problem; returns what is wrong instead."""
        end = time.monotonic() + RECOVERY_SECONDS
        while not self.is_whole():
            said = self._said()
            if allow_named and self._is_named(batch, said):
                return ""
            if time.monotonic() > end:
                return f"not whole after {RECOVERY_SECONDS:.0f} s\n{said}"
            time.sleep(1)
        return ""

    def is_whole(self) -> bool:
        if not self.node.lab.cluster.node_ready(self.node.name):
            return False
        return all(flex(self.node.machine, each, check=False).ok for each in ("verify", "health"))

    def _said(self) -> str:
        all_said = (flex(self.node.machine, each, check=False) for each in ("verify", "health", "status"))
        return "\n".join(f"{one.code} {one.out}{one.err}" for one in all_said)

    def _is_named(self, batch: Batch, said: str) -> bool:
        """Returns whether a problem is named by its path; a repair may have moved the directory with it."""
        names = [cell.path.rpartition("/")[2] if cell.damage == "immutable" else cell.path for cell in batch.cells]
        return any(may_be_refused(cell) and name in said for cell, name in zip(batch.cells, names, strict=True))

    def _journal_problems(self, start: float) -> list[str]:
        units = "-u aks-flex-node -u aks-flex-node-job"
        journal = self._run(f"journalctl {units} --since @{start:.0f} -o cat --no-pager")
        found = ["a traceback in the journal:\n" + journal[-4000:]] if "Traceback" in journal else []
        restarts = self._run("systemctl show -P NRestarts aks-flex-node").strip()
        return [*found, f"{restarts} restarts of the daemon"] if int(restarts or 0) > RESTARTS else found

    def _unbootstrapped(self, batch: Batch) -> list[str]:
        """Removes the damaged node; what is left is named, and gone when changes are permitted. Joins it again."""
        self._run("systemctl stop aks-flex-node")
        self._damage(batch)
        done = flex(self.node.machine, "unbootstrap", "--yes", "--drain-timeout", "5", check=False)
        problems = ["a traceback"] if "Traceback" in done.err else []
        self._permit_changes(batch)
        if not done.ok:
            said = done.out + done.err
            if not any(may_be_refused(cell) for cell in batch.cells):
                problems.append(said)
            elif not self._is_named(batch, said):
                problems.append(f"the problem is not named: {said}")
            again = flex(self.node.machine, "unbootstrap", "--yes", "--drain-timeout", "5", check=False)
            problems += [] if again.ok else [again.out + again.err]
        left = [one for one in differences(self.before, self.node.machine) if not _is_about(one, batch)]
        problems += [f"left: {left}"] if left else []
        for cell in batch.cells:
            self._run(f"rm -rf '{cell.path}' '{aside_path(cell.path)}'")
        self._join()
        return problems

    def _permit_changes(self, batch: Batch) -> None:
        for cell in batch.cells:
            if cell.damage == "immutable":
                places = f"/opt '{cell.path}' '{aside_path(cell.path)}'"  # a directory in /opt may have been renamed
                self._run(f"chattr -f -i '{cell.path}'; chattr -R -f -i {places}; true")

    def _clear_directories(self, batch: Batch) -> None:
        """Removes links and files that the batch has put in the place of directories of services."""
        for cell in batch.cells:
            if cell.owner is Owner.RUNTIME or cell.damage == "dangling-link":
                self._run(f"if [ -L '{cell.path}' ] || [ -f '{cell.path}' ]; then rm -f '{cell.path}'; fi")

    def _agent_with_new_url(self) -> str:
        url = self.node.provider.put(self.node.name, self.node.body())
        done = self._flex("agent", "--config-url", url)
        return "" if done.ok else f"`agent` with a new URL failed: {done.out}{done.err}"

    def _flex(self, *words: str) -> CommandResult:
        """Runs a command again while a job of the daemon changes the machine, as its message says."""
        end = time.monotonic() + RECOVERY_SECONDS
        while True:
            done = flex(self.node.machine, *words, check=False)
            if done.ok or "agent-locked" not in done.err or time.monotonic() > end:
                return done
            time.sleep(1)

    def _join_again(self) -> None:
        """Makes the node whole after a failed cell, for the next ones."""
        self._flex("unbootstrap", "--yes", "--drain-timeout", "5")
        self._join()

    def _join(self) -> None:
        self._run("systemctl reset-failed || true")
        if said := self._agent_with_new_url():
            raise AssertionError(said)

    def _run(self, script: str) -> str:
        return self.node.machine.run("sh", "-c", script).out

    def _now(self) -> float:
        return time.time()


def _is_about(difference: str, batch: Batch) -> bool:
    return any(one in difference for cell in batch.cells for one in (cell.path, aside_path(cell.path)))
