"""Runs the service in uvicorn with a reloadable TLS context and a shutdown that first ends held polls."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import resource
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from aks_flex_node.errors import ConfigError
from aks_flex_node.timestamps import format_utc_microseconds
from aks_flex_rp.api.connection_limits import ConnectionLimiter, bounded_by
from aks_flex_rp.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from aks_flex_rp.settings import LogSettings, ServiceSettings

BACKLOG = 4096
STOP_SECONDS = 20
RELEASE_SECONDS = 10.0  # over which a replica ends its held polls; less if they are few
DRAIN_SECONDS = 1.0  # time for the last responses to reach their clients

log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """A uvicorn server for one service on one socket."""

    def __init__(self, service: Service) -> None:
        metrics = service.metrics
        limiter = ConnectionLimiter(
            service.settings.connections, lambda outcome: metrics.connections.labels(outcome).inc()
        )
        metrics.watch("open_connections", "Open connections of clients.", lambda: len(limiter))
        config = uvicorn.Config(
            service.app,
            http=bounded_by(limiter),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=service.settings.keep_alive_seconds,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        config.load()
        config.ssl = service.tls.context
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins the shutdown. Every response from now on ends its connection, so that its client sends the next
        request to another replica.
        """
        for connection in list(self.server_state.connections):
            connection.shutdown()
        settings = self._service.settings
        uses_postgres = bool(settings.database or settings.database_file)  # which other replicas can share
        self._service.poll_cache.release_waiters(RELEASE_SECONDS if uses_postgres else 0.0)
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Installs signal handlers that do not raise the signal again as uvicorn's do:

        the store must still be closed.
        """
        if threading.current_thread() is threading.main_thread():  # only the main thread receives signals
            loop = asyncio.get_running_loop()
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(each, self.handle_exit, each, None)
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shuts down without waiting for idle clients, which do not answer TLS's close_notify."""
        aborting = asyncio.create_task(self._abort_closing())
        await super().shutdown(sockets)
        await self._end_requests()
        aborting.cancel()

    async def _end_requests(self) -> None:
        """Waits for the responses to cancelled requests, and ends connections whose clients do not read them.

        The event loop cannot be closed while one of them has data to send.
        """
        await self._wait_for_requests()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await self._wait_for_requests()

    async def _wait_for_requests(self) -> None:
        if self.server_state.tasks:
            await asyncio.wait(set(self.server_state.tasks), timeout=DRAIN_SECONDS)

    async def _abort_closing(self) -> None:
        closed: set[object] = set()
        while True:
            closing = {each for each in self.server_state.connections if each.transport.is_closing()}
            for connection in closing & closed:
                connection.transport.abort()
            closed = {*closing}
            await asyncio.sleep(DRAIN_SECONDS)

    async def run_service(self, bound: socket.socket, ready: Callable[[Service, int], None]) -> None:
        """Serves until `handle_exit` is called. Calls `ready` with the port when the server accepts requests."""
        await self._service.start()
        _collect_rarely()
        try:
            announcement = asyncio.create_task(self._notify_ready(bound.getsockname()[1], ready))
            await self.serve(sockets=[bound])
            await announcement
        finally:
            await self._service.stop()

    async def _notify_ready(self, port: int, ready: Callable[[Service, int], None]) -> None:
        while not self.started and not self.should_exit:
            await asyncio.sleep(0.01)
        if self.started:
            ready(self._service, port)


def serve(settings: ServiceSettings, ready: Callable[[Service, int], None]) -> None:
    """Runs the service until a signal stops it."""
    # Every held poll is a connection.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    bound = listen(settings)
    uvloop.run(_serve(settings, bound, ready))


async def _serve(settings: ServiceSettings, bound: socket.socket, ready: Callable[[Service, int], None]) -> None:
    await Server(Service(settings)).run_service(bound, ready)


def listen(settings: ServiceSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
    except OSError as error:
        bound.close()
        raise ConfigError(
            "listen-failed",
            f"Cannot listen on {settings.listen}: {error.strerror}.",
            "Choose another address with `--listen`, or stop the process that uses this one.",
        ) from error
    return bound


def _collect_rarely() -> None:
    """Makes full garbage collections rare and excludes the objects that exist now.

    Polls and connections leave no reference cycles, and a full collection with the state of a hundred thousand nodes
    would block the event loop for a third of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 100, 100)


ENCODER = json.JSONEncoder(ensure_ascii=False)
LOG_FIELDS = ("request", "operation", "status", "caller", "path", "source", "cluster", "node")


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object per line, with the request ID if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": format_utc_microseconds(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        line["message"] = record.getMessage()
        line |= {name: record.__dict__[name] for name in LOG_FIELDS if record.__dict__.get(name) not in (None, "")}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return ENCODER.encode(line)


def configure_logging(settings: LogSettings) -> None:
    # No format shows these, and logging finds them out for every line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter() if settings.format == "json" else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    for chatty in ("uvicorn.access", "httpx2", "azure", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
