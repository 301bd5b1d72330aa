"""Tests of the planned actions for each kind of resource."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aks_flex_node.agent.reconcile.ledger import OwnedResources
from aks_flex_node.agent.reconcile.observer import Facts, observe
from aks_flex_node.agent.reconcile.planner import plan, removal
from aks_flex_node.agent.reconcile.resources import (
    Directory,
    File,
    FileLine,
    KernelModule,
    NoSwap,
    ProgramTree,
    Resource,
    RuntimePath,
    Service,
    Spec,
    Symlink,
    Sysctl,
    make_service,
)
from aks_flex_node.host.actions import (
    Action,
    EditFile,
    EnableUnit,
    LoadModule,
    MakeDirectory,
    MakeLink,
    PlaceTree,
    ReloadUnits,
    Remove,
    RemoveTree,
    RestartUnit,
    SetSysctl,
    StartUnit,
    StopUnit,
    SwapOff,
    SwapOn,
    UnloadModule,
    WriteFile,
)
from aks_flex_node.host.host import EntryKind, FileEntry, UnitState
from tests.hosts.recorded import RecordedHost

FOLDER, FILE, LINK = (
    FileEntry(EntryKind.DIRECTORY, 0o755),
    FileEntry(EntryKind.FILE, 0o644),
    FileEntry(EntryKind.LINK, 0o777, target="/there"),
)
PIPE = FileEntry(EntryKind.OTHER)
UNIT = "/etc/systemd/system/thing.service"

PATHS: list[tuple[str, Resource, FileEntry | None, bytes | None, list[Action]]] = [
    ("missing directory", Directory("/d"), None, None, [MakeDirectory("/d")]),
    ("same directory", Directory("/d"), FOLDER, None, []),
    ("directory of another mode", Directory("/d", 0o700), FOLDER, None, [MakeDirectory("/d", 0o700)]),
    (
        "directory of somebody else",
        Directory("/d"),
        FileEntry(EntryKind.DIRECTORY, 0o755, 7),
        None,
        [MakeDirectory("/d")],
    ),
    (
        "directory of another group",
        Directory("/d"),
        FileEntry(EntryKind.DIRECTORY, 0o755, 0, 7),
        None,
        [MakeDirectory("/d")],
    ),
    ("link to a directory", Directory("/d", 0o700), LINK, None, []),
    ("file instead of a directory", Directory("/d"), FILE, b"", [MakeDirectory("/d")]),
    ("missing file", File("/f", b"x"), None, None, [WriteFile("/f", b"x")]),
    ("same file", File("/f", b"x"), FILE, b"x", []),
    ("file of other content", File("/f", b"x"), FILE, b"y", [WriteFile("/f", b"x")]),
    ("file of another mode", File("/f", b"x", 0o600), FILE, b"x", [WriteFile("/f", b"x", 0o600)]),
    ("file of another owner", File("/f", b"x"), replace(FILE, uid=7), b"x", [WriteFile("/f", b"x")]),
    ("file of another group", File("/f", b"x"), replace(FILE, gid=7), b"x", [WriteFile("/f", b"x")]),
    ("link instead of a file", File("/f", b"x"), LINK, b"x", [WriteFile("/f", b"x")]),
    ("pipe instead of a file", File("/f", b"x"), PIPE, None, [WriteFile("/f", b"x")]),
    ("secret file", File("/f", b"x", 0o600, secret=True), None, None, [WriteFile("/f", b"x", 0o600, secret=True)]),
    ("missing link", Symlink("/l", "/there"), None, None, [MakeLink("/l", "/there")]),
    ("same link", Symlink("/l", "/there"), LINK, None, []),
    ("link elsewhere", Symlink("/l", "/here"), LINK, None, [MakeLink("/l", "/here")]),
    ("file instead of a link", Symlink("/l", "/there"), FILE, b"", [MakeLink("/l", "/there")]),
    ("found directory, which others make", RuntimePath("/d"), None, None, []),
    ("missing directory of another program", RuntimePath("/d", is_directory=True), None, None, []),
    ("link to a directory of another program", RuntimePath("/d", is_directory=True), LINK, None, []),
    (
        "file instead of a directory of another program",
        RuntimePath("/d", is_directory=True),
        FILE,
        b"",
        [MakeDirectory("/d")],
    ),
]


@pytest.mark.parametrize(("resource", "entry", "content", "expected"), [case[1:] for case in PATHS],
                         ids=[case[0] for case in PATHS])  # fmt: skip
def test_plan_brings_a_path_to_the_desired_state(
    resource: Resource, entry: FileEntry | None, content: bytes | None, expected: list[Action]
) -> None:
    path = getattr(resource, "path")  # noqa: B009 - every kind in the table has one
    facts = Facts(entries={path: entry}, contents={path: content})
    assert list(plan(Spec((resource,)), facts)) == expected


def test_broken_link_in_place_of_a_runtime_directory_is_a_difference() -> None:
    host = RecordedHost()
    host.apply(MakeLink("/var/log/pods", "/nowhere"))
    spec = Spec((RuntimePath("/var/log/pods", is_directory=True),))

    assert list(plan(spec, observe(host, spec, OwnedResources()))) == [MakeDirectory("/var/log/pods")]


@pytest.mark.parametrize(
    ("resource", "facts", "expected"),
    [
        (ProgramTree("/opt/x/1", "x", "1", ()), Facts(damage={"/opt/x/1": ""}), []),
        (
            ProgramTree("/opt/x/1", "x", "1", ()),
            Facts(damage={"/opt/x/1": "not installed"}),
            [PlaceTree("/opt/x/.1.flex-new", "/opt/x/1")],
        ),
        (Sysctl("a.b", "1"), Facts(sysctls={"a.b": "1"}), []),
        (Sysctl("a.b", "1"), Facts(sysctls={"a.b": "0"}), [SetSysctl("a.b", "1")]),
        (Sysctl("a.b", "1"), Facts(sysctls={"a.b": None}), [SetSysctl("a.b", "1")]),
        (Sysctl("a.b", "1"), Facts(live=False, sysctls={"a.b": "0"}), []),
        (KernelModule("overlay"), Facts(modules=frozenset({"overlay"})), []),
        (KernelModule("overlay"), Facts(), [LoadModule("overlay")]),
        (KernelModule("overlay"), Facts(live=False), []),
        (NoSwap(), Facts(), []),
        (NoSwap(), Facts(swaps=("/dev/a", "/swap")), [SwapOff("/dev/a"), SwapOff("/swap")]),
        (NoSwap(), Facts(live=False, swaps=("/dev/a",)), []),
    ],
)
def test_plan_brings_programs_and_kernel_to_the_desired_state(
    resource: Resource, facts: Facts, expected: list[Action]
) -> None:
    assert list(plan(Spec((resource,)), facts)) == expected


THING = Service("thing.service", (UNIT,), "new")
RUNNING = UnitState("thing.service", exists=True, enabled=True, active="active")
RESTING = UnitState("thing.service", exists=True, enabled=True)
STARTED = OwnedResources(services={"thing.service": {"started_with": "new"}})
START, RESTART = StartUnit("thing.service"), RestartUnit("thing.service")

SERVICES: list[tuple[str, Service, UnitState, OwnedResources, bool, list[Action]]] = [
    ("unknown", THING, UnitState("thing.service"), OwnedResources(), False, [EnableUnit("thing.service"), START]),
    ("as it should be", THING, RUNNING, STARTED, False, []),
    ("stopped", THING, RESTING, STARTED, False, [START]),
    ("failed", THING, replace(RUNNING, active="failed"), STARTED, False, [START]),
    ("starting", THING, replace(RUNNING, active="activating"), STARTED, False, []),
    (
        "not enabled",
        THING,
        replace(RUNNING, enabled=False),
        STARTED,
        False,
        [EnableUnit("thing.service"), ReloadUnits()],
    ),
    ("never started by us", THING, RUNNING, OwnedResources(), False, [RESTART]),
    ("started with something else", replace(THING, fingerprint="newer"), RUNNING, STARTED, False, [RESTART]),
    ("an input is rewritten", THING, RUNNING, STARTED, True, [ReloadUnits(), RESTART]),
    ("rewritten while it rests", THING, RESTING, STARTED, True, [ReloadUnits(), START]),
    (
        "its file is new",
        THING,
        UnitState("thing.service"),
        OwnedResources(),
        True,
        [EnableUnit("thing.service"), START],
    ),
    ("systemd read an older file", THING, replace(RUNNING, needs_reload=True), STARTED, False, [ReloadUnits()]),
    ("what it needs is missing", replace(THING, needs="/key"), RESTING, STARTED, False, []),
    (
        "not enabled, and what it needs is missing",
        replace(THING, needs="/key"),
        UnitState("thing.service"),
        OwnedResources(),
        False,
        [EnableUnit("thing.service")],
    ),
    ("not waited for", replace(THING, wait=False), RESTING, STARTED, False, [StartUnit("thing.service", wait=False)]),
]


@pytest.mark.parametrize(("wanted", "unit", "owned", "rewritten", "expected"), [case[1:] for case in SERVICES],
                         ids=[case[0] for case in SERVICES])  # fmt: skip
def test_plan_starts_or_restarts_a_service_only_when_needed(
    wanted: Service, unit: UnitState, owned: OwnedResources, rewritten: bool, expected: list[Action]
) -> None:
    file = File(UNIT, b"[Unit]")
    facts = Facts(
        entries={UNIT: None if rewritten else FILE, "/key": None},
        contents={UNIT: b"[Unit]"},
        units={"thing.service": unit},
        owned=owned,
    )
    planned = list(plan(Spec((file, wanted)), facts))
    assert planned == [*([WriteFile(UNIT, b"[Unit]")] if rewritten else []), *expected]


def test_plan_restarts_a_service_whose_program_was_replaced() -> None:
    facts = Facts(units={"thing.service": RUNNING}, owned=STARTED, replaced=frozenset({"thing.service"}))
    assert list(plan(Spec((THING,)), facts)) == [RESTART]


def test_plan_starts_a_service_when_its_required_file_exists() -> None:
    facts = Facts(entries={"/key": FILE}, units={"thing.service": RESTING}, owned=STARTED)
    assert list(plan(Spec((replace(THING, needs="/key"),)), facts)) == [START]


def test_plan_in_an_image_enables_a_service_without_starting_it() -> None:
    facts = Facts(live=False, units={"thing.service": UnitState("thing.service")})
    assert list(plan(Spec((THING,)), facts)) == [EnableUnit("thing.service")]


def test_service_fingerprint_depends_on_every_input() -> None:
    made = [
        make_service("s", (File("/a", b"1"),)),
        make_service("s", (File("/a", b"2"),)),
        make_service("s", (File("/b", b"1"),)),
        make_service("s", (File("/a", b"1"),), "word"),
        make_service("s", (Symlink("/a", "/2"),)),
    ]
    assert len({one.fingerprint for one in made}) == len(made)
    assert make_service("s", (File("/a", b"1"),)) == make_service("s", (File("/a", b"1", 0o600),))


def test_plan_creates_missing_parent_directories_once_outermost_first() -> None:
    spec = Spec((File("/data/x/f", b""), Symlink("/data/x/l", "/there"), Directory("/data/y/z")))
    facts = Facts(entries=dict.fromkeys([*spec.parent_dirs, *spec.paths]), contents={"/data/x/f": None})
    assert [str(action) for action in plan(spec, facts)] == [
        "create directory /data (0755)",
        "create directory /data/x (0755)",
        "write /data/x/f (0644, 0 bytes)",
        "link /data/x/l -> /there",
        "create directory /data/y (0755)",
        "create directory /data/y/z (0755)",
    ]


def owned_of(**records: dict[str, object]) -> OwnedResources:
    return OwnedResources(paths={f"/{name}": record for name, record in records.items()})


def test_plan_reverts_resources_of_an_earlier_config() -> None:
    owned = OwnedResources(
        paths={
            "/etc/mine": {"original": None, "kind": "file"},
            "/etc/theirs": {"original": {"kind": "file", "mode": 0o640, "copy": "/o/1"}, "kind": "file"},
            "/opt/x/0.9": {"original": None, "kind": "program"},
        },
        services={"old.service": {"started_with": "x"}},
    )
    facts = Facts(
        entries={"/etc/mine": FILE, "/etc/theirs": FILE, "/opt/x/0.9": FOLDER},
        units={"old.service": UnitState("old.service", exists=True, active="active")},
        owned=owned,
        originals={"/etc/theirs": b"before"},
    )
    assert list(plan(Spec(), facts)) == [
        StopUnit("old.service"),
        WriteFile("/etc/theirs", b"before", 0o640),
        Remove("/etc/mine"),
    ]


REMOVALS: list[tuple[str, dict[str, object], FileEntry | None, list[Action]]] = [
    ("what was not there goes", {"original": None}, FILE, [Remove("/p")]),
    ("what is gone already is left alone", {"original": None}, None, []),
    (
        "a file comes back with its mode",
        {"original": {"kind": "file", "mode": 0o640, "copy": "/o/1"}},
        FILE,
        [WriteFile("/p", b"before", 0o640)],
    ),
    (
        "a link comes back",
        {"original": {"kind": "link", "target": "/x", "mode": 0o777}},
        LINK,
        [MakeLink("/p", "/x")],
    ),
    (
        "a directory gets its mode back",
        {"original": {"kind": "directory", "mode": 0o700, "names": []}},
        FOLDER,
        [MakeDirectory("/p", 0o700)],
    ),
    (
        "a directory that kept its mode stays as it is",
        {"original": {"kind": "directory", "mode": 0o755, "names": []}},
        FOLDER,
        [],
    ),
    ("a directory of ours goes with all in it", {"original": None, "ours": True}, FOLDER, [RemoveTree("/p")]),
    (
        "what was in it before us stays",
        {"original": {"kind": "directory", "mode": 0o755, "names": ["old"]}, "ours": True},
        FOLDER,
        [RemoveTree("/p/new")],
    ),
    (
        "a link that stands for a directory of ours stays, and what we put behind it goes",
        {"original": {"kind": "link", "target": "/there", "mode": 0o777, "names": ["old"]}, "ours": True},
        LINK,
        [RemoveTree("/p/new")],
    ),
    ("programs go as a tree", {"original": None, "kind": "program"}, FOLDER, [RemoveTree("/p")]),
]


@pytest.mark.parametrize(("record", "entry", "expected"), [case[1:] for case in REMOVALS],
                         ids=[case[0] for case in REMOVALS])  # fmt: skip
def test_removal_restores_or_deletes_a_path(
    record: dict[str, object], entry: FileEntry | None, expected: list[Action]
) -> None:
    facts = Facts(
        entries={"/p": entry}, owned=owned_of(p=record), originals={"/p": b"before"}, children={"/p": ("new", "old")}
    )
    assert list(removal(facts)) == expected


def test_removal_restores_sysctls_modules_and_swap() -> None:
    owned = OwnedResources(
        sysctls={"a.a": {"original": "0"}, "a.b": {"original": "1"}, "a.c": {"original": None}},
        modules={"overlay": {}},
        swaps={"/dev/a": {"priority": 5}, "/dev/b": {}},
    )
    facts = Facts(owned=owned, sysctls={"a.a": "1", "a.b": "1", "a.c": "1"}, swaps=("/dev/b",))
    assert list(removal(facts)) == [SetSysctl("a.a", "0"), UnloadModule("overlay"), SwapOn("/dev/a", 5)]


def test_removal_stops_running_or_failed_units_and_disables_enabled_ones() -> None:
    owned = OwnedResources(services={name: {} for name in ("runs", "failed", "enabled", "resting")})
    units = {
        "runs": UnitState("runs", active="active"),
        "failed": UnitState("failed", active="failed"),
        "enabled": UnitState("enabled", enabled=True),
        "resting": UnitState("resting"),
    }
    assert [str(action) for action in removal(Facts(owned=owned, units=units))] == [
        "stop runs",
        "stop failed",
        "disable enabled at boot",
    ]


def test_removal_runs_in_reverse_order() -> None:
    paths: dict[str, dict[str, object]] = {"/a": {"original": None}, "/a/b": {"original": None}}
    facts = Facts(entries={"/a": FOLDER, "/a/b": FILE}, owned=OwnedResources(paths=paths))
    assert list(removal(facts)) == [Remove("/a/b"), Remove("/a")]


def test_plan_edits_only_the_managed_line_of_a_file() -> None:
    line = FileLine("/k", "server: ", "https://new")
    before = b"clusters:\n- cluster:\n    server: https://old\n  name: x\n"

    host = RecordedHost({"/k": before})
    (edit,) = plan(Spec((line,)), observe(host, Spec((line,)), OwnedResources()))
    assert isinstance(edit, EditFile)
    host.apply(edit)

    assert host.read("/k") == before.replace(b"old", b"new")
    assert host.mode_of("/k") == 0o600
    assert list(plan(Spec((line,)), observe(host, Spec((line,)), OwnedResources()))) == []
    assert list(plan(Spec((line,)), observe(RecordedHost(), Spec((line,)), OwnedResources()))) == []


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
def test_plan_sets_mode_0600_on_a_file_with_a_managed_line(mode: int) -> None:
    line = FileLine("/k", "server: ", "https://same")
    host = RecordedHost()
    host.apply(WriteFile("/k", b"server: https://same\n", mode))
    assert list(plan(Spec((line,)), observe(host, Spec((line,)), OwnedResources()))) == [
        EditFile("/k", b"server: https://same\n", 0o600, secret=True)
    ]
