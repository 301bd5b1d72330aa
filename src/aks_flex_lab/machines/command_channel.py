"""Runs a command in a virtual machine over a serial port: `python -m … DIRECTORY COMMAND…`.

Standard input, output and error and the exit code are those of the command, as with `nsenter` for a container. The
machine has several ports, and each serves one command at a time; `guest/command_server.py` defines the messages.
This module imports only Python's library, because it is started for every command.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import secrets
import socket
import sys
import termios
import threading
import time
import tty
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PORTS = 8
CHUNK_BYTES = 1 << 16
POLL_SECONDS = 0.02  # between two attempts to get a port while all are in use
POWER_LOST = 137  # exit code when the machine ends before the command, as of a killed container


def port_socket(directory: Path, number: int) -> Path:
    return directory / f"port-{number}.sock"


@contextlib.contextmanager
def free_port(directory: Path) -> Iterator[socket.socket]:
    """Connects to a port that no other client uses, and keeps it for the block."""
    while True:
        for number in range(PORTS):
            lock = os.open(directory / f"port-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(str(port_socket(directory, number)))
                    yield connection
                return
            except BlockingIOError:
                continue
            finally:
                os.close(lock)
        time.sleep(POLL_SECONDS)


def command(directory: Path, *argv: str | Path, raw: bool = False) -> list[str]:
    """Returns the command that runs `argv` in the machine whose ports are in a directory."""
    options = ["--raw"] if raw else []
    return [sys.executable, "-m", __spec__.name, *options, str(directory), *(str(word) for word in argv)]


def message(session: str, **values: Any) -> bytes:
    return (json.dumps({"session": session, **values}) + "\n").encode()


def send_input(connection: socket.socket, session: str) -> None:
    """Sends standard input to the command, and its end."""
    with contextlib.suppress(OSError):  # the command or the machine ended
        while chunk := os.read(0, CHUNK_BYTES):
            connection.sendall(message(session, stdin=base64.b64encode(chunk).decode()))
        connection.sendall(message(session, stdin=""))


def receive_output(connection: socket.socket, session: str) -> int:
    """Writes the output of the command until it ends, and returns its exit code."""
    pending = b""
    while data := connection.recv(CHUNK_BYTES):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            try:
                reply = json.loads(line)
            except ValueError:
                continue  # the rest of an earlier command's output
            if reply.get("session") != session:
                continue
            if "exit" in reply:
                return int(reply["exit"])
            for handle, stream in ((1, "stdout"), (2, "stderr")):
                rest = memoryview(base64.b64decode(reply.get(stream, "")))
                while rest:
                    rest = rest[os.write(handle, rest) :]
    return POWER_LOST


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Passes every key to the command, if standard input is a terminal on which it has one, too."""
    if not (os.isatty(0) and os.isatty(1)):
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def run(directory: Path, argv: list[str], *, raw: bool) -> int:
    session = secrets.token_hex(8)
    try:
        with free_port(directory) as connection, raw_terminal() if raw else contextlib.nullcontext():
            # The first newline ends what a killed client has left on the port.
            connection.sendall(b"\n" + message(session, argv=argv))
            threading.Thread(target=send_input, args=(connection, session), daemon=True).start()
            return receive_output(connection, session)
    except (ConnectionError, FileNotFoundError):
        return POWER_LOST  # the machine was turned off


def main() -> None:
    raw = sys.argv[1] == "--raw"
    directory, *argv = sys.argv[2:] if raw else sys.argv[1:]
    code = run(Path(directory), argv, raw=raw)
    os._exit(code)  # without waiting for the thread that reads standard input


if __name__ == "__main__":
    main()
