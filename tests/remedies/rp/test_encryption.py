"""The remedies of lost encryption keys, with the secrets of a real service."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.fernet import Fernet

from tests.remedies.catalogue import advice, command
from tests.remedies.rp.harness import fails, our_command, private
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.cli.cli_harness import Person
from tests.service.rp.cli.conftest import LocalService

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.settings import ServiceSettings
    from tests.remedies.rp.harness import ApiServer

ID = str(PLANT)
ON_PLANT = ("--cluster", ID)
EDGE_1 = (*ON_PLANT, "--name", "edge-1")
SECRET = "canary-8d3f-secret"


@dataclass(frozen=True)
class Keeper(LocalService):
    """A user of a service with secrets: a connection, a client secret and a configuration URL."""

    secret: Path

    def create_nodes(self) -> None:
        how = ("--auth-method", "servicePrincipal", "--client-id", "11111111-2222-3333-4444-555555555555")
        with self.serving():
            self.does("node", "create", *EDGE_1, *how, "--client-secret-file", str(self.secret))
            self.does("node", "create", *ON_PLANT, "--name", "edge-2", "--join-command")

    @property
    def keys(self) -> Path:
        return self.state / "keys"

    def lose_key(self) -> str:
        """Replaces the key file with a new key and returns the old line."""
        old = self.keys.read_text().splitlines()[-1]
        self.keys.unlink()
        self.does("keys", "add")
        return old

    def change(self, statement: str) -> None:
        """Changes the database as its administrator can."""
        with closing(sqlite3.connect(self.made.sqlite_file, isolation_level=None)) as database:
            database.execute(statement)

    @property
    def digest_of_all(self) -> str:
        """Returns the digest that a person reads in the list, as the remedies say."""
        return self.does("records", "list").out.strip().rpartition("digest of all: ")[2]


@pytest.fixture
def keeper(made: ServiceSettings, clusters: list[ClusterInfo], kubernetes: ApiServer, tmp_path: Path) -> Keeper:
    keeper = Keeper(made.state_dir, made, clusters, private(tmp_path / "secret", SECRET))
    keeper.does(*kubernetes.add())
    return keeper


@pytest.mark.remedy("decryption-failed", "record-key-missing")
def test_connection_is_decrypted_with_the_old_key_or_written_again(keeper: Keeper, kubernetes: ApiServer) -> None:
    old = keeper.lose_key()
    fails(keeper, "record-key-missing", "cluster", "check", ID)
    assert "MISSING" in keeper.does("keys", "list").out

    advice("record-key-missing", "Add the missing key as a further line of the key file")
    advice("decryption-failed", "Add the old key as another line of the key file")
    new = keeper.keys.read_text()
    private(keeper.keys, f"{new}{old}\n")
    keeper.does("cluster", "check", ID)
    private(keeper.keys, new)
    fails(keeper, "record-key-missing", "cluster", "check", ID)
    keeper.does(*our_command("record-key-missing", "records accept", DIGEST=keeper.digest_of_all))
    fails(keeper, "decryption-failed", "cluster", "check", ID)
    words = our_command("decryption-failed", "cluster add")
    keeper.does(*words, *kubernetes.add()[2:])
    keeper.does("cluster", "check", ID)


@pytest.mark.remedy("decryption-failed")
def test_secret_of_node_is_decrypted_with_the_old_key_or_written_again(keeper: Keeper) -> None:
    keeper.create_nodes()
    old = keeper.lose_key()
    show = ("node", "credentials", *EDGE_1)
    with keeper.serving() as service:
        fails(keeper, "request-rejected", *show)
        assert "record-key-missing: " in service.log
        new = keeper.keys.read_text()
        private(keeper.keys, f"{new}{old}\n")
    advice("decryption-failed", "as another line of the key file and restart the service")
    with keeper.serving():
        assert SECRET in keeper.does(*show).out

    private(keeper.keys, new)  # the key is lost
    with keeper.serving() as service:
        fails(keeper, "request-rejected", *show)
        keeper.does(*our_command("decryption-failed", "records accept", DIGEST=keeper.digest_of_all))
        fails(keeper, "request-rejected", *show)
        assert "decryption-failed: " in service.log
        words = our_command("decryption-failed", "node update")
        keeper.does(*words, *EDGE_1, "--client-secret-file", str(keeper.secret))
        assert SECRET in keeper.does(*show).out


@pytest.mark.remedy("encryption-keys-incomplete")
def test_rotation_is_completed_with_the_old_key(keeper: Keeper) -> None:
    old = keeper.lose_key()
    fails(keeper, "encryption-keys-incomplete", "keys", "rotate")

    advice("encryption-keys-incomplete", "Add the old key as another line of the key file")
    private(keeper.keys, f"{keeper.keys.read_text()}{old}\n")
    keeper.does(*our_command("encryption-keys-incomplete", "keys rotate"))
    assert "MISSING" not in keeper.does("keys", "list").out


@pytest.mark.remedy("encryption-keys-incomplete")
def test_rotation_is_completed_when_lost_secrets_are_set_again(keeper: Keeper, kubernetes: ApiServer) -> None:
    keeper.create_nodes()
    keeper.lose_key()
    said = fails(keeper, "encryption-keys-incomplete", "keys", "rotate").err
    assert "edge-1" in said
    assert "edge-2" in said

    keeper.does(*our_command("encryption-keys-incomplete", "records accept", DIGEST=keeper.digest_of_all))
    words = our_command("encryption-keys-incomplete", "cluster add")
    keeper.does(*words, *kubernetes.add()[2:])
    with keeper.serving():
        update = our_command("encryption-keys-incomplete", "node update", FILE=str(keeper.secret))
        keeper.does(*update, *EDGE_1)
        keeper.does(*our_command("encryption-keys-incomplete", "node join-command", NODE="edge-2"), *ON_PLANT)
    keeper.does(*our_command("encryption-keys-incomplete", "keys rotate"))


@pytest.mark.remedy("encryption-keys-missing")
def test_no_key_is_created_for_a_database_with_records(keeper: Keeper, kubernetes: ApiServer, tmp_path: Path) -> None:
    """Attack: a job without the keys writes with a key of its own what no replica can verify."""
    name, kept = "encryption-keys-missing", tmp_path / "kept"
    keeper.keys.rename(kept)
    for words in (("init",), ("migrate",), ("cluster", "list"), ("records", "list"), ("keys", "rotate")):
        fails(keeper, name, *words)
    assert not keeper.keys.exists()

    [setting] = command(name, "keysFile")
    config = private(tmp_path / "config.yaml", f"{setting}: {kept}\n")
    keeper.does("cluster", "check", ID, "--config", str(config))
    [variable] = command(name, "AKS_FLEX_RP_KEYS")
    keeper.does("cluster", "check", ID, env={variable: kept.read_text().splitlines()[-1]})
    keeper.does(*our_command(name, "keys add"))  # the keys are lost
    assert [each["use"] for each in keeper.does("keys", "list", "--json").json] == ["seals", "MISSING"]
    keeper.does(*our_command(name, "records accept", DIGEST=keeper.digest_of_all))
    advice(name, "then add the clusters and set the secrets again")
    keeper.does(*kubernetes.add())
    keeper.does("cluster", "check", ID)


def test_database_is_migrated_before_its_records_are_reviewed(keeper: Keeper) -> None:
    """The database exists, but the program was interrupted before it created the tables."""
    keeper.made.sqlite_file.unlink()
    keeper.made.sqlite_file.touch()
    for words in (("records", "list"), ("records", "accept", "--all", "--digest", "any")):
        fails(keeper, "database-schema-older", *words)
    keeper.does("migrate")
    assert keeper.does("records", "list").out == "All records are authentic.\n"


def test_new_key_is_put_at_the_start_of_the_variable(made: ServiceSettings, kubernetes: ApiServer) -> None:
    keeper, (present, newer) = Person(made.state_dir), (Fernet.generate_key().decode() for _ in range(2))
    env = {"AKS_FLEX_RP_KEYS": present}
    keeper.does(*kubernetes.add(), env=env)
    fails(keeper, "encryption-keys-in-environment", "keys", "add", env=env)

    env = {"AKS_FLEX_RP_KEYS": f"{newer},{present}"}
    assert [each["use"] for each in keeper.does("keys", "list", "--json", env=env).json] == ["seals", "opens"]
    keeper.does("keys", "rotate", env=env)
    assert [each["sealed"] for each in keeper.does("keys", "list", "--json", env=env).json] == ["1", "0"]


@pytest.fixture
def backup(keeper: Keeper, tmp_path: Path) -> str:
    """Returns a backup of a service with two nodes."""
    keeper.create_nodes()
    file = str(tmp_path / "backup.tar")
    keeper.does("backup", file)
    return file


@pytest.mark.remedy("record-refused")
def test_changed_record_is_restored_or_accepted(keeper: Keeper, backup: str) -> None:
    """Attack: a database administrator changes what runs on a node."""
    attack = "UPDATE nodes SET config = replace(config, '1.34', '1.33') WHERE key = 'edge-1'"
    show, other = (("node", "show", *ON_PLANT, "--name", name) for name in ("edge-1", "edge-2"))

    with keeper.serving() as service:
        keeper.change(attack)
        said = fails(keeper, "request-rejected", *show).err
        assert "edge-1 is refused" in said
        assert "`aks-flex-rp records show edge-1`" in said
        assert "`aks-flex-rp records accept edge-1 --digest DIGEST`" in said
        assert "`aks-flex-rp explain record-refused`" in said
        in_list = next(each for each in keeper.does("node", "list", *ON_PLANT).out.splitlines() if "edge-1" in each)
        assert in_list.endswith("RecordRefused: its content does not match its authentication code.")
        keeper.does(*other)
        assert "record-refused: " in service.log
        assert "record.refused" in keeper.does("audit", *ON_PLANT, "--node", "edge-1").out
    [listed] = keeper.does("records", "list", "--json").json["records"]
    assert (listed["name"], listed["state"]) == ("edge-1", "wrong")

    advice("record-refused", "Stop the service and restore a backup")
    keeper.does("restore", backup, "--yes")
    with keeper.serving():
        keeper.does(*show)
        keeper.change(attack)
        fails(keeper, "request-rejected", *show)
        fails(keeper, "record-name-required", "records", "accept")
        fails(keeper, "record-name-required", "records", "accept", "edge-1")
        fails(keeper, "record-not-refused", "records", "accept", "edge-2", "--digest", "x")
        fails(keeper, "record-not-refused", "records", "show", "edge-2")
        [reviewed] = keeper.does(*our_command("record-refused", "records show", NAME="edge-1"), "--json").json
        assert "1.33" in reviewed["config"]
        keeper.does(*our_command("record-refused", "records accept NAME", NAME="edge-1", DIGEST=reviewed["digest"]))
        keeper.does(*show)
    assert keeper.does("records", "list").out == "All records are authentic.\n"


def test_record_that_changed_after_the_review_is_not_accepted(keeper: Keeper) -> None:
    """Attack: a database administrator shows one content for the review, and has another one accepted."""
    keeper.create_nodes()
    keeper.change("UPDATE nodes SET config = replace(config, '1.34', '1.33') WHERE key = 'edge-1'")
    [reviewed] = keeper.does("records", "show", "edge-1", "--json").json
    before_all = keeper.digest_of_all
    keeper.change("UPDATE nodes SET config = replace(config, '1.33', '1.32') WHERE key = 'edge-1'")

    fails(keeper, "record-changed", "records", "accept", "edge-1", "--digest", reviewed["digest"])
    fails(keeper, "record-changed", "records", "accept", "--all", "--digest", before_all)

    show = ("records", "show", "edge-1")
    assert SECRET not in keeper.does(*show).out
    [again] = keeper.does(*show, "--json").json
    assert "1.32" in again["config"]
    keeper.does("records", "accept", "edge-1", "--digest", again["digest"])
    assert keeper.does("records", "list").out == "All records are authentic.\n"


HOSTILE = "edge\x1b[1A\x1b[2K\u202e\x9b\u05d0\n"  # moves the cursor, erases a line and reverses the text


def test_review_shows_characters_that_would_hide_content(keeper: Keeper) -> None:
    """Attack: control characters in a record hide from the reviewer what is accepted."""
    keeper.create_nodes()
    literal = " || ".join(f"char({ord(each)})" for each in HOSTILE)
    keeper.change(f"UPDATE nodes SET etag = {literal} WHERE key = 'edge-1'")  # noqa: S608 - the attack
    keeper.change(f"UPDATE nodes SET key = {literal} WHERE key = 'edge-2'")  # noqa: S608 - the attack
    shown = "edge\\x1b[1A\\x1b[2K\\u202e\\x9b\\u05d0\\n"

    for words in (["list"], ["show", "edge-1"], ["show", shown]):
        text, document = keeper.does("records", *words), keeper.does("records", *words, "--json")
        assert shown in text.out
        for out in (text.out, document.out):
            assert all(each == "\n" or " " <= each <= "~" for each in out)
        assert HOSTILE in {value for each in _records(document.json) for value in each.values()}, "exact for programs"
    [reviewed] = keeper.does("records", "show", "edge-1", "--json").json
    fails(keeper, "record-unusable", "records", "accept", "edge-1", "--digest", reviewed["digest"])


def _records(document: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["records"] if isinstance(document, dict) else document
    return found


@pytest.mark.remedy("record-unusable")
def test_record_that_the_service_cannot_use_is_restored(keeper: Keeper, backup: str) -> None:
    """Attack: a number at the end of its range would make every later change of the node fail."""
    for content in (f"version = {2**63 - 1}", "secrets = 7, version = 1", "config = x'00'", "etag = char(27)"):
        keeper.change(f"UPDATE nodes SET {content} WHERE key = 'edge-2'")  # noqa: S608 - the attack
        fails(keeper, "record-unusable", "records", "accept", "--all", "--digest", keeper.digest_of_all)

    keeper.does(*our_command("record-unusable", "restore", FILE=backup), "--yes")
    assert keeper.does("records", "list").out == "All records are authentic.\n"


def test_accepted_record_with_the_largest_revision_can_be_changed(keeper: Keeper) -> None:
    keeper.create_nodes()
    keeper.change("UPDATE nodes SET revision = 9223372036854775807 WHERE key = 'edge-1'")
    keeper.does("records", "accept", "--all", "--digest", keeper.digest_of_all)
    with keeper.serving():
        keeper.does("node", "update", *EDGE_1, "--client-secret-file", str(keeper.secret))
        keeper.does("node", "delete", *EDGE_1, "--yes")


@pytest.mark.remedy("record-outdated")
def test_record_that_a_failover_lost_is_used_after_a_restart(keeper: Keeper) -> None:
    """Attack: an earlier content of a row is put back. A failover that loses transactions has the same effect."""
    show = ("node", "show", *EDGE_1)
    keeper.create_nodes()
    with keeper.serving() as service:
        keeper.change("CREATE TABLE lost AS SELECT * FROM nodes")
        keeper.does("node", "update", *EDGE_1, "--pause")
        keeper.does(*show)
        keeper.change("DELETE FROM nodes")
        keeper.change("INSERT INTO nodes SELECT * FROM lost")
        said = fails(keeper, "request-rejected", *show).err
        assert "restart all replicas of the service" in said
        assert "records accept" not in said
        assert "record-outdated: " in service.log
        assert keeper.does("records", "list").out == "All records are authentic.\n"

    advice("record-outdated", "restart all replicas of the service")
    with keeper.serving():
        keeper.does(*show)
