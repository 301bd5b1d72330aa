"""Tests of the ledger: its content, when it is written, and recovery from damage."""

from __future__ import annotations

import json

import pytest

from aks_flex_node.agent.reconcile.ledger import Ledger, OwnedResources
from aks_flex_node.agent.reconcile.resources import Directory, File, ProgramTree, RuntimePath, Service, Spec
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import (
    Action,
    EditFile,
    EnableUnit,
    LoadModule,
    MakeDirectory,
    MakeLink,
    PlaceTree,
    Remove,
    RestartUnit,
    SetSysctl,
    StartUnit,
    StopUnit,
    SwapOff,
    WriteFile,
)
from tests.hosts.recorded import RecordedHost

PLACES = ("/var/lib/x/ledger.json", "/opt/x/ledger.json")
ORIGINALS = "/var/lib/x/originals"
SWAPS = "Filename\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/sda2  partition\t999\t0\t5\n"


def host_with(**files: str) -> RecordedHost:
    """Returns a machine on which the ledger's directories exist."""
    host = RecordedHost({f"/etc/{name}": content for name, content in files.items()})
    for folder in ("/var/lib/x", "/opt/x"):
        host.apply(MakeDirectory(folder))
    host.done.clear()
    return host


def writes(host: RecordedHost) -> list[str]:
    return [action.path for action in host.done if isinstance(action, WriteFile)]


def noted(ledger: Ledger, *actions: Action, spec: Spec | None = None) -> OwnedResources:
    ledger.record_before("c", spec or Spec(), actions, ORIGINALS)
    return ledger.owned("c")


def test_ledger_stores_the_original_file_once() -> None:
    host = host_with(a="before")
    ledger = Ledger(host, PLACES)
    noted(ledger, WriteFile("/etc/a", b"first"))
    host.apply(WriteFile("/etc/a", b"first"))
    ledger.record_after("c", Spec((File("/etc/a", b"first"),)), (WriteFile("/etc/a", b"first"),))
    record = noted(Ledger(host, PLACES), WriteFile("/etc/a", b"second")).paths["/etc/a"]
    assert record["original"]["kind"] == "file"
    assert host.read(record["original"]["copy"]) == b"before"
    copy, folder = host.stat(record["original"]["copy"]), host.stat(ORIGINALS)
    assert copy
    assert folder
    assert (copy.mode, folder.mode) == (0o600, 0o700)


@pytest.mark.parametrize(
    ("action", "kind", "expected"),
    [
        (MakeDirectory("/etc/new"), "paths", {"/etc/new": {"original": None, "kind": "directory"}}),
        (WriteFile("/etc/new", b""), "paths", {"/etc/new": {"original": None, "kind": "file"}}),
        (MakeLink("/etc/new", "/x"), "paths", {"/etc/new": {"original": None, "kind": "link"}}),
        (
            PlaceTree("/etc/.new", "/etc/new"),
            "paths",
            {"/etc/new": {"original": None, "kind": "program", "synced": False}},
        ),
        (SetSysctl("a.b", "1"), "sysctls", {"a.b": {"original": "0"}}),
        (SetSysctl("a.c", "1"), "sysctls", {"a.c": {"original": None}}),
        (LoadModule("overlay"), "modules", {"overlay": {}}),
        (SwapOff("/dev/sda2"), "swaps", {"/dev/sda2": {"priority": 5}}),
        (SwapOff("/dev/unseen"), "swaps", {"/dev/unseen": {"priority": -2}}),
        (StartUnit("s"), "services", {"s": {"started_with": ""}}),
        (RestartUnit("s"), "services", {"s": {"started_with": ""}}),
        (StopUnit("s"), "services", {"s": {"started_with": ""}}),
        (EnableUnit("s"), "services", {"s": {"started_with": ""}}),
        (EditFile("/etc/new", b""), "paths", {"/etc/new": {"edited": True}}),
        (Remove("/etc/new"), "paths", {}),
    ],
    ids=str,
)
def test_ledger_records_each_action_before_it_is_applied(
    action: Action, kind: str, expected: dict[str, object]
) -> None:
    host = RecordedHost({"/etc/x": "", "/proc/sys/a/b": "0\n", "/proc/swaps": SWAPS})
    assert getattr(noted(Ledger(host, PLACES), action), kind) == expected
    written = json.loads(host.read(PLACES[0]) or b"{}").get("components", {})
    assert written.get("c", {}).get(kind, {}) == expected


def test_ledger_records_directories_and_links_with_their_contents() -> None:
    host = host_with(**{"d/one": "", "d/two": ""})
    host.apply(MakeLink("/etc/l", "/etc/d"))
    owned = noted(
        Ledger(host, PLACES), spec=Spec((Directory("/etc/d", ours=True), RuntimePath("/etc/l"), RuntimePath("/none")))
    )
    assert owned.paths == {
        "/etc/d": {"original": {"kind": "directory", "mode": 0o755, "names": ["one", "two"]}, "ours": True},
        "/etc/l": {
            "original": {"kind": "link", "mode": 0o777, "target": "/etc/d", "names": ["one", "two"]},
            "ours": True,
        },
        "/none": {"original": None, "ours": True},
    }


def test_ledger_records_the_fingerprint_a_service_was_started_with() -> None:
    host, spec = RecordedHost(), Spec((Service("s", (), "print"),))
    ledger = Ledger(host, PLACES)
    actions = (EnableUnit("s"), StartUnit("s"))
    ledger.record_before("c", spec, actions, ORIGINALS)
    assert ledger.owned("c").services == {"s": {"started_with": ""}}
    ledger.record_after("c", spec, actions)
    assert Ledger(host, PLACES).owned("c").services == {"s": {"started_with": "print"}}


def test_ledger_drops_undesired_resources_except_older_programs() -> None:
    host = RecordedHost()
    ledger = Ledger(host, PLACES)
    made = (
        WriteFile("/etc/a", b""),
        WriteFile("/srv/b/c", b""),
        MakeDirectory("/srv/b"),
        PlaceTree("/o/.1", "/o/1"),
        StartUnit("s"),
    )
    noted(ledger, *made)
    ledger.record_after("c", Spec((File("/srv/b/c", b""),)), made)
    owned = ledger.owned("c")
    assert set(owned.paths) == {"/srv/b", "/srv/b/c", "/o/1"}
    assert owned.services == {}


def test_ledger_is_saved_mode_0600_and_only_on_change() -> None:
    host = host_with()
    ledger = Ledger(host, PLACES)
    ledger.record_before("c", Spec(), (), ORIGINALS)
    assert writes(host) == []
    noted(ledger, LoadModule("overlay"))
    assert writes(host) == list(PLACES)
    assert {action.mode for action in host.done if isinstance(action, WriteFile)} == {0o600}
    host.done.clear()
    noted(ledger, LoadModule("overlay"))
    ledger.record_after("c", Spec(), ())
    ledger.record_synced(lambda _: {})
    assert host.done == []


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 1}', b'{"format": 2, "components": {}}'),
        b'{"format": 1, "revision": 1, "found": {}, "components": {"c": {"unheard": {}}}}',
    ],
)
def test_second_ledger_copy_is_used_when_the_first_is_damaged(damage: bytes) -> None:
    host = RecordedHost()
    noted(Ledger(host, PLACES), LoadModule("overlay"))
    host.apply(WriteFile(PLACES[0], damage))
    ledger = Ledger(host, PLACES)
    assert ledger.damaged == (PLACES[0],)
    assert ledger.owned("c").modules == {"overlay": {}}


def test_lost_ledger_does_not_exist_and_damage_is_reported() -> None:
    assert not Ledger(RecordedHost(), PLACES).exists
    assert Ledger(RecordedHost({PLACES[1]: "{"}), PLACES).damaged == (PLACES[1],)


def test_ledger_forgets_a_component_permanently() -> None:
    host = RecordedHost()
    ledger = Ledger(host, PLACES)
    noted(ledger, WriteFile("/etc/a", b""))
    assert "/etc/a" in Ledger(host, PLACES).owned("c").paths
    ledger.forget("c")
    assert Ledger(host, PLACES).owned("c").empty


def test_ledger_copy_does_not_change_the_original() -> None:
    ledger = Ledger(RecordedHost(), PLACES)
    noted(ledger, LoadModule("overlay"))
    noted(ledger.copy(RecordedHost()), LoadModule("other"))
    assert ledger.owned("c").modules == {"overlay": {}}


def test_ledger_records_change_times_of_a_program_after_sync() -> None:
    ledger = Ledger(RecordedHost(), PLACES)
    action = PlaceTree("/o/.1", "/o/1")
    noted(ledger, action)
    ledger.record_after("c", Spec((ProgramTree("/o/1", "c", "1", ()),)), (action,))
    ledger.record_synced(lambda _: {"bin/x": 42})
    assert ledger.owned("c").paths["/o/1"] == {
        "original": None,
        "kind": "program",
        "synced": True,
        "seen": {"bin/x": 42},
    }


@pytest.mark.parametrize("path", ["/", "//", "/.", "etc/a", "/etc/../a"])
def test_ledger_that_owns_the_root_or_an_unsafe_path_counts_as_damaged(path: str) -> None:
    document = {"format": 1, "revision": 1, "found": {}, "components": {"thing": {"paths": {path: {"ours": True}}}}}
    assert Ledger(RecordedHost({PLACES[0]: json.dumps(document)}), PLACES[:1]).damaged == PLACES[:1]


@pytest.mark.parametrize("frozen", PLACES)
def test_one_writable_copy_of_the_ledger_is_sufficient_and_wins(frozen: str) -> None:
    host = RecordedHost()
    for folder in ("/var/lib/x", "/opt/x"):
        host.apply(MakeDirectory(folder))
    noted(Ledger(host, PLACES), LoadModule("first"))
    host.refuses = lambda action: action.subject.startswith(frozen)
    noted(Ledger(host, PLACES), LoadModule("second"))
    assert set(Ledger(host, PLACES).owned("c").modules) == {"first", "second"}
    host.refuses = lambda action: action.subject.startswith(PLACES)
    with pytest.raises(MachineError):
        noted(Ledger(host, PLACES), LoadModule("third"))


def test_directory_in_place_of_the_ledger_is_set_aside() -> None:
    host = host_with()
    host.apply(MakeDirectory(PLACES[0]))
    noted(Ledger(host, PLACES), LoadModule("overlay"))
    assert host.read(PLACES[0]) == host.read(PLACES[1])
    assert host.stat(f"{PLACES[0]}.damaged")
