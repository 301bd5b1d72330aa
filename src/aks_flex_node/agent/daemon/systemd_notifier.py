"""The sd_notify client through which systemd supervises the daemon."""

from __future__ import annotations

import contextlib
import os
import socket


class SystemdNotifier:
    """Sends readiness, watchdog and status notifications to systemd; does nothing without NOTIFY_SOCKET."""

    def __init__(self, address: str | None = None) -> None:
        path = address if address is not None else os.environ.pop("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path

    def ready(self) -> None:
        self._send("READY=1")

    def alive(self, status: str) -> None:
        self._send(f"WATCHDOG=1\nSTATUS={status}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(message.encode(), self._address)
