"""A minimal HTTP/1.1 client connection, the exchanges it made, and their statistics."""

from __future__ import annotations

import asyncio
import os
import ssl
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


WITHOUT_BODY = {b"304", b"204"}


class Connection(asyncio.Protocol):
    """Sends one request at a time; calls `answered` with the number passed to `send`, the status and the response."""

    def __init__(self, answered: Callable[[Connection, bytes, bytes], None]) -> None:
        self._answered = answered
        self._got = b""
        self._transport: Any = None
        self.number = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.number >= 0:
            raise SystemExit(f"The server closed a connection during request {self.number}: {exc}.")

    def send(self, number: int, request: bytes) -> None:
        self.number = number
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._got = got = self._got + data if self._got else data
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return
        status = got[9:12]
        if status not in WITHOUT_BODY and len(got) < end + 4 + length_of(got[:end]):
            return
        self._got = b""
        self._answered(self, status, got)

    def close(self) -> None:
        self.number = -1
        self._transport.abort()


def length_of(head: bytes) -> int:
    found = header(head, b"content-length")
    if not found:
        raise SystemExit(f"A response has no Content-Length: {head!r}")
    return int(found)


def header(head: bytes, name: bytes) -> bytes:
    """Returns the value of a header; empty when it is missing."""
    start = head.lower().find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    return head[start + len(name) + 3 :].partition(b"\r\n")[0].strip()


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    ca: str
    name: str  # host name of the server's certificate
    certificate: str = ""  # client certificate, if any
    key: str = ""

    def trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        context.set_alpn_protocols(["http/1.1"])
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return context

    async def connect(self, count: int, answered: Callable[[Connection, bytes, bytes], None]) -> list[Connection]:
        """Opens connections in small groups, so that the server's backlog does not overflow."""
        loop, context, gate = asyncio.get_running_loop(), self.trust(), asyncio.Semaphore(50)

        async def one() -> Connection:
            async with gate:
                _, made = await loop.create_connection(
                    lambda: Connection(answered), self.host, self.port, ssl=context, server_hostname=self.name
                )
                return made

        return await asyncio.gather(*(one() for _ in range(count)))


@dataclass
class Exchanges:
    """The times of each request and response, by the monotonic clock that all processes share."""

    numbers: array[int] = field(default_factory=lambda: array("l"))
    sent: array[float] = field(default_factory=lambda: array("d"))
    answered: array[float] = field(default_factory=lambda: array("d"))
    statuses: array[int] = field(default_factory=lambda: array("l"))

    def add(self, number: int, sent: float, answered: float, status: bytes) -> None:
        self.numbers.append(number)
        self.sent.append(sent)
        self.answered.append(answered)
        self.statuses.append(int(status))


TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Returns the CPU seconds of these processes, user and system."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "p50": percentile(ordered, 50),
        "p99": percentile(ordered, 99),
        "max": ordered[-1],
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
