"""Nodes that poll two replicas do not notice that the replicas are replaced and that PostgreSQL is restarted."""

from __future__ import annotations

import asyncio
import random
import select
import shutil
import socket
import socketserver
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from bench.rp_load.connections import Server
from bench.rp_load.fleet import fill, token
from bench.rp_load.service_process import OPERATOR_LIMITS, fast_signing, running_service
from tests.polling_fleet import FleetTask, running_fleet
from tests.service.rp.api.tenants import Tenant, running_tenant
from tests.service.rp.store.builders import record_authenticator
from tests.service.rp.store.servers import postgres_server
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.rp_load.service_process import RunningService

NODES = 100
HOLD_SECONDS = 5
FORWARDING_SECONDS = 1.0  # until no new connection is forwarded to a replica that will stop


@dataclass
class Balancer:
    """Forwards each connection to one of the replicas, as a Service does."""

    ports: list[int] = field(default_factory=list)
    count: int = 0
    port: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        balancer = self

        class Forward(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                balancer.count += 1
                port = random.choice(balancer.ports)  # noqa: S311 - no secret
                with socket.create_connection(("127.0.0.1", port)) as there:
                    forward(self.request, there)

        class Listener(socketserver.ThreadingTCPServer):
            request_queue_size, daemon_threads, block_on_close = 2 * NODES, True, False

        with Listener(("127.0.0.1", 0), Forward) as listener:
            self.port = listener.server_address[1]
            thread = threading.Thread(target=listener.serve_forever)
            thread.start()
            try:
                yield
            finally:
                listener.shutdown()
                thread.join()


def forward(one: socket.socket, other: socket.socket) -> None:
    """Copies what either side sends, until one of them closes."""
    peers = {one: other, other: one}
    while True:
        for ready in select.select(list(peers), [], [])[0]:
            try:
                data = ready.recv(1 << 16)
                peers[ready].sendall(data)
            except OSError:
                return
            if not data:
                return


@dataclass
class Replicas:
    """Replicas with the same certificate and admin key, each in a context that stops it."""

    directory: Path
    tenant: Tenant
    database: str
    balancer: Balancer
    running: list[tuple[RunningService, ExitStack]] = field(default_factory=list)

    def add(self) -> RunningService:
        state, stack = self.directory / f"replica-{self.balancer.count}-{len(self.running)}", ExitStack()
        state.mkdir(mode=0o700)
        if self.running:
            first = self.running[0][0].state
            shutil.copytree(first / "tls", state / "tls")
            shutil.copy2(first / "admin.key", state / "admin.key")
        service = stack.enter_context(running_service(state, self.tenant, self.database, limits=OPERATOR_LIMITS))
        self.running.append((service, stack))
        self.balancer.ports.append(service.server.port)
        return service

    def replace_oldest(self) -> None:
        """Starts a replica, then stops the oldest one, as a Deployment does."""
        self.add()
        self.balancer.ports.pop(0)
        time.sleep(FORWARDING_SECONDS)
        self.running.pop(0)[1].close()

    def close(self) -> None:
        for _, stack in self.running:
            stack.close()


def test_nodes_do_not_notice_replaced_replicas_and_database_restart(tmp_path: Path) -> None:
    authority, balancer = CertificateAuthority(tmp_path / "pki"), Balancer()
    authority.ensure()
    with ExitStack() as stack:
        tenant = fast_signing(stack.enter_context(running_tenant(authority)))
        postgres = stack.enter_context(postgres_server())
        database = postgres.new_database()
        asyncio.run(fill(PostgresStore(parse_address(database, {}), record_authenticator()), range(NODES)))
        stack.enter_context(balancer.running())
        replicas = Replicas(tmp_path, tenant, database, balancer)
        stack.callback(replicas.close)
        first = replicas.add()
        replicas.add()
        ca = shutil.copy2(first.server.ca, tmp_path / "ca.crt")
        tokens = [token(tenant, number) for number in range(NODES)]
        task = FleetTask(Server("127.0.0.1", balancer.port, str(ca), "127.0.0.1"), tokens, first.admin, HOLD_SECONDS)
        fleet = stack.enter_context(running_fleet(tmp_path, task))
        until(lambda: balancer.count > NODES, "all nodes poll", 120)
        replicas.replace_oldest()
        replicas.replace_oldest()
        time.sleep(HOLD_SECONDS)
        postgres.stop()
        postgres.start()
        time.sleep(2 * HOLD_SECONDS)
        result = fleet.end()
    assert not [each for each in result.failures if each.lost]
    assert not result.missing  # answered writes that are not there
    assert not result.unseen
    assert result.polls > NODES
    assert result.writes
    print(f"{result.polls} polls, {result.writes} writes, repeated: {len(result.failures)}, {result.slowest}")
