"""A proxy between az and the service, in which tests inject rare events."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import urllib3

from tests.service.http_servers import Handler, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.pki import CertificatePair

DROPPED = {"host", "content-length", "connection", "transfer-encoding", "accept-encoding"}


@dataclass
class Between:
    """Returns `answers` first, one for each request, in place of the service's; calls `meanwhile` before each PUT.

    A status of 0 closes the connection without a response.
    """

    url: str = ""
    answers: list[tuple[int, dict[str, str], Any]] = field(default_factory=list)
    meanwhile: list[Callable[[], None]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # method and path

    def refuse(self, status: int, code: str, message: str, **headers: str) -> None:
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.append((status, shown, {"error": {"code": code, "message": message}}))


@contextmanager
def standing_between(service: str, ca: str, pair: CertificatePair) -> Iterator[Between]:
    between, pool = Between(), urllib3.PoolManager(ca_certs=ca, retries=False)

    class Passing(Handler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            between.asked.append(f"{self.command} {self.path}")
            if self.command == "PUT" and between.meanwhile:
                between.meanwhile.pop(0)()
            if between.answers:
                status, headers, document = between.answers.pop(0)
                if not status:
                    self.close_connection = True
                    return
                self._say(status, headers, json.dumps(document).encode())
                return
            kept = {name: value for name, value in self.headers.items() if name.lower() not in DROPPED}
            got = pool.request(self.command, service + self.path, body=body or None, headers=kept, redirect=False)
            shown = {name: value for name, value in got.headers.items() if name.lower() not in DROPPED}
            self._say(got.status, shown, got.data)

        def _say(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815 - http.server's names

    with pool, listening(Passing, pair) as between.url:
        yield between
