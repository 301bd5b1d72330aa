"""Runs commands in a virtual machine for the host, over virtio serial ports, so that no network is needed.

Each port serves one command at a time. Messages are lines of JSON; bytes are in base64:

    host     {"session": ID, "argv": […]}      starts a command, and ends an earlier one on the port
             {"session": ID, "stdin": BYTES}   input; empty at its end
    machine  {"session": ID, "stdout": BYTES}  output, likewise "stderr"
             {"session": ID, "exit": CODE}     after the end of the output

A line that is damaged, because a client of the host was killed, is ignored, and so is one of another session.
"""

from __future__ import annotations

import base64
import contextlib
import glob
import json
import os
import queue
import select
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import IO

PORT_NAMES = "/sys/class/virtio-ports/*/name"  # below a directory with the name of the device
PORT_PREFIX = "aks-flex-lab."
CHUNK_BYTES = 1 << 16
POLL_SECONDS = 5.0  # the kernel reports every connection; this only limits the damage if it does not
NOT_FOUND = 127  # exit code of a shell for a command that does not exist


class Session:
    """One command and the threads that move its input and output."""

    def __init__(self, port: Port, name: str, argv: list[str]) -> None:
        self.port, self.name = port, name
        self.input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            port.send(name, stderr=f"{argv[0]}: {error.strerror}\n".encode())
            port.send(name, exit=NOT_FOUND)
            return
        threading.Thread(target=self._write_input, daemon=True).start()
        threading.Thread(target=self._finish, args=(self.process,), daemon=True).start()

    def _write_input(self) -> None:
        """Writes the input of the command. A command that does not read it blocks only this thread."""
        assert self.process  # noqa: S101 - it was started
        assert self.process.stdin  # noqa: S101 - with pipes
        with contextlib.suppress(OSError):  # the command ended
            while chunk := self.input.get():
                self.process.stdin.write(chunk)
                self.process.stdin.flush()
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        """Sends all output, then the exit code."""
        other = threading.Thread(target=self._read_output, args=("stderr", process.stderr), daemon=True)
        other.start()
        self._read_output("stdout", process.stdout)
        other.join()
        code = process.wait()
        self.input.put(b"")
        self.port.send(self.name, exit=code if code >= 0 else 128 - code)

    def _read_output(self, stream: str, pipe: IO[bytes] | None) -> None:
        assert pipe  # noqa: S101 - it was started with pipes
        while chunk := os.read(pipe.fileno(), CHUNK_BYTES):
            self.port.send(self.name, **{stream: chunk})

    def end(self) -> None:
        """Kills the command and what it started, because its client has gone."""
        self.input.put(b"")
        if self.process and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


class Port:
    """One serial port and the command that runs on it."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDWR)
        self.lock = threading.Lock()
        self.session: Session | None = None

    def send(self, session: str, **values: bytes | int) -> None:
        """Sends a message. The kernel blocks the write while no client is connected."""
        texts = {
            key: value if isinstance(value, int) else base64.b64encode(value).decode()
            for key, value in values.items()
        }
        rest = memoryview((json.dumps({"session": session, **texts}) + "\n").encode())
        with self.lock:
            while rest:
                rest = rest[os.write(self.handle, rest) :]

    def serve(self) -> None:
        connection = select.epoll()
        connection.register(self.handle, select.EPOLLIN | select.EPOLLHUP | select.EPOLLET)
        pending = b""
        while True:
            data = os.read(self.handle, CHUNK_BYTES)
            if not data:  # no client is connected
                pending = b""
                self._end()
                connection.poll(POLL_SECONDS)
                continue
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    message = json.loads(line)
                    name = message["session"]
                    if "argv" in message:
                        self._end()
                        self.session = Session(self, name, message["argv"])
                    elif self.session and self.session.name == name:
                        self.session.input.put(base64.b64decode(message["stdin"]))

    def _end(self) -> None:
        if self.session:
            self.session.end()
            self.session = None


def port_paths() -> list[Path]:
    """Waits until the kernel has found the ports, and returns their devices."""
    while True:
        names = [Path(path) for path in glob.glob(PORT_NAMES)]  # noqa: PTH207 - an absolute pattern
        own = [path for path in names if path.read_text().startswith(PORT_PREFIX)]
        devices = [Path("/dev") / path.parent.name for path in own]
        if devices and all(device.exists() for device in devices):
            return devices
        time.sleep(0.1)


def main() -> None:
    for path in port_paths():
        threading.Thread(target=Port(path).serve, name=path.name).start()


if __name__ == "__main__":
    main()
