"""A receiver of webhooks: an HTTP server on loopback that verifies messages as Standard Webhooks specifies."""

from __future__ import annotations

import base64
import hmac
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.service.http_servers import Handler, listening
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificatePair

SOON = 30.0  # an upper limit for what takes a second or two
SECRET = b"0123456789abcdef0123456789abcdef"


def write_secrets(file: Path, *secrets: bytes) -> Path:
    file.touch(0o600)
    file.write_text("".join(f"whsec_{base64.b64encode(each).decode()}\n" for each in secrets))
    return file


@dataclass(frozen=True)
class Received:
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    @property
    def what(self) -> str:
        return str(self.event["type"]).removeprefix("com.aks-flex-node.node.").removesuffix(".v1")

    def is_signed_with(self, secret: bytes) -> bool:
        """Verifies the signature with a separate implementation of the reference algorithm."""
        signed = b".".join(
            [self.headers["webhook-id"].encode(), self.headers["webhook-timestamp"].encode(), self.body]
        )
        expected = "v1," + base64.b64encode(hmac.new(secret, signed, "sha256").digest()).decode()
        signatures = self.headers["webhook-signature"].split(" ")
        return any(hmac.compare_digest(expected, each) for each in signatures)


@dataclass
class Receiver:
    """A receiver; `answer` returns a status, or a status and headers, for each request."""

    url: str = ""
    answer: Callable[[Received], int | tuple[int, dict[str, str]]] = lambda _: 204
    received: list[Received] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)  # clear: no request gets a response

    def until(self, count: int) -> list[Received]:
        """Waits for at least this many requests."""
        until(lambda: len(self.received) >= count, f"{count} messages have come", SOON)
        return list(self.received)

    def of(self, name: str) -> list[Received]:
        return [each for each in self.received if each.event["subject"] == name]


@contextmanager
def receiving(pair: CertificatePair | None = None, port: int = 0) -> Iterator[Receiver]:
    """Runs a receiver, with TLS if it has a certificate."""
    receiver = Receiver()
    receiver.hold.set()

    class Receives(Handler):
        def do_POST(self) -> None:  # noqa: N802 - http.server's name
            body = self.rfile.read(int(self.headers["content-length"]))
            received = Received({name.lower(): value for name, value in self.headers.items()}, body)
            receiver.received.append(received)
            receiver.hold.wait(SOON)
            said = receiver.answer(received)
            status, headers = said if isinstance(said, tuple) else (said, {})
            self.respond(status, headers=headers)

        do_GET = do_POST  # noqa: N815 - so that a redirect that is followed is seen

    with listening(Receives, pair, port) as url:
        receiver.url = f"{url}/hook/secret-path"
        try:
            yield receiver
        finally:
            receiver.hold.set()
