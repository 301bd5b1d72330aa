"""Backs up and restores a service that uses SQLite.

A backup is one archive with a consistent copy of the database and, on request, the encryption keys. For PostgreSQL
the command prints the `pg_dump` and `pg_restore` commands instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node import __version__
from aks_flex_node.errors import ConfigError
from aks_flex_node.timestamps import format_utc
from aks_flex_rp import instance_lock, key_rotation, raw_database
from aks_flex_rp.crypto import encryption
from aks_flex_rp.store import migrations
from aks_flex_rp.store.model import DatabaseCorrupt, SchemaTooNew
from aks_flex_rp.store.postgres_address import without_secrets
from aks_flex_rp.store.sqlite import connect, copy_database, store_error, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.settings import ServiceSettings

FORMAT_VERSION = 1
MANIFEST, DATABASE, KEYS, ADMIN, TLS = "manifest.json", "flex.db", "keys", "admin.key", "tls/"


@dataclass(frozen=True)
class BackupManifest:
    """Manifest of a backup: when and by which version it was made, its counts, and the checksum of each file."""

    made: str
    program: str
    clusters: int
    nodes: int
    events: int
    keys: bool  # whether the encryption keys, the admin key and the CA are included
    sums: dict[str, str]  # SHA-256 of each file
    form: int = FORMAT_VERSION


@dataclass(frozen=True)
class RestoreResult:
    manifest: BackupManifest
    aside: Path | None  # directory with the replaced files
    keys_missing: int  # sealed values that no available key can decrypt


def create_backup(settings: ServiceSettings, target: Path, *, with_keys: bool = False) -> BackupManifest:
    """Creates a backup at `target` and syncs it to disk.

    An existing file is replaced only when the backup is complete.
    """
    refuse_postgres(settings, target)
    raw_database.open_sqlite(settings.sqlite_file).close()
    with _temporary_directory(target.absolute().parent) as directory:
        copy = directory / DATABASE
        try:
            copy_database(settings.sqlite_file, copy)
        except sqlite3.DatabaseError as error:
            failure = store_error(error)
            raise _corrupt(error) if isinstance(failure, DatabaseCorrupt) else failure from None
        check_database(copy)
        files = {DATABASE: copy, **(_keys(settings) if with_keys else {})}
        sums = {name: _sum(file) for name, file in files.items()}
        manifest = BackupManifest(format_utc(time.time()), __version__, *_counts(copy), keys=with_keys, sums=sums)
        packed = directory / "packed"
        _pack(packed, manifest, files)
        packed.replace(target)
    sync_directory(target.absolute().parent)
    return manifest


def refuse_postgres(settings: ServiceSettings, target: Path) -> None:
    address = raw_database.postgres_text(settings)
    if not address:
        return
    shown = without_secrets(address)
    raise ConfigError(
        "backup-postgres-unsupported",
        "Backups of a PostgreSQL database are made with its own tools:\n"
        f"  pg_dump --format=custom --no-owner --file={target} '{shown}'\n"
        f"  pg_restore --clean --if-exists --no-owner --dbname='{shown}' {target}",
        f"Set the password in `~/.pgpass` or `PGPASSWORD`. Also back up the keys ({settings.keys}): "
        "without them the secrets in the database cannot be decrypted. Stop all replicas before you restore.",
    )


def restore_backup(settings: ServiceSettings, source: Path) -> RestoreResult:
    """Restores a backup into a state directory that no service uses.

    The whole backup is verified before any change.
    """
    refuse_postgres(settings, source)
    with instance_lock.exclusive(settings.state_dir), _temporary_directory(settings.state_dir) as directory:
        manifest = _unpack(source, directory)
        check_database(directory / DATABASE)
        # A user who signed out after the backup must not be signed in again.
        with closing(connect((directory / DATABASE).as_uri())) as connection:
            connection.execute("DELETE FROM sessions")
        # The database is last: replacing it completes the restore.
        names = sorted(filter(_ours, manifest.sums), key=lambda name: name == DATABASE)
        targets = {directory / name: _place(settings, name) for name in names}
        aside = _set_aside(settings, targets)
        for file, target in targets.items():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.replace(target)
            encryption.keep_owner(target)
            sync_directory(target.parent)
        return RestoreResult(manifest, aside, _unopenable(settings))


def check_database(file: Path) -> None:
    """Raises an error if the file is not an intact database, or has a newer schema version than this program
    supports.
    """
    try:
        with closing(connect(f"{file.as_uri()}?mode=ro")) as connection:
            [(check_result,)] = connection.execute("PRAGMA integrity_check(1)").fetchall()
            version = connection.execute(migrations.READ_VERSION).fetchone()[0]
    except sqlite3.Error as error:
        check_result, version = str(error), 0
    if check_result != "ok":
        raise _corrupt(check_result)
    if version > raw_database.newest_schema_version():
        raise SchemaTooNew(version, raw_database.newest_schema_version())


def _corrupt(check_result: object) -> ConfigError:
    return ConfigError("backup-corrupt", f"The database is corrupt: {check_result}.", "Use an earlier backup.")


def _counts(file: Path) -> tuple[int, int, int]:
    with closing(connect(f"{file.as_uri()}?mode=ro")) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM clusters), (SELECT count(*) FROM nodes WHERE gone = 0),"
            " (SELECT count(*) FROM audit)"
        ).fetchone()
    return int(found[0]), int(found[1]), int(found[2])


def _keys(settings: ServiceSettings) -> dict[str, Path]:
    tls = settings.state_dir / TLS
    certificates = [f"{TLS}{each.name}" for each in (sorted(tls.iterdir()) if tls.is_dir() else ()) if each.is_file()]
    found = {name: _place(settings, name) for name in (KEYS, ADMIN, *certificates)}
    return {name: file for name, file in found.items() if file.exists()}


def _place(settings: ServiceSettings, name: str) -> Path:
    """Returns the file of the service that has this name in a backup."""
    known = {DATABASE: settings.sqlite_file, KEYS: settings.keys, ADMIN: settings.admin_key_file}
    return known.get(name, settings.state_dir / name)


def _pack(target: Path, manifest: BackupManifest, files: dict[str, Path]) -> None:
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as opened:
        with tarfile.open(fileobj=opened, mode="w") as archive:
            manifest_json = json.dumps(asdict(manifest)).encode()
            entry = tarfile.TarInfo(MANIFEST)
            entry.size, entry.mode = len(manifest_json), 0o600
            archive.addfile(entry, io.BytesIO(manifest_json))
            for name, file in files.items():
                archive.add(file, name, recursive=False)
        opened.flush()
        os.fsync(opened.fileno())


def _unpack(source: Path, directory: Path) -> BackupManifest:
    """Extracts only the known files of a backup, whatever paths the archive contains, each with mode 0600."""
    try:
        with tarfile.open(source) as archive:
            entries = {entry.name: entry for entry in archive.getmembers() if entry.isfile()}
            document = json.loads(_content(archive, entries[MANIFEST]).read())
            manifest = BackupManifest(**document)
            for name in filter(_ours, manifest.sums):
                file = directory / name
                file.parent.mkdir(mode=0o700, exist_ok=True)
                handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(handle, "wb") as opened:
                    shutil.copyfileobj(_content(archive, entries[name]), opened)
                    opened.flush()
                    os.fsync(opened.fileno())
                if _sum(directory / name) != manifest.sums[name]:
                    raise ValueError(name)
    except (OSError, tarfile.TarError, KeyError, TypeError, ValueError, RecursionError) as error:
        why = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else "not a backup of this service, or corrupt"
        )
        hint = "Check the path, or use an earlier backup."
        raise ConfigError("backup-unreadable", f"The backup {source} cannot be read: {why}.", hint) from None
    if manifest.form > FORMAT_VERSION or not (directory / DATABASE).exists():
        hint = "Restore it with the version that created it, or use an earlier backup."
        raise ConfigError(
            "backup-unreadable", f"The backup {source} was created by a newer version, or is incomplete.", hint
        )
    return manifest


def _ours(name: str) -> bool:
    return name in {DATABASE, KEYS, ADMIN} or (name.startswith(TLS) and Path(name).name == name.removeprefix(TLS))


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> io.BufferedIOBase:
    found = archive.extractfile(entry)
    if found is None:
        raise ValueError(entry.name)
    return found  # type: ignore[return-value]


def _sum(file: Path) -> str:
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def _set_aside(settings: ServiceSettings, targets: dict[Path, Path]) -> Path | None:
    """Hard-links the existing files into a new directory, so that each is replaced atomically and none is ever
    missing.
    """
    there = [target for target in targets.values() if target.exists()]
    if not there:
        return None
    stamp = time.strftime("replaced-%Y%m%dT%H%M%SZ-", time.gmtime())
    aside = Path(tempfile.mkdtemp(prefix=stamp, dir=settings.state_dir))
    _fold(settings.sqlite_file, aside)
    for target in there:
        os.link(target, aside / target.name)
    sync_directory(aside)
    return aside


def _fold(database: Path, aside: Path) -> None:
    """Checkpoints the write-ahead log into the database. A leftover log would be applied to the restored database."""
    if database.exists():
        try:
            with closing(connect(database.as_uri())) as connection:
                connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error:
            pass  # the database may be corrupt: the log is then moved with it
    for end in ("-wal", "-shm"):
        beside = database.with_name(database.name + end)
        if beside.exists():
            beside.replace(aside / beside.name)


def _unopenable(settings: ServiceSettings) -> int:
    async def count() -> int:
        async with raw_database.open_database(settings) as database:
            used = await key_rotation.count_by_key(database)
        known = {each.id for each in encryption.list_keys(settings.keys, os.environ)}
        return sum(number for key, number in used.items() if key not in known)

    return asyncio.run(count())


@contextmanager
def _temporary_directory(beside: Path) -> Iterator[Path]:
    """Yields a private temporary directory on the same file system, and deletes it afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=".aks-flex-rp-", dir=beside))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
