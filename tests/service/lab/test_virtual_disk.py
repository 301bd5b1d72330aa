"""The disk of a virtual machine loses what was not flushed when its server is killed, as a disk that loses power."""

from __future__ import annotations

import signal
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.machines import qemu
from aks_flex_lab.machines.qemu import VirtualHardware
from aks_flex_lab.machines.virtual_base import wait_for
from aks_flex_lab.processes import spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.processes import ProcessHandle

BLOCK = 4096
WRITE, FLUSH = 1, 3  # commands of the NBD protocol
REQUEST_MAGIC, OPTION_MAGIC, EXPORT_NAME = 0x25609513, 0x49484156454F5054, 1


class NbdClient:
    """A client of the NBD protocol that sends nothing on its own, above all no flush when it is closed."""

    def __init__(self, path: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(str(path))
        self.receive(18)  # the greeting
        self.connection.sendall(struct.pack(">L", 3))  # both sides omit the padding after the export
        self.connection.sendall(struct.pack(">QLL", OPTION_MAGIC, EXPORT_NAME, 0))
        self.receive(10)  # size and flags of the export

    def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.connection.recv(count - len(data))
            assert part, "the server closed the connection"
            data += part
        return data

    def ask(self, command: int, offset: int = 0, data: bytes = b"") -> None:
        header = struct.pack(">LHHQQL", REQUEST_MAGIC, 0, command, 1, offset, len(data))
        self.connection.sendall(header + data)
        _, error, _ = struct.unpack(">LLQ", self.receive(16))
        assert error == 0


@pytest.fixture
def hardware(tmp_path: Path) -> VirtualHardware:
    made = VirtualHardware(tmp_path, Architecture.AMD64, tmp_path, tmp_path, qemu.EMULATION)
    made.image.write_bytes(bytes(16 * BLOCK))
    return made


@pytest.fixture
def server(hardware: VirtualHardware, tmp_path: Path) -> Iterator[ProcessHandle]:
    process = spawn(hardware.disk_server(), log=tmp_path / "disk.log")
    try:
        assert wait_for(hardware.disk_socket, process), (tmp_path / "disk.log").read_text()
        yield process
    finally:
        process.kill(signal.SIGKILL)
        process.wait(10)


@pytest.fixture
def connect(hardware: VirtualHardware, server: ProcessHandle) -> Iterator[Callable[[], NbdClient]]:
    """Yields a function that connects to the disk; closes the connections after the test."""
    made: list[NbdClient] = []

    def open_client() -> NbdClient:
        made.append(NbdClient(hardware.disk_socket))
        return made[-1]

    yield open_client
    for client in made:
        client.connection.close()


def kill(server: ProcessHandle) -> None:
    server.kill(signal.SIGKILL)
    assert server.wait(10)


def test_killed_disk_has_flushed_writes_and_loses_the_others(
    hardware: VirtualHardware, server: ProcessHandle, connect: Callable[[], NbdClient]
) -> None:
    client = connect()
    client.ask(WRITE, 0, b"f" * BLOCK)
    client.ask(FLUSH)
    client.ask(WRITE, 0, b"u" * BLOCK)
    client.ask(WRITE, BLOCK, b"u" * BLOCK)

    kill(server)

    assert hardware.image.read_bytes()[: 2 * BLOCK] == b"f" * BLOCK + bytes(BLOCK)


def test_disk_does_not_write_when_its_machine_is_killed_first(
    hardware: VirtualHardware, server: ProcessHandle, connect: Callable[[], NbdClient]
) -> None:
    """The order in which QEMU and the server are killed does not matter."""
    client = connect()
    client.ask(WRITE, 0, b"u" * BLOCK)
    client.connection.close()
    connect()  # the server has noticed it

    kill(server)

    assert hardware.image.read_bytes() == bytes(16 * BLOCK)
