"""Fixtures: prevents unit tests from starting processes and using the network."""

from __future__ import annotations

import socket
import subprocess
from typing import Any, NoReturn

import pytest


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("A unit test tried to start a process or to open a connection.")


@pytest.fixture(autouse=True)
def _closed_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
