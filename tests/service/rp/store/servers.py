"""A real PostgreSQL of Debian's package, in a temporary directory on a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from aks_flex_lab.processes import ProcessHandle, run, spawn
from tests.service.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.pki import CertificatePair

USER = "flex"
# Small, with PostgreSQL's default durability.
SETTINGS = {"shared_buffers": "32MB", "max_connections": "60"}


class PostgresServer:
    def __init__(
        self, room: Path, programs: Path, address: tuple[str, int] | None = None, before: tuple[str, ...] = ()
    ) -> None:
        """Creates a server on loopback, or at an address. `before` is a command prefix, to enter a namespace."""
        self._room = room
        self._programs = programs
        self._host, self._port = address or ("127.0.0.1", free_port())
        self._before = before
        self._process: ProcessHandle | None = None
        # The server ends with the thread that started it, so this thread must exist as long as the server.
        self._parent = ThreadPoolExecutor(1)
        self._databases = 0
        self.log = room / "log"

    def initialise(self) -> None:
        """Initializes the cluster with a locale whose collation differs from byte order, if supported."""
        languages = ("--locale-provider=icu", "--icu-locale=en-US") if int(self._programs.parent.name) >= 15 else ()
        words = ("-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C.UTF-8", *languages, "-D", self._room / "data")
        run(*as_somebody(), self._programs / "initdb", *words, cwd=Path("/"))

    def start(self) -> None:
        settings = {**SETTINGS, "listen_addresses": self._host}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        where = ("-D", str(self._room / "data"), "-k", str(self._room), "-p", str(self._port))
        program = (*as_somebody("--pdeathsig", "INT"), str(self._programs / "postgres"))
        words = (*self._before, *program, *where, *options)
        self._process = self._parent.submit(spawn, words, log=self.log).result()
        end = time.monotonic() + 60
        while not run(self._programs / "pg_isready", "-q", "-h", self._room, "-p", str(self._port), check=False).ok:
            assert self._process.alive, f"it ended: {self.log.read_text()}"
            assert time.monotonic() < end, f"it did not start in time: {self.log.read_text()}"
            time.sleep(0.05)

    def stop(self, sig: signal.Signals = signal.SIGINT) -> None:
        """Stops the server: SIGINT ends all sessions cleanly, SIGQUIT immediately as in a crash."""
        if self._process:
            self._process.kill(sig)
            # Its last checkpoint takes long on a busy machine. What is killed before it leaves a lock file behind.
            assert self._process.wait(300), f"it did not end in time: {self.log.read_text()[-2000:]}"
        self._process = None

    def close(self) -> None:
        self.stop()
        self._parent.shutdown()

    def dsn(self, database: str) -> str:
        """Returns the address of a database, at the server's Unix socket."""
        return f"postgresql://{USER}@{quote(str(self._room), safe='')}:{self._port}/{database}"

    def network_dsn(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self._port}/{database}"

    def offer_tls(self, pair: CertificatePair) -> None:
        """Gives the server a certificate, from the next connection on."""
        for name, file in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
            target = self._room / name
            target.write_bytes(file.read_bytes())
            target.chmod(0o600)
            shutil.chown(target, somebody())
            self.query(f"ALTER SYSTEM SET ssl_{'cert' if name == 'tls.crt' else 'key'}_file = '{target}'")
        self.query("ALTER SYSTEM SET ssl = on")
        self.query("SELECT pg_reload_conf()")
        while self.query("SHOW ssl") != "on":
            time.sleep(0.05)

    def require_password(self, clients: str, password: str) -> None:
        """Accepts clients of a network, only with TLS and the password, from the next connection on."""
        with (self._room / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"hostssl all all {clients} scram-sha-256\n")
        self.query(f"ALTER USER {USER} PASSWORD '{password}'")
        self.query("SELECT pg_reload_conf()")

    def new_database(self) -> str:
        """Creates an empty database; returns its address."""
        self._databases += 1
        name = f"store_{self._databases}"
        self.query(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def query(self, text: str) -> str:
        return run(self._programs / "psql", "-XAtqc", text, self.dsn("postgres")).out.strip()


@contextmanager
def postgres_server(address: tuple[str, int] | None = None, before: tuple[str, ...] = ()) -> Iterator[PostgresServer]:
    """Runs a server and removes all its files afterwards."""
    room = Path(tempfile.mkdtemp(prefix="flex-postgres-"))
    shutil.chown(room, somebody())
    server = PostgresServer(room, find_programs(), address, before)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(room)


def find_programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda one: int(one.parent.parent.name))
    assert found, "PostgreSQL is not installed: run scripts/setup, or apt-get install postgresql."
    return found[-1].parent


def somebody() -> str:
    """Returns the user to run PostgreSQL as, which refuses to run as root."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid()).pw_name
    return next(name for name in ("postgres", "nobody") if name in {user.pw_name for user in pwd.getpwall()})


def as_somebody(*options: str) -> tuple[str, ...]:
    if os.getuid() != 0:
        return ("setpriv", *options) if options else ()
    user = pwd.getpwnam(somebody())
    return ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *options)
