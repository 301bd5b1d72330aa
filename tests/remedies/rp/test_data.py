"""The remedies of errors of the database, its backups and its storage accounts."""

from __future__ import annotations

import base64
import os
import shlex
import sqlite3
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

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


def test_state_directory_is_named_or_database_is_created(owner: Person, tmp_path: Path) -> None:
    elsewhere = Person(tmp_path / "elsewhere")
    fails(elsewhere, "database-not-found", "cluster", "list")

    elsewhere.does("cluster", "list", "--state", str(owner.state))
    variable = "AKS_FLEX_RP_STATE"
    elsewhere.does("cluster", "list", env={variable: str(owner.state)})
    elsewhere.does("init")
    elsewhere.does("cluster", "list")


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
    with (owner.state / "flex.db").open("r+b") as database:
        database.seek(place)
        database.write(b"\xff" * 4096)
    fails(owner, "backup-corrupt", "backup", later)

    owner.does(*our_command("backup-corrupt", "restore", FILE=backup), "--yes")
    owner.does("backup", later)


@pytest.mark.remedy("database-corrupt")
@pytest.mark.parametrize("place", [0, 4096], ids=["header", "page"])
def test_backup_is_restored_over_a_corrupt_database(owner: Person, tmp_path: Path, place: int) -> None:
    backup = str(tmp_path / "backup.tar")
    owner.does("backup", backup)
    with (owner.state / "flex.db").open("r+b") as database:
        database.seek(place)
        database.write(b"\xff" * 4096 * 200)
    for words in (("cluster", "list"), ("keys", "list"), ("migrate",)):
        fails(owner, "database-corrupt", *words)

    owner.does(*our_command("database-corrupt", "restore", FILE=backup), "--yes")
    owner.does("cluster", "list")


def test_path_is_corrected_or_an_earlier_backup_is_used(owner: Person, tmp_path: Path) -> None:
    earlier, damaged = tmp_path / "earlier.tar", tmp_path / "damaged.tar"
    owner.does("backup", str(earlier))
    content = earlier.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    for wrong in (damaged, tmp_path / "missing.tar"):
        fails(owner, "backup-unreadable", "restore", str(wrong), "--yes")

    owner.does("restore", str(earlier), "--yes")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


def with_database(folder: Path, address: str, **more: Any) -> tuple[str, str]:
    """Writes the address into a private file and returns the option for a configuration that names it."""
    file = private(folder / "address", address)
    config = private(folder / "config.yaml", yaml.safe_dump({"databaseFile": str(file), **more}))
    return "--config", str(config)


def test_database_is_copied_into_the_empty_one_of_the_configuration(
    owner: Person, server: PostgresServer, kubernetes: ApiServer, tmp_path: Path
) -> None:
    owner.does("cluster", "add", str(PLANT), "--kubeconfig", str(kubernetes.kubeconfig()))
    migrate = ("migrate", "--from", str(owner.state / "flex.db"))
    fails(owner, "migration-target-missing", *migrate)

    option = with_database(tmp_path, server.new_database())
    owner.does(*migrate, *option)
    fails(owner, "database-not-empty", *migrate, *option)
    assert "Plant" in owner.does("cluster", "list", *option).out
    owner.does(*migrate, *with_database(tmp_path, server.new_database()))


def test_printed_commands_back_up_and_restore_postgresql(
    somebody: Person, server: PostgresServer, kubernetes: ApiServer, tmp_path: Path
) -> None:
    option, backup = with_database(tmp_path, server.new_database()), str(tmp_path / "flex.dump")
    somebody.does("cluster", "add", str(PLANT), "--kubeconfig", str(kubernetes.kubeconfig()), *option)
    said = fails(somebody, "backup-postgres-unsupported", "backup", backup, *option).err
    commands = {
        name: line for line in said.splitlines() for name in ("pg_dump", "pg_restore") if f"  {name} " in line
    }

    def run(start: str) -> None:
        [name] = [each for each in commands if each == start]
        paths = f"{find_programs()}:{os.environ['PATH']}"
        subprocess.run(shlex.split(commands[name]), env={**os.environ, "PATH": paths}, check=True, timeout=60)

    run("pg_dump")
    somebody.does("cluster", "remove", str(PLANT), *option)
    assert "Plant" not in somebody.does("cluster", "list", *option).out
    run("pg_restore")
    assert "Plant" in somebody.does("cluster", "list", *option).out


ACCOUNT_KEY = base64.b64encode(bytes(64)).decode()
CONNECTION = (
    f"DefaultEndpointsProtocol=https;AccountName=flex;AccountKey={ACCOUNT_KEY};EndpointSuffix=core.windows.net"
)


def blob_config(folder: Path, **account: str) -> tuple[str, str]:
    document = {"delivery": {"method": "azureBlob", "azureBlob": account}}
    return "--config", str(private(folder / "config.yaml", yaml.safe_dump(document)))


def test_storage_account_is_named_by_file_or_url(somebody: Person, tmp_path: Path) -> None:
    fails(somebody, "blob-account-missing", "init", *blob_config(tmp_path))

    file = private(tmp_path / "connection", CONNECTION)
    setting = "delivery.azureBlob.connectionStringFile"
    somebody.does("init", *blob_config(tmp_path, **{setting.rpartition(".")[2]: str(file)}))
    setting = "delivery.azureBlob.accountUrl"
    url = "https://flex.blob.core.windows.net"
    somebody.does("init", *blob_config(tmp_path, **{setting.rpartition(".")[2]: url}))
