"""Clients that send seeded hostile requests over persistent connections, and count what comes back."""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.fuzz.mutations import ODD, ODD_TOO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HANG_SECONDS = 60.0  # an upper limit for what takes milliseconds
MAX_ANSWER_BYTES = 1 << 22
ODD_TEXTS = ("", "-1", "9" * 30, "1e999", "%", "\0", "'", "..", "é", "[", "a" * 3000, "{}", "$(id)", "<script>")
METHODS = ("GET", "PUT", "PATCH", "POST", "DELETE", "HEAD", "OPTIONS")
HEADERS = (
    *("If-Match", "If-None-Match", "Prefer", "Cookie", "Content-Type", "Accept", "Range", "Expect", "Upgrade"),
    *("X-Forwarded-For", "X-Ms-Client-Request-Id", "X-HTTP-Method-Override", "Authorization", "Origin", "Host"),
)


@dataclass(frozen=True)
class RequestGenerator:
    """Makes requests out of sound ones: methods with paths, authorizations, and bodies that the service accepts."""

    operations: Sequence[tuple[str, str]]
    authorizations: Sequence[str]
    bodies: Sequence[dict[str, Any]]

    def make(self, rng: random.Random) -> bytes:
        content, (method, path) = self._body(rng), rng.choice(self.operations)
        lines = [
            f"{method if rng.random() < 0.9 else rng.choice(METHODS)} {self._target(path, rng)} HTTP/1.1",
            "Host: x",
            f"Authorization: {rng.choice(self.authorizations)}",
            "Content-Type: application/json",
            *(self._header(rng) for _ in range(rng.choice((0, 0, 1, 3)))),
            f"Content-Length: {len(content)}",
        ]
        sent = bytearray("\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + content)
        if rng.random() < 0.2:
            damage(rng, sent)
        return bytes(sent)

    @staticmethod
    def _header(rng: random.Random) -> str:
        return f"{rng.choice(HEADERS)}: {quote(rng.choice(ODD_TEXTS), safe='[]{}<>$()')}"

    @staticmethod
    def _target(path: str, rng: random.Random) -> str:
        if rng.random() < 0.2:
            parts = path.split("/")
            parts[rng.randrange(len(parts))] = quote(rng.choice(ODD_TEXTS))
            path = "/".join(parts)
        joint = "&" if "?" in path else "?"
        if rng.random() < 0.3:
            name = rng.choice(
                ("$top", "$filter", "$skipToken", "api-version", "search", "configUrl", "limit", "wait")
            )
            path += f"{joint}{name}={quote(rng.choice(ODD_TEXTS))}"
        return path if path.startswith("/") else f"/{path}"

    def _body(self, rng: random.Random) -> bytes:
        kind = rng.random()
        if kind < 0.3:
            return b""
        if kind < 0.4:
            return rng.choice(ODD + ODD_TOO)
        document = json.loads(json.dumps(rng.choice(self.bodies)))
        for _ in range(rng.randint(0, 3)):
            spoil(rng, document)
        content = bytearray(json.dumps(document).encode())
        if rng.random() < 0.2:
            damage(rng, content)
        return bytes(content)


def spoil(rng: random.Random, document: dict[str, Any]) -> None:
    """Replaces, adds or removes one value somewhere in a document."""
    place: Any = document
    while isinstance(place, dict) and place and rng.random() < 0.7:
        inner = place[rng.choice(list(place))]
        if not isinstance(inner, dict):
            break
        place = inner
    odd: Sequence[Any] = (None, True, -1, 1e308, [], {}, [[]], *ODD_TEXTS)
    match rng.randrange(3):
        case 0 if place:
            place[rng.choice(list(place))] = rng.choice(odd)
        case 1 if place:
            del place[rng.choice(list(place))]
        case _:
            place[rng.choice(ODD_TEXTS)] = rng.choice(odd)


def damage(rng: random.Random, content: bytearray) -> None:
    place, span = rng.randrange(max(len(content), 1)), rng.randint(1, 40)
    match rng.randrange(4):
        case 0 if content:
            content[place] ^= 1 << rng.randrange(8)
        case 1:
            del content[place : place + span]
        case 2:
            content[place:place] = content[place : place + span]
        case _:
            content[place:place] = rng.choice(ODD + ODD_TOO)


@dataclass
class HostileClients:
    host: str
    port: int
    trust: ssl.SSLContext
    requests: RequestGenerator
    expected: bytes  # in the body of a response 503 that is no failure
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    sent: int = 0

    async def run(self, count: int, clients: int, seed: int, on_progress: Callable[[int], None]) -> None:
        rngs = [random.Random(seed + number) for number in range(clients)]  # noqa: S311 - repeatable
        await asyncio.gather(*(self._client(rng, count, on_progress) for rng in rngs))

    async def _client(self, rng: random.Random, count: int, on_progress: Callable[[int], None]) -> None:
        while self.sent < count and not self.failures:
            reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.trust)
            try:
                for _ in range(rng.randint(1, 60)):
                    self.sent += 1
                    on_progress(self.sent)
                    request = self.requests.make(rng)
                    if not await asyncio.wait_for(self._exchange(reader, writer, request), HANG_SECONDS):
                        break
            except (TimeoutError, asyncio.TimeoutError):
                self.failures.append(f"no answer within {HANG_SECONDS:g} s to {request[:200]!r}")
            except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                pass  # the service closed the connection of a malformed request
            finally:
                writer.transport.abort()  # also a connection that the service does not end

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bool:
        """Sends one request; returns whether the connection can be used again."""
        writer.write(request)
        await writer.drain()
        if b"\r\n\r\n" not in request or len(request.partition(b"\r\n\r\n")[2]) < _length(request):
            return False  # the service waits for the rest
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        self.statuses[status] += 1
        size = 0 if request.startswith(b"HEAD") or status in {204, 304} else _length(head)
        if size > MAX_ANSWER_BYTES:
            self.failures.append(f"an answer of {size} bytes for {request[:400]!r}")
            return False
        content = await reader.readexactly(size)
        if status >= 500 and not (status == 503 and self.expected in content):
            self.failures.append(f"status {status} for {request[:600]!r}: {content[:300]!r}")
        return b"connection: close" not in head.lower()


def _length(head: bytes) -> int:
    found = re.search(rb"(?i)\r\ncontent-length: *(\d{1,12})\r\n", head)
    return int(found[1]) if found else 0
