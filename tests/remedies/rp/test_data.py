"""The remedies of errors of the database, its backups and its storage accounts."""

from __future__ import annotations

import os
import shlex
import sqlite3
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.remedies.rp.harness import fails, our_command, private
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.cli.cli_harness import Person
from tests.service.rp.store.servers import find_programs, postgres_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.remedies.rp.harness import ApiServer
    from tests.service.rp.store.servers import PostgresServer


@pytest.fixture
def owner(somebody: Person) -> Person:
    somebody.does("migrate")  # creates the database
    return somebody


def damage(owner: Person, place: int, size: int) -> None:
    """Overwrites a part of the database."""
    with (owner.state / "flex.db").open("r+b") as database:
        database.seek(place)
        database.write(b"\xff" * size)


@pytest.mark.remedy("database-schema-newer")
def test_backup_from_before_the_upgrade_is_restored(owner: Person, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup.tar")
    owner.does("backup", backup)
    with closing(sqlite3.connect(owner.state / "flex.db", isolation_level=None)) as newer:
        newer.execute("INSERT INTO schema_version (version) VALUES (999)")
    fails(owner, "database-schema-newer", "cluster", "list")

    owner.does(*our_command("database-schema-newer", "restore", FILE=backup), "--yes")
    owner.does("cluster", "list")


@pytest.mark.remedy("backup-corrupt")
@pytest.mark.parametrize("place", [0, 4096], ids=["header", "page"])
def test_earlier_backup_is_restored_over_a_damaged_database(owner: Person, tmp_path: Path, place: int) -> None:
    backup, later = str(tmp_path / "backup.tar"), str(tmp_path / "later.tar")
    owner.does("backup", backup)
    damage(owner, place, 4096)
    fails(owner, "backup-corrupt", "backup", later)

    owner.does(*our_command("backup-corrupt", "restore", FILE=backup), "--yes")
    owner.does("backup", later)


@pytest.mark.remedy("database-corrupt")
@pytest.mark.parametrize("place", [0, 4096], ids=["header", "page"])
def test_backup_is_restored_over_a_corrupt_database(owner: Person, tmp_path: Path, place: int) -> None:
    backup = str(tmp_path / "backup.tar")
    owner.does("backup", backup)
    damage(owner, place, 4096 * 200)
    for words in (("cluster", "list"), ("keys", "list"), ("migrate",)):
        fails(owner, "database-corrupt", *words)

    owner.does(*our_command("database-corrupt", "restore", FILE=backup), "--yes")
    owner.does("cluster", "list")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


def test_printed_commands_back_up_and_restore_postgresql(
    somebody: Person, server: PostgresServer, kubernetes: ApiServer, tmp_path: Path
) -> None:
    address = private(tmp_path / "address", server.new_database())
    config = private(tmp_path / "config.yaml", yaml.safe_dump({"databaseFile": str(address)}))
    option, backup = ("--config", str(config)), str(tmp_path / "flex.dump")
    somebody.does("cluster", "add", str(PLANT), "--kubeconfig", str(kubernetes.kubeconfig()), *option)
    said = fails(somebody, "backup-postgres-unsupported", "backup", backup, *option).err

    def run(program: str) -> None:
        [line] = [line for line in said.splitlines() if f"  {program} " in line]
        paths = f"{find_programs()}:{os.environ['PATH']}"
        subprocess.run(shlex.split(line), env={**os.environ, "PATH": paths}, check=True, timeout=60)

    run("pg_dump")
    somebody.does("cluster", "remove", str(PLANT), *option)
    assert "Plant" not in somebody.does("cluster", "list", *option).out
    run("pg_restore")
    assert "Plant" in somebody.does("cluster", "list", *option).out


def test_command_without_the_data_that_it_needs_is_refused(owner: Person, tmp_path: Path) -> None:
    fails(Person(tmp_path / "elsewhere"), "database-not-found", "cluster", "list")
    fails(owner, "backup-unreadable", "restore", str(tmp_path / "missing.tar"), "--yes")
    fails(owner, "migration-target-missing", "migrate", "--from", str(owner.state / "flex.db"))
    config = private(tmp_path / "config.yaml", yaml.safe_dump({"delivery": {"method": "azureBlob", "azureBlob": {}}}))
    fails(owner, "service-config-invalid", "init", "--config", str(config))
