"""Tests of keys, changed records and the copy to PostgreSQL, with every kind of data of a service."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.node_keys import fingerprint
from aks_flex_rp import raw_database
from aks_flex_rp.key_rotation import reseal
from aks_flex_rp.raw_database import COPIED_TABLES, SqliteDatabase
from aks_flex_rp.service import open_sealer
from tests.service.rp.api.bodies import principal, token
from tests.service.rp.api.enrolling_machine import EnrollingMachine, PoolEnrolment
from tests.service.rp.cli.cli_harness import Person
from tests.service.rp.cli.conftest import LocalService, add_clusters, serving
from tests.service.rp.store.servers import postgres_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.settings import ServiceSettings
    from tests.service.rp.api.client import Api
    from tests.service.rp.cli.cli_harness import Outcome

POOL = "line"
NOT_COPIED = {"sessions", "outbox", "schema_version", "sqlite_sequence", "leases"}
ROTATED = "pools: 1, revisions of pools: 2, enrolments: 2, enrolled machines: 2"
ATTACKS = {
    "pool": "UPDATE pools SET template = replace(template, '60', '1000')",
    "pool revision": "UPDATE pool_revisions SET template = replace(template, '60', '1000') WHERE number = 2",
    "enrolment": "UPDATE enrolments SET uses = 0",
    "enrolled machine": "UPDATE enrolled_machines SET state = 'Approved' WHERE state = 'Waiting'",
}


@dataclass(frozen=True)
class PoolFleet(LocalService):
    """A service with a node that has a secret, one with a pending bundle, and a deleted one.

    Its pool has two revisions, an enrolled machine, and one that waits for approval.
    """

    url: str  # of the pending bundle
    enrolled: EnrollingMachine
    waiting: EnrollingMachine
    open_: PoolEnrolment
    manual: PoolEnrolment

    def contents(self, made: ServiceSettings | None = None) -> Any:
        """Returns all that the API shows, from a service that was started again."""
        with serving(made or self.made, self.clusters) as service:
            api = service.admin
            found = [api.pool("GET", POOL).json, api.pool("GET", POOL, "revisions").json, api.get("gone").error]
            found += [api.list().json, api.get(f"{POOL}-a").json, api.credentials("edge-1").json]
            for each in self.at(service.admin):
                found += [each.properties, each.machines]
            return found

    def at(self, admin: Api) -> tuple[PoolEnrolment, PoolEnrolment]:
        """Returns the enrolments at a service, which has another address after each start."""
        return replace(self.open_, admin=admin), replace(self.manual, admin=admin)

    def check_machines_go_on(self, made: ServiceSettings | None = None) -> None:
        """Enrols again, approves the machine that waits, and enrols it, with the URLs from before."""
        with serving(made or self.made, self.clusters) as service:
            open_, manual = self.at(service.admin)
            assert open_.enrol(self.enrolled).status == 200
            assert open_.enrol(open_.machine("third")).status == 409, "the uses are counted on"
            assert manual.act("approve", {"fingerprint": fingerprint(self.waiting.key.thumbprint)}).status == 200
            assert manual.enrol(self.waiting).status == 200
            assert service.admin.get(self.waiting.hostname).properties["poolName"] == POOL
            assert service.admin.fetch(self.url).status == 200


@pytest.fixture
def fleet(made: ServiceSettings, clusters: list[ClusterInfo]) -> PoolFleet:
    add_clusters(made, clusters)
    with serving(made, clusters) as service:
        for pods in (50, 60):
            template = {"continuousMonitoring": True, "nodeConfig": {"maxPods": pods}}
            assert service.admin.put_pool(POOL, template).status < 300
        open_ = PoolEnrolment.of(service.admin, POOL, maxUses=1)
        manual = PoolEnrolment.of(service.admin, POOL, maxUses=1, approval="manual")
        enrolled, waiting = open_.machine("a"), manual.machine("b")
        assert (open_.enrol(enrolled).status, manual.enrol(waiting).status) == (200, 202)
        assert service.admin.put("edge-1", principal()).status == 201
        url = service.admin.url_of("edge-2", token())
        service.admin.put("gone")
        service.admin.delete("gone")
    return PoolFleet(made.state_dir, made, clusters, url, enrolled, waiting, open_, manual)


class Cut(SqliteDatabase):
    """A database that fails after this many changes."""

    def __init__(self, connection: sqlite3.Connection, changes: int) -> None:
        super().__init__(connection)
        self._left = changes

    async def change(self, text: str, *values: object) -> int:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        return await super().change(text, *values)


def test_all_data_survives_key_rotation_and_the_old_key_is_removable(fleet: PoolFleet) -> None:
    before = fleet.contents()
    [old] = fleet.does("keys list --json").json
    new = fleet.does("keys add --json").json["id"]
    assert old["id"] in fleet.does("keys prune").out.partition("still needed")[2]
    assert ROTATED in fleet.does("keys rotate").out
    assert fleet.does("keys prune").out == f"removed: {old['id']}\n"
    assert [each["id"] for each in fleet.does("keys list --json").json] == [new]
    assert fleet.does("keys rotate").out == "re-encrypted: nothing to do\n"

    assert fleet.does("records list").out == "All records are authentic.\n"
    assert fleet.contents() == before
    fleet.check_machines_go_on()


@pytest.mark.parametrize("changes", range(0, 16, 2))
def test_interrupted_key_rotation_is_completed_by_next_run(fleet: PoolFleet, changes: int) -> None:
    before = fleet.contents()
    fleet.does("keys add")
    with closing(raw_database.open_sqlite(fleet.made.sqlite_file)) as connection, pytest.raises(KeyboardInterrupt):
        asyncio.run(reseal(Cut(connection, changes), open_sealer(fleet.made)))
    assert fleet.does("records list").out == "All records are authentic.\n"
    fleet.does("keys rotate")
    fleet.does("keys prune")
    assert len(fleet.does("keys list --json").json) == 1
    assert fleet.contents() == before


@pytest.mark.parametrize("kind", ATTACKS)
def test_rotation_does_not_sign_what_someone_changed(fleet: PoolFleet, kind: str) -> None:
    with closing(sqlite3.connect(fleet.made.sqlite_file, isolation_level=None)) as database:
        assert database.execute(ATTACKS[kind]).rowcount
    fleet.does("keys add")
    done = fleet.types("keys rotate")
    assert done.code == 3
    assert "(not authentic)" in done.err
    listed = fleet.does("records list --json").json
    assert {each["kind"] for each in listed["records"]} == {kind}


@pytest.mark.parametrize("kind", ATTACKS)
def test_changed_record_is_shown_and_used_after_acceptance(fleet: PoolFleet, kind: str) -> None:
    with closing(sqlite3.connect(fleet.made.sqlite_file, isolation_level=None)) as database:
        assert database.execute(ATTACKS[kind]).rowcount
    listed = fleet.does("records list --json").json
    for each in listed["records"]:
        assert each["kind"] == kind
        assert each["digest"] in fleet.does("records show", each["name"]).out
    fleet.does("records accept --all", "--digest", listed["digest"])
    assert fleet.does("records list").out == "All records are authentic.\n"
    shown = str(fleet.contents())
    if kind == "enrolment":
        assert "'uses': 0" in shown
    else:
        assert ("Approved" if kind == "enrolled machine" else "1000") in shown


def test_every_table_is_copied_or_known_not_to_be(fleet: PoolFleet) -> None:
    with closing(sqlite3.connect(fleet.made.sqlite_file)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables - NOT_COPIED == set(COPIED_TABLES)


@pytest.fixture
def copied(fleet: PoolFleet, tmp_path: Path) -> Iterator[Copied]:
    with postgres_server() as server:
        address = tmp_path / "address"
        address.write_text(server.new_database())
        address.chmod(0o600)
        config = tmp_path / "config.yaml"
        config.write_text(f"databaseFile: {address}\nkeysFile: {fleet.made.keys}\n")
        yield Copied(fleet, Person(tmp_path / "replica"), fleet.made.model_copy(update={"database_file": address}))


@dataclass(frozen=True)
class Copied:
    """An empty PostgreSQL database to which the fleet is copied."""

    fleet: PoolFleet
    person: Person
    made: ServiceSettings

    def types(self, *words: str) -> Outcome:
        return self.person.types(*words, "--config", str(self.person.state.with_name("config.yaml")))

    def does(self, *words: str) -> Outcome:
        done = self.types(*words)
        assert done.code == 0, done.err
        return done

    def copy(self) -> Any:
        return self.does(f"migrate --from {self.fleet.made.sqlite_file} --json").json


def test_all_data_survives_the_copy_to_postgresql(fleet: PoolFleet, copied: Copied) -> None:
    before = fleet.contents()
    assert copied.types("migrate", "--check").code == 1
    counts = {"pools": 1, "pool_revisions": 2, "enrolments": 2, "enrolled_machines": 2, "nodes": 4, "clusters": 4}
    assert copied.copy().items() >= counts.items()
    assert copied.does("migrate", "--check").out.endswith("up to date\n")
    again = copied.types("migrate", "--from", str(fleet.made.sqlite_file))
    assert "already contains rows" in again.err
    assert "pg_dump --format=custom" in copied.types("backup", "x.tar").err
    assert copied.does("records list").out == "All records are authentic.\n"
    assert fleet.contents(copied.made) == before
    fleet.check_machines_go_on(copied.made)
    copied.does("keys add")
    assert ROTATED in copied.does("keys rotate").out
    assert copied.does("records list").out == "All records are authentic.\n"


def test_copy_to_postgresql_signs_nothing_that_someone_changed(fleet: PoolFleet, copied: Copied) -> None:
    with closing(sqlite3.connect(fleet.made.sqlite_file, isolation_level=None)) as database:
        for attack in ATTACKS.values():
            assert database.execute(attack).rowcount
    copied.copy()
    listed = copied.does("records list --json").json
    assert {each["kind"] for each in listed["records"]} == set(ATTACKS)
    with serving(copied.made, fleet.clusters) as service:
        assert service.admin.pool("GET", POOL).status == 500
        open_, manual = fleet.at(service.admin)
        assert open_.enrol(open_.machine("third")).status >= 500
        assert manual.enrol(fleet.waiting).status >= 500
        assert service.admin.get(fleet.waiting.hostname).status == 404
    copied.does("records accept --all", "--digest", listed["digest"])
    assert copied.does("records list").out == "All records are authentic.\n"
