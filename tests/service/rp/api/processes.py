"""The service as a process that tests start, kill and restart."""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import urllib3

from aks_flex_lab.processes import ProcessHandle, parent_death_wrapper, spawn
from aks_flex_rp.settings import ServiceSettings
from tests.service.ports import free_port
from tests.service.rp.api.client import Api, Connection
from tests.service.rp.api.service_harness import PLENTY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.rp.api.traffic_recorder import Recording

ROOT = Path(__file__).parents[4]


class ServiceProcess:
    def __init__(
        self, room: Path, ca_cert_data: str, database: str | None, recording: Recording, **more: Any
    ) -> None:
        self.room, self.log, self._ca_cert_data, self._recording = room, room / "log", ca_cert_data, recording
        where = f"127.0.0.1:{free_port()}"
        words = {"listen": where, "public_url": f"https://{where}", "state_dir": str(room / "state")}
        self._document = json.dumps({**words, "database": database, "limits": PLENTY, **more})
        self.settings = ServiceSettings.model_validate_json(self._document)
        self._process: ProcessHandle | None = None

    def start(self) -> None:
        self.room.mkdir(exist_ok=True)
        words = ("-m", "tests.service.rp.api.program", self._document, self._ca_cert_data)
        program = (*parent_death_wrapper(), sys.executable, *words)
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
        authority = str(self.settings.state_dir / "tls" / "ca.crt")
        connection = Connection.to(self.settings.origin, authority, self._recording)
        return Api(connection, f"Bearer {self.settings.admin_key_file.read_text().strip()}")

    @contextmanager
    def running(self) -> Iterator[Api]:
        """Runs the service and kills it at the end, as a power cut does."""
        self.start()
        try:
            yield self.api
        finally:
            self.kill(signal.SIGKILL)

    def kill(self, sig: signal.Signals, seconds: float = 30) -> None:
        assert self._process
        self._process.kill(sig)
        assert self._process.wait(seconds), f"it does not end: {self.log.read_text()}"

    def close(self) -> None:
        if self._process:
            self._process.stop()
