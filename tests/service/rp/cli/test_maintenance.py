"""Tests of backup, keys, audit and migration to PostgreSQL, with the data of a real service."""

from __future__ import annotations

import io
import sqlite3
import stat
import tarfile
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.cli.command_context import ServiceOptions
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.cli.cli_harness import Person
from tests.service.rp.cli.conftest import LocalService, add_clusters

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.settings import ServiceSettings

CLIENT = "11111111-2222-3333-4444-555555555555"
CANARY = "canary-8d3f-secret"


@pytest.fixture
def worked(made: ServiceSettings, clusters: list[ClusterInfo], tmp_path: Path) -> LocalService:
    """Returns the user of a service with a node with a secret, one with a pending bundle, and a deleted one."""
    person, secret = LocalService(made.state_dir, made, clusters), tmp_path / "secret"
    secret.write_text(CANARY)
    secret.chmod(0o600)
    add_clusters(made, clusters)
    with person.serving():
        how = ("--auth-method", "servicePrincipal", "--client-id", CLIENT, "--client-secret-file", str(secret))
        person.does("node create --cluster plant --name edge-1", *how)
        person.does("node create --cluster plant --name edge-2 --join-command")
        person.does("node create --cluster plant --name gone")
        person.does("node delete --cluster plant --name gone --yes")
    return person


def secret_of(worked: LocalService) -> str:
    with worked.serving():
        found = worked.does("node credentials --cluster plant --name edge-1 --json").json
        return str(found["servicePrincipal"]["clientSecret"])


def test_backup_is_complete_and_private_and_reports_missing_keys(worked: LocalService, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"

    done = worked.does(f"backup {file}")
    assert "clusters: 4, nodes: 2" in done.out
    assert "NOT IN THIS BACKUP" in done.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert CANARY.encode() not in file.read_bytes()
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["manifest.json", "flex.db"]


def test_backup_works_while_service_is_running(worked: LocalService, tmp_path: Path) -> None:
    with worked.serving():
        assert "nodes: 2" in worked.does(f"backup {tmp_path}/backup.tar").out


def test_restore_recovers_backed_up_data_and_keeps_replaced_database(worked: LocalService, tmp_path: Path) -> None:
    worked.does(f"backup {tmp_path}/backup.tar")
    with worked.serving():
        worked.does("node delete --cluster plant --name edge-1 --yes")

    done = worked.does(f"restore {tmp_path}/backup.tar --yes --json").json
    assert secret_of(worked) == CANARY
    assert done["sealedWithoutKey"] == 0
    with closing(sqlite3.connect(f"{done['aside']}/flex.db")) as aside:
        assert aside.execute("SELECT count(*) FROM nodes WHERE gone = 0").fetchone() == (1,)


def test_restore_without_terminal_and_yes_is_refused(worked: LocalService, tmp_path: Path) -> None:
    worked.does(f"backup {tmp_path}/backup.tar")
    before = sorted(each.name for each in worked.state.iterdir())

    refused = worked.types(f"restore {tmp_path}/backup.tar")

    assert refused.code == 2
    assert "--yes" in refused.err
    assert sorted(each.name for each in worked.state.iterdir()) == before


def test_restore_does_not_recover_sessions(worked: LocalService, tmp_path: Path) -> None:
    def sessions(*statements: str) -> list[tuple[str]]:
        with closing(sqlite3.connect(worked.made.sqlite_file, isolation_level=None)) as file:
            for each in statements:
                file.execute(each)
            return file.execute("SELECT id FROM sessions").fetchall()

    assert sessions(
        "INSERT INTO sessions (id, caller, proof, expires, used, checked, refresh, code)"
        " VALUES ('thief', '{}', 'proof', 1e12, 1, 0, '', '')"
    )
    worked.does(f"backup {tmp_path}/backup.tar")
    sessions("DELETE FROM sessions")  # a user signs out
    worked.does(f"restore {tmp_path}/backup.tar --yes")
    assert sessions() == []


def test_restore_on_empty_machine_is_complete_only_with_keys(worked: LocalService, tmp_path: Path) -> None:
    bare, whole = tmp_path / "bare.tar", tmp_path / "whole.tar"
    worked.does(f"backup {bare}")
    worked.does(f"backup {whole} --with-keys")

    without, complete = Person(tmp_path / "without"), Person(tmp_path / "complete")
    assert "KEYS ARE MISSING: 8 records" in without.does(f"restore {bare}").err
    assert complete.does(f"restore {whole} --json").json["sealedWithoutKey"] == 0
    for name in ("keys", "admin.key", "tls/ca.crt"):
        assert (complete.state / name).read_bytes() == (worked.state / name).read_bytes()
        assert stat.S_IMODE((complete.state / name).stat().st_mode) == 0o600


def test_restore_is_refused_while_service_is_running(worked: LocalService, tmp_path: Path) -> None:
    worked.does(f"backup {tmp_path}/backup.tar")

    with worked.serving():
        refused = worked.types(f"restore {tmp_path}/backup.tar --yes")
    assert refused.code == 7
    assert "A service is running from" in refused.err


def test_restore_ignores_write_ahead_log_of_crashed_service(worked: LocalService, tmp_path: Path) -> None:
    worked.does(f"backup {tmp_path}/backup.tar")
    crashed = sqlite3.connect(worked.made.sqlite_file, isolation_level=None)
    crashed.execute("PRAGMA journal_mode = WAL")
    crashed.execute("DELETE FROM nodes")
    left = worked.made.sqlite_file.with_name("flex.db-wal").read_bytes()
    crashed.close()
    worked.made.sqlite_file.with_name("flex.db-wal").write_bytes(left)

    worked.does(f"restore {tmp_path}/backup.tar --yes")
    assert secret_of(worked) == CANARY


@pytest.mark.parametrize("harm", ["nothing", "text", "cut", "one bit"])
def test_restore_of_damaged_backup_changes_nothing(worked: LocalService, tmp_path: Path, harm: str) -> None:
    file = tmp_path / "backup.tar"
    worked.does(f"backup {file}")
    content, before = file.read_bytes(), worked.made.sqlite_file.read_bytes()
    half = len(content) // 2
    wrong = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
    file.write_bytes({"nothing": b"", "text": b"hello", "cut": content[:half], "one bit": wrong}[harm])

    assert worked.types(f"restore {file} --yes").code == 3
    assert worked.made.sqlite_file.read_bytes() == before


@pytest.mark.parametrize("manifest", [b"[]", b"[" * 100_000, b'{"made": ""}'], ids=["a list", "deep", "half of one"])
def test_restore_of_archive_with_invalid_manifest_is_refused(
    worked: LocalService, tmp_path: Path, manifest: bytes
) -> None:
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(manifest)
        archive.addfile(entry, io.BytesIO(manifest))

    refused = worked.types(f"restore {tmp_path}/other.tar --yes")

    assert (refused.code, "cannot be read" in refused.err) == (3, True)


def test_key_rotation_is_refused_until_service_has_loaded_newest_key(worked: LocalService) -> None:
    with worked.serving():
        worked.does("keys add")
        refused = worked.types("keys rotate")
        assert refused.code == 7
        assert "\n  service-restart-required" in refused.err
    with worked.serving():
        worked.does("keys rotate")
        assert worked.does("node credentials --cluster plant --name edge-1 --json").json["servicePrincipal"]


def test_key_rotation_reports_undecryptable_secret_and_rotates_the_rest(worked: LocalService) -> None:
    with closing(sqlite3.connect(worked.made.sqlite_file, isolation_level=None)) as database:
        database.execute("UPDATE nodes SET secrets = randomblob(60) WHERE key = 'edge-1'")
    worked.does("keys add")

    done = worked.types("keys rotate")
    assert done.code == 3
    assert f"node {PLANT.key}/edge-1 (not authentic)" in done.err
    assert "pending config bundles: 1, clusters: 4, nodes: 2" in done.out


def test_audit_command_filters_events_by_time_node_action_and_caller(worked: LocalService) -> None:
    with worked.serving():
        everything = worked.does("audit --since 1h --json").json
        one = worked.does("audit --cluster plant --node edge-2")
        assert worked.does("audit --what delete --limit 1 --json").json[0]["resource"].endswith("gone")
        assert worked.does("audit --since 2000-01-01 --who nobody").out == "No events.\n"

    assert [each["what"] for each in everything] == ["delete", "create", "create", "create"]
    assert "edge-2" in one.out
    assert "edge-1" not in one.out


def test_cli_client_reads_all_pages_of_audit(worked: LocalService) -> None:
    with worked.serving():
        found = list(ServiceOptions(state=worked.state).client.audit(page_size=3))

    assert [each["sequence"] for each in found] == [4, 3, 2, 1]
