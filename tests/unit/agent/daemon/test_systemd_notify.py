"""Tests of the messages to systemd."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.daemon.systemd_notifier import SystemdNotifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(5)
        yield channel


def test_systemd_is_notified_of_ready_watchdog_and_stopping(heard: socket.socket) -> None:
    notifier = SystemdNotifier(str(heard.getsockname()))
    notifier.ready()
    notifier.alive("Connected, update under way")
    notifier.stopping()
    assert [heard.recv(1000) for _ in range(3)] == [
        b"READY=1",
        b"WATCHDOG=1\nSTATUS=Connected, update under way",
        b"STOPPING=1",
    ]


def test_abstract_notify_socket_address_is_supported() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"\0flex-{os.getpid()}")
        channel.settimeout(5)
        SystemdNotifier(f"@flex-{os.getpid()}").ready()
        assert channel.recv(100) == b"READY=1"


def test_missing_notify_socket_is_ignored(tmp_path: Path) -> None:
    SystemdNotifier("").ready()
    SystemdNotifier(str(tmp_path / "nobody")).alive("Connected")


def test_notify_socket_is_removed_from_the_environment(heard: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(heard.getsockname()))
    SystemdNotifier().ready()
    assert heard.recv(100) == b"READY=1"
    assert "NOTIFY_SOCKET" not in os.environ
