"""A service with webhooks that tests start, kill and restart."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import urllib3
import yaml

from aks_flex_lab.processes import parent_death_wrapper, spawn
from aks_flex_rp.service import open_store
from tests.service.rp.api.client import Api, Connection
from tests.service.rp.api.service_harness import settings
from tests.service.rp.api.traffic_recorder import Recording
from tests.service.rp.notify.receivers import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.store.outbox import PendingMessages

ROOT = Path(__file__).parents[4]


class Program:
    def __init__(self, room: Path, ca_cert_data: str, webhook: dict[str, Any]) -> None:
        self._made = made = settings(room / "state")
        self._config, self._log, self._ca_cert_data = room / "config.yaml", room / "program.log", ca_cert_data
        words = {"listen": made.listen, "publicUrl": made.public_url, "stateDir": str(made.state_dir)}
        self._config.write_text(yaml.safe_dump({**words, "notifications": {"webhooks": [webhook]}}))

    @contextmanager
    def running(self) -> Iterator[Api]:
        """Runs the service and kills it at the end, as a power cut does."""
        words = ("-m", "tests.service.rp.notify.program", str(self._config), self._ca_cert_data)
        paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        process = spawn((*parent_death_wrapper(), sys.executable, *words), log=self._log, env=paths)
        try:
            api = self._api()
            yield api
            api.connection.pool.clear()
        finally:
            process.kill(signal.SIGKILL)
            process.wait(SOON)

    def until_a_failure_is_noted(self) -> None:
        """Waits until a failure is stored: a message in delivery at the kill is only retried after 30 seconds."""
        end = time.monotonic() + SOON
        while not any(each.failure for each in asyncio.run(self._pending())):
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.05)

    async def _pending(self) -> tuple[PendingMessages, ...]:
        store = open_store(self._made)
        await store.start()
        try:
            return await store.pending_messages()
        finally:
            await store.stop()

    def _api(self) -> Api:
        end, state = time.monotonic() + SOON, self._made.state_dir
        while True:
            try:
                connection = Connection.to(self._made.origin, str(state / "tls" / "ca.crt"), Recording())
                api = Api(connection, f"Bearer {(state / 'admin.key').read_text().strip()}")
                if api.ask("GET", "/readyz", query={}).status == 200:
                    return api
                connection.pool.clear()
            except (OSError, urllib3.exceptions.HTTPError):
                assert time.monotonic() < end, self._log.read_text()
                time.sleep(0.05)
