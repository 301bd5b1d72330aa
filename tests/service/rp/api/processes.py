"""The service as a process that tests start, kill and restart."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import urllib3

from aks_flex_lab.processes import ProcessHandle, parent_death_wrapper, spawn
from tests.service.ports import free_port
from tests.service.rp.api.client import Api, Connection

if TYPE_CHECKING:
    import signal

    from tests.service.rp.api.traffic_recorder import Recording

ROOT = Path(__file__).parents[4]


class ServiceProcess:
    def __init__(self, room: Path, ca_cert_data: str, database: str | None, recording: Recording) -> None:
        self.room, self._database, self._recording = room, database or "", recording
        self._ca_cert_data = ca_cert_data
        self._port = free_port()
        self._process: ProcessHandle | None = None
        self.log = room / "log"

    def start(self) -> None:
        self.room.mkdir(exist_ok=True)
        words = (str(self.room / "state"), str(self._port), self._ca_cert_data, self._database)
        program = (*parent_death_wrapper(), sys.executable, "-m", "tests.service.rp.api.program", *words)
        paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        self._process = spawn(program, log=self.log, env=paths)
        end = time.monotonic() + 60
        while not self._ready():
            assert self._process.alive, f"it ended: {self.log.read_text()}"
            assert time.monotonic() < end, f"it did not start in time: {self.log.read_text()}"
            time.sleep(0.05)

    def _ready(self) -> bool:
        authority = self.room / "state" / "tls" / "ca.crt"
        if not authority.exists():
            return False
        try:
            return self.api.ask("GET", "/readyz", query={}).status == 200
        except (OSError, urllib3.exceptions.HTTPError):
            return False

    @property
    def api(self) -> Api:
        """Returns a new client with its own connections, as local admin."""
        state = self.room / "state"
        authority = str(state / "tls" / "ca.crt")
        connection = Connection.to(f"https://127.0.0.1:{self._port}", authority, self._recording)
        return Api(connection, f"Bearer {(state / 'admin.key').read_text().strip()}")

    def kill(self, sig: signal.Signals, seconds: float = 30) -> None:
        assert self._process
        self._process.kill(sig)
        assert self._process.wait(seconds), f"it does not end: {self.log.read_text()}"

    def close(self) -> None:
        if self._process:
            self._process.stop()
