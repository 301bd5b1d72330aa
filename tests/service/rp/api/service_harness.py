"""The real service on a real socket, in a thread of the tests, so that they can access its internals."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from aks_flex_rp.server import JsonFormatter, Server, listen
from aks_flex_rp.service import Service
from aks_flex_rp.settings import ServiceSettings
from tests.service.ports import free_port
from tests.service.rp.api import callers
from tests.service.rp.api.client import Api, Connection
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from aks_flex_rp.nodes.join_tracker import JoinTracker
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Node
    from tests.service.rp.api.fake_clusters import FakeClusters
    from tests.service.rp.api.traffic_recorder import Recording

T = TypeVar("T")
PLENTY = {"reads_per_second": 1e6, "read_burst": 10**6, "writes_per_second": 1e6, "write_burst": 10**6}
STARTED = 30.0  # seconds: an upper limit for what takes less than one


@dataclass(frozen=True)
class Running:
    service: Service
    clusters: FakeClusters
    loop: asyncio.AbstractEventLoop
    connection: Connection
    room: Path  # the state directory

    @property
    def admin(self) -> Api:
        return Api(self.connection, f"Bearer {self.service.settings.admin_key_file.read_text().strip()}")

    @property
    def store(self) -> Store:
        return self.service.store

    @property
    def tracker(self) -> JoinTracker:
        return self.service.join_tracker

    def node(self, name: str) -> Node:
        """Returns a node as it is stored."""
        found = self.call(self.store.node(PLANT.key, name))
        assert found
        return found

    @property
    def log(self) -> str:
        return (self.room / "log").read_text()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the service's event loop, as the watch of a cluster does."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(STARTED)

    def release(self) -> None:
        """Releases waiting polls, as the first step of a shutdown."""
        self.loop.call_soon_threadsafe(self.service.poll_cache.release_waiters)


RunService = Callable[..., AbstractContextManager[Running]]


def settings(room: Path, **more: Any) -> ServiceSettings:
    port = free_port()
    words = {"listen": f"127.0.0.1:{port}", "public_url": f"https://127.0.0.1:{port}", "state_dir": room}
    return ServiceSettings.model_validate({**words, **more})


@contextmanager
def running(settings: ServiceSettings, clusters: FakeClusters, recording: Recording) -> Iterator[Running]:
    ready = threading.Event()
    loop = uvloop.new_event_loop()
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    service, server = _made(loop, settings, clusters)
    with listen(settings) as bound, _logged(settings.state_dir / "log"):
        work = server.run_service(bound, lambda *_: ready.set())
        thread = threading.Thread(target=loop.run_until_complete, args=(work,))
        thread.start()
        try:
            assert ready.wait(STARTED), "the service did not start"
            ca = str(settings.state_dir / "tls" / "ca.crt")
            connection = Connection.to(settings.origin, ca, recording)
            yield Running(service, clusters, loop, connection, settings.state_dir)
            connection.pool.clear()
        finally:
            loop.call_soon_threadsafe(server.handle_exit, signal.SIGTERM, None)
            thread.join(STARTED)
            assert not thread.is_alive(), f"The service does not stop: {asyncio.all_tasks(loop)}"
            loop.close()


def _made(
    loop: asyncio.AbstractEventLoop, settings: ServiceSettings, clusters: FakeClusters
) -> tuple[Service, Server]:
    async def make() -> tuple[Service, Server]:
        service = Service(settings, clusters)
        return service, Server(service)

    return loop.run_until_complete(make())


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Captures all log messages of the service in a file."""
    handler = logging.FileHandler(file)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("aks_flex_rp")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


def remove_nodes(running: Running, prefix: str) -> None:
    """Deletes nodes from the store, so that other nodes can have their identities."""
    store = running.service.store

    async def remove() -> None:
        for cluster in running.clusters.known:
            for node in (await store.nodes(cluster, limit=1000)).nodes:
                if node.key.startswith(prefix) or node.identity.startswith((callers.NODE, callers.OTHER_NODE)):
                    await store.delete_node(cluster, node.key, None)

    running.call(remove())
