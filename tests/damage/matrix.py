"""The cells of the damage matrix: every path of the product x every damage, from the product's own lists."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, paths
from aks_flex_node.agent.artifacts.model import MANIFEST_NAME
from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components.catalog import ALL
from aks_flex_node.agent.reconcile.lock import LOCK_FILE
from aks_flex_node.agent.reconcile.resources import (
    Directory,
    File,
    FileLine,
    PemFile,
    ProgramTree,
    Service,
    Symlink,
)
from tests.damage import harness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.agent.reconcile.resources import Resource

SEED = 20
WANTS = "/etc/systemd/system/multi-user.target.wants"  # written by systemd
ELSEWHERE: dict[str, object] = {  # settings of another node
    "node.name": "edge-2",
    "node.maxPods": 31,
    "node.labels": {"site": "c"},
    "node.kubelet.serverURL": "https://other.example:443",
}


class Owner(Enum):
    """Who writes a path, and so who notices its damage."""

    COMPONENT = "component"  # drift detection names every damage
    OTHER = "other"  # another program writes it: drift detection names what it cannot read, if it exists
    AGENT = "agent"  # state of the agent, which it writes again or does without
    RUNTIME = "runtime"  # of another program, and only removed by the agent


@dataclass(frozen=True, order=True)
class Cell:
    path: str
    damage: str
    owner: Owner = field(compare=False)

    def __str__(self) -> str:
        return f"{self.path}-{self.damage}"


# --- Paths ---


def owned_paths(engine: Engine, fresh: Path) -> dict[str, Owner]:
    """Returns every path that the agent or a component owns or reads, except directories of the operating system."""
    found = dict.fromkeys(agent_paths(engine), Owner.AGENT)
    records = {path: one for owned in engine.ledger.components.values() for path, one in owned.paths.items()}
    found |= {path: Owner.RUNTIME if record.get("ours") else Owner.COMPONENT for path, record in records.items()}
    for component in (agent.COMPONENT, *ALL):
        for resource in component.desired(engine.config, engine.machine).resources:
            found |= dict(_paths_of(resource, engine))
    is_of_host = {path for path in found if (fresh / path[1:]).is_dir()}
    return {path: owner for path, owner in sorted(found.items()) if path not in is_of_host}


def agent_paths(engine: Engine) -> list[str]:
    """Returns the paths of the agent's own files: the constants, the ledger, its copies of originals, and locks."""
    constants = [value for name, value in vars(paths).items() if name.isupper() and isinstance(value, str)]
    originals = [f"{engine.originals}/{name}" for name in engine.host.list_dir(engine.originals)]
    state = paths.state_file(engine.config.paths.data_dir)
    own = [*constants, state, paths.CONFIG_JOURNAL, LOCK_FILE, engine.originals, *originals]
    return [*own, *context.ledger_paths(engine.config)]


def _paths_of(resource: Resource, engine: Engine) -> Iterator[tuple[str, Owner]]:
    match resource:
        case Directory(path) | File(path) | Symlink(path):
            yield path, Owner.COMPONENT
        case PemFile(path) | FileLine(path):
            yield path, Owner.OTHER
        case ProgramTree(path):
            files = json.loads(engine.host.read(f"{path}/{MANIFEST_NAME}") or b"")["files"]
            inside = {path, f"{path}/{MANIFEST_NAME}", *(f"{path}/{name}" for name in files)}
            yield from ((each, Owner.COMPONENT) for each in inside)
        case Service(name):
            yield f"{WANTS}/{name}", Owner.COMPONENT


# --- Damages ---


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _fill(place: Path, content: bytes) -> None:
    _remove(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def _link(place: Path, target: str) -> None:
    _remove(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def _folder(place: Path, *names: str) -> None:
    _remove(place)
    place.mkdir(parents=True)
    for name in names:
        (place / name).write_text("found here\n")


def _other_document(place: Path, other: Path) -> None:
    _remove(place)
    shutil.copytree(other, place, symlinks=True) if other.is_dir() else shutil.copy2(
        other, place, follow_symlinks=False
    )


def _noise(place: Path) -> bytes:
    return random.Random(f"{SEED} {place.name}").randbytes(97)  # noqa: S311 - seeded


def _half(place: Path) -> None:
    content = place.read_bytes()
    place.write_bytes(content[: len(content) // 2])


# name -> the damage of a place, which is on another node at the second place
DAMAGES: dict[str, Callable[[Path, Path], None]] = {
    "missing": lambda place, _: _remove(place),
    "empty": lambda place, _: _fill(place, b""),
    "truncated": lambda place, _: _half(place),
    "random": lambda place, _: _fill(place, _noise(place)),
    "wrong-json": lambda place, _: _fill(place, b'[{"config": 3}, null, 7]'),
    "other-types": lambda place, _: _fill(place, other_types(place.read_bytes())),
    "other-node": _other_document,
    "directory": lambda place, _: _folder(place),
    "full-directory": lambda place, _: _folder(place, "found"),
    "dangling-link": lambda place, _: _link(place, "/nowhere/at-all"),
    "link-loop": lambda place, _: _link(place, f"./{place.name}"),
    "mode": lambda place, _: place.chmod(0o777),
    "owner": lambda place, _: os.chown(place, 1234, 1234),
}
OF_FOLDERS = frozenset(("missing", "empty", "dangling-link", "link-loop", "mode", "owner"))
OF_LINKS = frozenset(DAMAGES) - {"truncated", "mode", "owner", "other-types"}
OF_NOTHING = frozenset(("empty", "random", "wrong-json", "directory", "full-directory", "dangling-link", "link-loop"))


def other_types(content: bytes) -> bytes:
    """Returns a JSON document with the same keys, and values of other types."""
    return json.dumps({key: _other_value(value) for key, value in json.loads(content).items()}).encode()


def _other_value(value: object) -> object:
    return [value] if isinstance(value, str) else "text" if isinstance(value, dict | list) else {"a": 1}


def damages_of(place: Path, other: Path) -> Iterable[str]:
    """Returns the damages that make a difference at this place."""
    if str(place.parent).endswith(WANTS):
        return ["missing"]
    if not os.path.lexists(place):
        return sorted(OF_NOTHING)
    if place.is_symlink():
        found = set(OF_LINKS)
    elif place.is_dir():
        found = set(OF_FOLDERS)
    else:
        found = set(DAMAGES)
        if not _is_document(place):
            found.discard("other-types")
    if place.is_dir() or not _differs(place, other):
        found.discard("other-node")
    return sorted(found - ({"owner"} if os.geteuid() else set()))


def _is_document(place: Path) -> bool:
    try:
        return isinstance(json.loads(place.read_bytes()), dict)
    except ValueError:
        return False


def _differs(place: Path, other: Path) -> bool:
    if place.is_symlink() or other.is_symlink():
        return other.is_symlink() and place.is_symlink() and place.readlink() != other.readlink()
    return other.is_file() and place.read_bytes() != other.read_bytes()


# --- Cells ---


@dataclass(frozen=True)
class Machines:
    """The machines that all cells copy."""

    fresh: Path
    node: Path  # with a pending configuration
    other: Path  # another node
    owners: Mapping[str, Owner]
    copies: Mapping[str, str]  # file of the host -> its copy

    def damage(self, root: Path, cell: Cell) -> None:
        DAMAGES[cell.damage](harness.DamagedHost(root).disk.at(cell.path), self.other / cell.path[1:])


def make_machines(room: Path) -> Machines:
    fresh = harness.seed(room / "fresh")
    node = harness.make_node(Path(shutil.copytree(fresh, room / "node", symlinks=True)))
    other = harness.make_node(harness.seed(room / "other", "edge-2"), ELSEWHERE)
    harness.pend(harness.DamagedHost(node))
    engine = _engine(node)
    records = {path: one for owned in engine.ledger.components.values() for path, one in owned.paths.items()}
    originals = {path: record.get("original") or {} for path, record in records.items()}
    copies = {path: str(original["copy"]) for path, original in originals.items() if "copy" in original}
    return Machines(fresh, node, other, owned_paths(engine, fresh), copies)


def _engine(node: Path) -> Engine:
    host = harness.DamagedHost(node)
    return harness.engine(host, context.config_in_effect(host))


def cells_of(machines: Machines) -> list[Cell]:
    host = harness.DamagedHost(machines.node)
    return [
        Cell(path, damage, owner)
        for path, owner in machines.owners.items()
        for damage in damages_of(host.disk.at(path), machines.other / path[1:])
    ]


@cache
def all_cells() -> list[Cell]:
    with tempfile.TemporaryDirectory() as room:
        return cells_of(make_machines(Path(room)))


def sample(axis: str, count: int) -> list[Cell]:
    """Returns a seeded sample of the cells for an axis: of the files in one directory, one for each damage.

    All cells run in `tests/long`.
    """
    chance = random.Random(f"{SEED} {axis}")  # noqa: S311 - seeded
    alike: dict[tuple[str, str, Owner], list[Cell]] = {}
    for cell in all_cells():
        group = cell.path if cell.owner is Owner.AGENT else cell.path.rpartition("/")[0]
        alike.setdefault((group, cell.damage, cell.owner), []).append(cell)
    chosen = [chance.choice(group) for group in alike.values()]
    return sorted(chance.sample(chosen, count))
