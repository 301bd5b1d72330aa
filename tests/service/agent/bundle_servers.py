"""A TLS server on loopback with a private CA, which serves bundles and records requests."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_rp.crypto.tls_certificates import PrivateCa, ServerTls
from tests.service.http_servers import Handler, Listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_rp.crypto.tls_certificates import CertificateSource


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Answers(Handler):
    server: BundleServer

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        self.server.reports.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.do_GET()

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        self.server.asked.append(self.path)
        self.server.headers.append(dict(self.headers))
        self.server.before_answer()
        answers = self.server.answers.get(self.path, [Answer(404)])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if "Date" in answer.headers:  # of a server whose clock differs
            self.send_response_only(answer.status)
        else:
            self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)


class BundleServer(Listening):
    def __init__(self, serving: ServerTls) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.serving = serving
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[str] = []
        self.reports: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.before_answer: Callable[[], object] = lambda: None
        self.socket = serving.context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def url(self, path: str, host: str = "localhost", pin: str | None = None) -> str:
        fragment = self.serving.pin if pin is None else pin
        return f"https://{host}:{self.server_port}{path}" + (f"#ca=sha256:{fragment}" if fragment else "")


@contextmanager
def bundle_server(
    room: Path, *, now: float | None = None, source: CertificateSource | None = None
) -> Iterator[BundleServer]:
    moment = time.time() if now is None else now
    server = BundleServer(ServerTls(source or PrivateCa(room, ("localhost",)), moment))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
