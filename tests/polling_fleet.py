"""Many simulated nodes that poll a provider while its nodes are changed: `python -m tests.polling_fleet TASK RESULT`.

Each node holds a long poll on a connection of its own, as the agent does. A poll that fails is repeated once after a
second; the agent waits longer. `running_fleet` runs it as a separate process, also in a network namespace of the lab.
It ends at SIGTERM, when all writes have been answered and every node has seen the last change of its configuration.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import ssl
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from aks_flex_lab.processes import spawn
from bench.rp_load.connections import Server, header, length_of
from bench.rp_load.fleet import poll, put
from bench.rp_load.service_process import CHECKOUT_ENVIRONMENT
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_lab.processes import ProcessHandle

RETRY_SECONDS = 1.0
WRITERS = 4
WRITES_A_SECOND = 8.0
CONVERGED_SECONDS = 120.0
GRACE_SECONDS = 25.0  # for a late response, as in the agent


@dataclass(frozen=True)
class FleetTask:
    server: Server
    tokens: list[str]  # of the nodes, by their number
    operator: str  # token of the caller that changes nodes
    wait: int  # seconds of a long poll


@dataclass(frozen=True)
class Failure:
    """A request that failed. `lost` if its repetition failed too."""

    at: float
    kind: str
    node: int
    why: str
    lost: bool


@dataclass
class FleetResult:
    polls: int = 0
    connections: int = 0
    writes: int = 0
    failures: list[Failure] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)  # seconds that an answered request took beyond its wait
    missing: list[str] = field(default_factory=list)  # answered writes that are not there at the end
    unseen: list[int] = field(default_factory=list)  # nodes whose poll did not get the last change

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> FleetResult:
        found = json.loads(path.read_text())
        return cls(**{**found, "failures": [Failure(**each) for each in found["failures"]]})


@dataclass(frozen=True)
class Response:
    status: int
    head: bytes
    body: bytes


class NodeConnection:
    """A connection that is kept open between requests, and opened again when the server has closed it."""

    def __init__(self, server: Server, trust: ssl.SSLContext, result: FleetResult) -> None:
        self._server, self._trust, self._result = server, trust, result
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self, request: bytes, seconds: float) -> Response:
        try:
            return await asyncio.wait_for(self._exchange(request), seconds + GRACE_SECONDS)
        except BaseException:
            self.close()
            raise

    async def _exchange(self, request: bytes) -> Response:
        reader, writer = await self._open()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        body = b"" if status in {204, 304} else await reader.readexactly(length_of(head.rstrip(b"\r\n")))
        if header(head, b"connection").lower() == b"close":
            self.close()
        return Response(status, head, body)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams and self._streams[0].at_eof():
            self.close()
        if self._streams is None:
            server = self._server
            self._streams = await asyncio.wait_for(
                asyncio.open_connection(server.host, server.port, ssl=self._trust, server_hostname=server.name), 10.0
            )
            self._result.connections += 1
        return self._streams

    def close(self) -> None:
        if self._streams:
            self._streams[1].transport.abort()
            self._streams = None


class PollingFleet:
    def __init__(self, task: FleetTask) -> None:
        self.task, self.result = task, FleetResult()
        self._trust = task.server.trust()
        self._polls = [poll(number, token, task.wait).encode() for number, token in enumerate(task.tokens)]
        self._etags: dict[int, bytes] = {}  # that the polls have got
        self._answered: dict[int, str] = {}  # the last answered write of each node
        self._uncertain: dict[int, set[str]] = {}  # writes after it, without an answer
        self._stopping = asyncio.Event()

    async def run(self) -> FleetResult:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        pollers = [asyncio.create_task(self._poll(number)) for number in range(len(self.task.tokens))]
        await asyncio.gather(*(self._write(first) for first in range(WRITERS)))
        await self._check()
        for each in pollers:
            each.cancel()
        await asyncio.gather(*pollers, return_exceptions=True)
        return self.result

    def _connection(self) -> NodeConnection:
        return NodeConnection(self.task.server, self._trust, self.result)

    async def _poll(self, number: int) -> None:
        await asyncio.sleep(random.uniform(0.0, 5.0))  # noqa: S311 - no secret
        connection = self._connection()
        while True:
            began = time.monotonic()
            answer = await self._request("poll", connection, number, self._polls[number], self.task.wait, {200, 304})
            if answer:
                self.result.polls += 1
                self._etags[number] = etag = header(answer.head, b"etag")
                head, _, rest = self._polls[number].partition(b"If-None-Match: ")
                self._polls[number] = head + b"If-None-Match: " + etag + b"\r\n" + rest.partition(b"\r\n")[2]
            if not answer or time.monotonic() - began < 1.0:
                await asyncio.sleep(random.uniform(0.5, 2.0))  # noqa: S311 - no secret

    async def _write(self, first: int) -> None:
        """Changes nodes in turn, each in one writer, so that its writes have an order."""
        connection, turn = self._connection(), 0
        while not self._stopping.is_set():
            for number in range(first, len(self.task.tokens), WRITERS):
                if self._stopping.is_set():
                    return
                label = f"w{turn}-{number}"
                request = put(number, self.task.operator, label).encode()
                self._uncertain.setdefault(number, set()).add(label)
                answer = await self._request("write", connection, number, request, 0, {200})
                if answer:
                    self.result.writes += 1
                    self._answered[number] = label
                    self._uncertain[number].clear()
                await asyncio.sleep(WRITERS / WRITES_A_SECOND)
            turn += 1

    async def _request(
        self, kind: str, connection: NodeConnection, number: int, request: bytes, wait: float, good: set[int]
    ) -> Response | None:
        """Sends a request, and once again if it fails. Returns None if both failed."""
        for lost in (False, True):
            began = time.monotonic()
            try:
                answer = await connection.exchange(request, wait)
                took = time.monotonic() - began - wait
                self.result.slowest[kind] = max(took, self.result.slowest.get(kind, 0.0))
                if answer.status in good:
                    return answer
                why = f"HTTP {answer.status}: {answer.body[:200].decode(errors='replace')}"
            except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ssl.SSLError) as error:
                why = repr(error)
            self.result.failures.append(Failure(time.time(), kind, number, why, lost))
            if not lost:
                await asyncio.sleep(RETRY_SECONDS)
        return None

    async def _check(self) -> None:
        """Reads all nodes, and waits until their polls have got what is there."""
        connection, etags = self._connection(), {}
        for number in range(len(self.task.tokens)):
            plain = poll(number, self.task.operator).encode()
            head, _, rest = plain.partition(b"If-None-Match: ")
            answer = await self._request("read", connection, number, head + rest.partition(b"\r\n")[2], 0, {200})
            if answer is None:
                self.result.missing.append(f"node {number} cannot be read")
                continue
            etags[number] = header(answer.head, b"etag")
            labels: dict[str, Any] = json.loads(answer.body)["properties"]["nodeConfig"]["labels"]
            allowed = {self._answered.get(number, "first"), *self._uncertain.get(number, ())}
            if labels["is"] not in allowed:
                self.result.missing.append(f"node {number} has {labels['is']}, not {sorted(allowed)}")
        end = time.monotonic() + CONVERGED_SECONDS
        while self._unseen(etags) and time.monotonic() < end:
            await asyncio.sleep(0.5)
        self.result.unseen = self._unseen(etags)

    def _unseen(self, etags: dict[int, bytes]) -> list[int]:
        return [number for number, etag in etags.items() if self._etags.get(number) != etag]


@dataclass(frozen=True)
class RunningFleet:
    process: ProcessHandle
    result_file: Path
    log: Path

    def end(self) -> FleetResult:
        self.process.kill()
        until(lambda: not self.process.alive, "the fleet has ended", 360)
        assert self.result_file.exists(), self.log.read_text()
        return FleetResult.read(self.result_file)


@contextmanager
def running_fleet(directory: Path, task: FleetTask, prefix: Sequence[str] = ()) -> Iterator[RunningFleet]:
    """Runs the fleet in a process; `prefix` is a command that runs it elsewhere, such as in a network namespace."""
    written, result, log = (directory / name for name in ("fleet.json", "fleet-result.json", "fleet.log"))
    written.write_text(json.dumps(asdict(task)))
    words = (*prefix, sys.executable, "-m", "tests.polling_fleet", str(written), str(result))
    process = spawn(words, log=log, env=CHECKOUT_ENVIRONMENT)
    try:
        yield RunningFleet(process, result, log)
    finally:
        process.stop()


def main() -> None:
    task, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def run() -> FleetResult:
        return await PollingFleet(FleetTask(**{**task, "server": Server(**task["server"])})).run()

    uvloop.run(run()).write(result)


if __name__ == "__main__":
    main()
