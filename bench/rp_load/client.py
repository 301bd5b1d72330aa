"""The load client: reads a task from a JSON file and writes results to another: `python -m bench.rp_load.client`.

closed: every connection sends its next request after the response to the last, for a number of seconds or requests.
paced:  requests are due at a constant rate, independent of the server, and their time is measured from then.
held:   every connection sends a long poll; a response is recorded, and the poll repeated with the new etag, until
        SIGTERM.

It is a separate process, so that it can run in the network namespace of a lab. It reads the CPU time of the server's
processes after connecting and at the end, so that start and handshakes are not included.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from collections import Counter, deque
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Literal

import uvloop

from bench.rp_load.connections import Connection, Exchanges, Server, cpu_seconds, header, spread


@dataclass(frozen=True)
class LoadTask:
    server: Server
    requests: str  # path of a JSON list of requests, sent in a cycle
    mode: Literal["closed", "paced", "held"] = "closed"
    connections: int = 64
    seconds: float = 5.0
    warm: float = 0.5  # warm-up seconds that are not counted
    count: int = 0  # total number of requests, instead of seconds
    rate: float = 0.0  # for `paced`, per second
    pids: tuple[int, ...] = ()  # process IDs of the server
    times: bool = False  # whether the result contains every exchange

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> LoadTask:
        found = json.loads(path.read_text())
        return cls(**{**found, "server": Server(**found["server"]), "pids": tuple(found["pids"])})


class ClosedLoop:
    def __init__(self, task: LoadTask) -> None:
        self.task = task
        self.requests = [text.encode("latin-1") for text in json.loads(Path(task.requests).read_text())]
        self.exchanges = Exchanges()
        self.done = asyncio.Event()
        self._next = 0

    async def run(self) -> dict[str, object]:
        task = self.task
        connections = await task.server.connect(task.connections, self.answered)
        self.sent: dict[Connection, float] = {}
        if task.warm and not task.count:
            await self.work(connections, task.warm, 0)
            self.exchanges = Exchanges()
        cpu, start = cpu_seconds(task.pids), monotonic()
        await self.work(connections, task.seconds, task.count)
        took, used = monotonic() - start, cpu_seconds(task.pids) - cpu
        for connection in connections:
            connection.close()
        return self.summary(took, used)

    async def work(self, connections: list[Connection], seconds: float, count: int) -> None:
        self.until = float("inf") if count else monotonic() + seconds
        self.left = count or sys.maxsize
        self.busy = len(connections)
        self.done.clear()
        for connection in connections:
            self.begin(connection)
        await self.done.wait()

    def begin(self, connection: Connection) -> None:
        now = monotonic()
        if self.left <= 0 or now > self.until:
            connection.number = -1
            self.busy -= 1
            if not self.busy:
                self.done.set()
            return
        self.left -= 1
        self.sent[connection] = now
        connection.send(self._next, self.requests[self._next])
        self._next = (self._next + 1) % len(self.requests)

    def answered(self, connection: Connection, status: bytes, _: bytes) -> None:
        self.exchanges.add(connection.number, self.sent[connection], monotonic(), status)
        self.begin(connection)

    def summary(self, took: float, used: float) -> dict[str, object]:
        all_of = self.exchanges
        lasted = [1000 * (end - begin) for begin, end in zip(all_of.sent, all_of.answered, strict=True)]
        found: dict[str, object] = {
            "requests": len(lasted),
            "statuses": Counter(map(str, all_of.statuses)),
            "seconds": took,
            "cpu": used,
            "milliseconds": spread(lasted),
        }
        if self.task.times:
            every = (all_of.numbers, all_of.sent, all_of.answered, all_of.statuses)
            found["times"] = list(zip(*every, strict=True))
        return found


class PacedLoop(ClosedLoop):
    """Queues due requests until a connection is free."""

    async def work(self, connections: list[Connection], seconds: float, _: int) -> None:
        self.free = deque(connections)
        self.due: deque[float] = deque()
        start, made, rate = monotonic(), 0, self.task.rate
        while (now := monotonic()) < start + seconds:
            while made < (now - start) * rate:
                self.due.append(start + made / rate)
                made += 1
            self.drain()
            await asyncio.sleep(0.001)
        while self.due or len(self.free) < len(connections):
            self.drain()
            await asyncio.sleep(0.001)

    def drain(self) -> None:
        while self.due and self.free:
            connection = self.free.popleft()
            self.sent[connection] = self.due.popleft()
            connection.send(self._next, self.requests[self._next])
            self._next = (self._next + 1) % len(self.requests)

    def answered(self, connection: Connection, status: bytes, _: bytes) -> None:
        self.exchanges.add(connection.number, self.sent[connection], monotonic(), status)
        self.free.append(connection)
        self.drain()


class LongPollLoop(ClosedLoop):
    async def work(self, connections: list[Connection], _: float, __: int) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.done.set)
        for number, connection in enumerate(connections):
            self.ask(connection, number, self.requests[number])
            if number % 50 == 0:
                await asyncio.sleep(0.001)
        await self.done.wait()

    def ask(self, connection: Connection, number: int, request: bytes) -> None:
        self.sent[connection] = monotonic()
        self.requests[number] = request
        connection.send(number, request)

    def answered(self, connection: Connection, status: bytes, answer: bytes) -> None:
        number = connection.number
        self.exchanges.add(number, self.sent[connection], monotonic(), status)
        request = self.requests[number]
        head, _, rest = request.partition(b"If-None-Match: ")
        etag = header(answer.partition(b"\r\n\r\n")[0], b"etag")
        self.ask(connection, number, head + b"If-None-Match: " + etag + b"\r\n" + rest.partition(b"\r\n")[2])


def main() -> None:
    task, result = LoadTask.read(Path(sys.argv[1])), Path(sys.argv[2])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kind = {"closed": ClosedLoop, "paced": PacedLoop, "held": LongPollLoop}[task.mode]

    async def run() -> dict[str, object]:
        return await kind(task).run()

    result.write_text(json.dumps(uvloop.run(run())))


if __name__ == "__main__":
    main()
