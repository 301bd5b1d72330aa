"""Servers that gates ask: a scripted receiver on loopback, and a real Prometheus of Debian's package."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_lab.processes import spawn
from tests.service.http_servers import Handler, listening
from tests.service.monitoring.promtool import program_of_package
from tests.service.ports import free_port, wait_until
from tests.service.rp.notify.receivers import Received

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificatePair

Answer = tuple[int, bytes]
HANG, ENDLESS, DRIP = (0, b"hang"), (0, b"endless"), (0, b"drip")
SOON = 20.0


def says(result: str, message: str = "") -> Answer:
    return 200, json.dumps({"result": result, "message": message}).encode()


@dataclass
class GateReceiver:
    """Answers each request with the next answer; the last one is repeated."""

    url: str = ""
    answers: list[Answer] = field(default_factory=lambda: [says("pass")])
    headers: dict[str, str] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    stopped: bool = False

    def next_answer(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def gate_receiver(pair: CertificatePair | None = None) -> Iterator[GateReceiver]:
    receiver = GateReceiver()

    class Answers(Handler):
        def do_POST(self) -> None:  # noqa: N802 - http.server's name
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(headers, body))
            status, answer = receiver.next_answer()
            if status == 0:
                self._misbehave(answer)
                return
            self.respond(status, answer, receiver.headers)

        do_GET = do_POST  # noqa: N815 - so that a redirect that is followed is seen

        def _misbehave(self, how: bytes) -> None:
            end = time.monotonic() + SOON
            if how != b"hang":
                self.send_response(200)
                self.end_headers()
            while not receiver.stopped and time.monotonic() < end:
                if how == b"endless":
                    self.wfile.write(b" " * 65536)
                else:
                    time.sleep(0.05)
                    self.wfile.write(b" " if how == b"drip" else b"")

    with listening(Answers, pair) as url:
        receiver.url = f"{url}/hook/secret-path"
        try:
            yield receiver
        finally:
            receiver.stopped = True


@contextmanager
def prometheus_server(room: Path) -> Iterator[str]:
    """Yields the URL of a Prometheus that scrapes itself each second."""
    port = free_port()
    url, log, config = f"http://127.0.0.1:{port}", room / "log", room / "prometheus.yml"
    scrape: dict[str, Any] = {"job_name": "self", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
    words = (
        f"--config.file={config}",
        f"--storage.tsdb.path={room / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    process = spawn((str(program_of_package("prometheus")), *words), log=log)
    try:
        wait_until(lambda: _has_samples(url), process, log)
        yield url
    finally:
        process.stop()


def _has_samples(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?query=up", timeout=5) as answer:  # noqa: S310 - loopback
            return bool(json.load(answer)["data"]["result"])
    except (urllib.error.URLError, OSError):
        return False
