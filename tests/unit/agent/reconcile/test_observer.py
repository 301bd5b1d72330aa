"""Tests of the observed state: damaged programs, modules, swap, kernel settings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile
from aks_flex_node.agent.reconcile.ledger import OwnedResources
from aks_flex_node.agent.reconcile.observer import file_change_times, find_damage, loaded_modules, observe
from aks_flex_node.agent.reconcile.resources import ProgramTree, Service, Spec, Sysctl
from aks_flex_node.host.actions import MakeLink, Remove, WriteFile
from aks_flex_node.host.host import UnitState
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import manifest

if TYPE_CHECKING:
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import FileEntry

PLACE = "/opt/x/1"
PROGRAM = ProgramTree(PLACE, "x", "1", ())
TOOL = f"{PLACE}/bin/tool"


def installed() -> RecordedHost:
    host = RecordedHost({f"{PLACE}/.manifest.json": manifest({"bin/tool": b"tool"}), TOOL: b"tool"})
    host.apply(WriteFile(TOOL, b"tool", 0o755))
    return host


def linked(target: str) -> bytes:
    document = json.loads(manifest({"bin/tool": b""}))
    document["files"]["bin/tool"] |= {"link": target, "sha256": "", "size": 0, "mode": 0}
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (None, ""),
        (Remove(f"{PLACE}/.manifest.json"), "not installed"),
        (Remove(TOOL), "bin/tool is missing"),
        (WriteFile(TOOL, b"tools", 0o755), "bin/tool has a different size"),
        (WriteFile(TOOL, b"tool", 0o700), "bin/tool has mode 0700"),
        (WriteFile(TOOL, b"loot", 0o755), "bin/tool has different content"),
        (WriteFile(f"{PLACE}/.manifest.json", b"{"), "damaged manifest"),
        (WriteFile(f"{PLACE}/.manifest.json", b"[]"), "damaged manifest"),
        (WriteFile(f"{PLACE}/.manifest.json", b'{"files": {"bin/tool": 5}}'), "damaged manifest"),
        (WriteFile(f"{PLACE}/.manifest.json", b'{"files": {"bin/tool": {}}}'), "damaged manifest"),
        (WriteFile(f"{PLACE}/.manifest.json", linked("/there")), "bin/tool points to another target"),
    ],
    ids=str,
)
def test_program_damage_is_described(change: Action | None, expected: str) -> None:
    host = installed()
    if change:
        host.apply(change)
    assert find_damage(host, PROGRAM, OwnedResources()) == expected


class ChangedEntryHost(RecordedHost):
    """A host on which one path has another owner or mode."""

    def __init__(self, path: str, **changes: Any) -> None:
        super().__init__({f"{PLACE}/.manifest.json": manifest({"bin/tool": b"tool"}), TOOL: b"tool"})
        self.apply(WriteFile(TOOL, b"tool", 0o755))
        self._path, self._changes = path, changes

    def stat(self, path: str) -> FileEntry | None:
        entry = super().stat(path)
        return replace(entry, **self._changes) if entry and path == self.__dict__.get("_path") else entry


@pytest.mark.parametrize(
    ("path", "changes", "expected"),
    [
        (TOOL, {"uid": 1000}, "bin/tool is not owned by root"),
        (TOOL, {"gid": 1000}, "bin/tool is not owned by root"),
        (f"{PLACE}/bin", {"uid": 1000}, "bin is not owned by root"),
        (f"{PLACE}/bin", {"mode": 0o775}, "bin has mode 0775"),
        (f"{PLACE}/bin", {"mode": 0o700}, ""),
        (PLACE, {"gid": 7}, f"{PLACE} is not owned by root"),
        (PLACE, {"mode": 0o757}, f"{PLACE} has mode 0757"),
    ],
    ids=str,
)
def test_program_writable_by_others_is_damaged(path: str, changes: dict[str, int], expected: str) -> None:
    assert find_damage(ChangedEntryHost(path, **changes), PROGRAM, OwnedResources()) == expected


def test_program_without_a_newly_required_file_is_damaged() -> None:
    wanted = (
        ArtifactFile("tool", "bin/tool"),
        ArtifactFile("config/", "config/"),
        ArtifactFile("other", "bin/other"),
    )
    program = replace(PROGRAM, artifacts=(Artifact("x", "1", "https://x.test/x.tar.gz", wanted),))
    assert find_damage(installed(), program, OwnedResources()) == "bin/other is missing"
    without = replace(program.artifacts[0], files=wanted[:2])
    assert find_damage(installed(), replace(program, artifacts=(without,)), OwnedResources()) == ""


def test_program_link_with_the_right_target_is_intact() -> None:
    host = installed()
    host.apply(WriteFile(f"{PLACE}/.manifest.json", linked("/there")))
    host.apply(MakeLink(TOOL, "/there"))
    assert find_damage(host, PROGRAM, OwnedResources()) == ""


class Counting(RecordedHost):
    hashed = 0

    def digest(self, path: str) -> str:
        self.hashed += 1
        return super().digest(path)


@pytest.mark.parametrize(
    ("synced", "touched", "hashed"), [(True, False, 0), (False, False, 1), (True, True, 1)], ids=str
)
def test_program_file_is_hashed_unless_synced_and_unchanged(synced: bool, touched: bool, hashed: int) -> None:
    host = Counting({f"{PLACE}/.manifest.json": manifest({"bin/tool": b"tool"}), TOOL: b"tool"})
    host.apply(WriteFile(TOOL, b"tool", 0o755))
    owned = OwnedResources(
        paths={PLACE: {"kind": "program", "synced": synced, "seen": file_change_times(host, PLACE)}}
    )
    if touched:
        host.apply(WriteFile(TOOL, b"tool", 0o755))
    assert find_damage(host, PROGRAM, owned) == ""
    assert host.hashed == hashed


def test_change_times_are_empty_for_a_damaged_manifest() -> None:
    for damaged in ("{", "[]", '{"files": null}'):
        assert file_change_times(RecordedHost({f"{PLACE}/.manifest.json": damaged}), PLACE) == {}
    assert file_change_times(RecordedHost(), PLACE) == {}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, set()),
        ({"/proc/modules": "overlay 1 0 - Live 0x0\nnf_nat 2 1 x, Live 0x0\n"}, {"overlay", "nf_nat"}),
        ({"/proc/filesystems": "nodev\tsysfs\nnodev\toverlay\n"}, {"overlay"}),
        ({"/proc/filesystems": "nodev\toverlayfs\n"}, set()),
        ({"/proc/sys/net/bridge/bridge-nf-call-iptables": "1\n"}, {"br_netfilter"}),
    ],
)
def test_built_in_modules_count_as_loaded(files: dict[str, str], expected: set[str]) -> None:
    assert loaded_modules(RecordedHost(files)) == expected


def test_sysctl_values_are_compared_with_normalized_white_space() -> None:
    host = RecordedHost({"/proc/sys/net/ipv4/range": "32768\t60999\n"})
    facts = observe(host, Spec((Sysctl("net.ipv4.range", "x"), Sysctl("net.none", "1"))), OwnedResources())
    assert facts.sysctls == {"net.ipv4.range": "32768 60999", "net.none": None}


def test_service_running_a_deleted_program_is_observed_as_replaced() -> None:
    units = {name: UnitState(name, active="active", pid=pid) for name, pid in (("a", 7), ("b", 8), ("c", 0))}
    host = RecordedHost({"/proc/7/stat": "", "/proc/8/stat": ""}, units=units)
    host.apply(MakeLink("/proc/7/exe", "/usr/bin/a (deleted)"))
    host.apply(MakeLink("/proc/8/exe", "/usr/bin/b"))
    facts = observe(host, Spec(tuple(Service(name, (), "") for name in units)), OwnedResources())
    assert facts.replaced == {"a"}


def test_originals_and_children_of_owned_paths_are_observed() -> None:
    copy = f"/o/{hashlib.sha256(b'before').hexdigest()}"
    host = RecordedHost({copy: "before", "/o/damaged": "", "/d/x": "", "/d/y": ""})
    owned = OwnedResources(
        paths={
            "/etc/a": {"original": {"kind": "file", "mode": 0o644, "copy": copy}},
            "/etc/b": {"original": {"kind": "file", "mode": 0o644, "copy": "/o/lost"}},
            "/etc/c": {"original": {"kind": "file", "mode": 0o644, "copy": "/o/damaged"}},
            "/d": {"original": None, "ours": True},
        }
    )
    facts = observe(host, Spec(), owned)
    assert facts.originals == {"/etc/a": b"before"}
    assert facts.children == {"/d": ("x", "y")}
