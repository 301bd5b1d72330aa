"""Tests of `init` and `serve` as real processes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp import instance_lock
from tests.remedies.catalogue import command
from tests.service.ports import free_port
from tests.service.rp.cli.cli_harness import Person

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = (sys.executable, "-c", "from aks_flex_rp.cli import main; main()")


def words(state: Path, port: int) -> tuple[str, ...]:
    where = ("--listen", f"127.0.0.1:{port}", "--url", f"https://127.0.0.1:{port}")
    return (*COMMAND, "serve", "--state", str(state), *where)


@contextmanager
def started(state: Path, port: int, stderr: int) -> Iterator[subprocess.Popen[bytes]]:
    """Yields a service once it can be found; stops it if the test did not."""
    process = subprocess.Popen(words(state, port), stderr=stderr)
    try:
        end = time.monotonic() + 30
        while instance_lock.find_running(state) is None:
            assert process.poll() is None, "it ended"
            assert time.monotonic() < end, "it did not start in time"
            time.sleep(0.02)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_serve_exits_cleanly_and_closes_store_on_signal(tmp_path: Path, sig: signal.Signals) -> None:
    state, log = tmp_path / "state", tmp_path / "log"
    Person(state).does("init")
    with log.open("wb") as opened, started(state, free_port(), opened.fileno()) as process:
        process.send_signal(sig)
        assert process.wait(30) == 0

    assert "Traceback" not in log.read_text()
    assert instance_lock.find_running(state) is None
    assert not (state / "flex.db-wal").exists()


@pytest.mark.remedy("listen-failed")
def test_serve_reports_conflicting_service_or_port(tmp_path: Path) -> None:
    state, port = tmp_path / "state", free_port()
    with started(state, port, subprocess.DEVNULL):
        same = subprocess.run(words(state, free_port()), check=False, capture_output=True, text=True, timeout=60)
        other = subprocess.run(words(tmp_path / "b", port), check=False, capture_output=True, text=True, timeout=60)

    assert same.returncode == 7
    assert f"A service is running from {state}, at https://127.0.0.1:{port}" in same.stderr
    assert other.returncode == 3
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use." in other.stderr
    assert "\n  service-running\n" in same.stderr
    assert "\n  listen-failed: " in other.stderr

    [option] = command("listen-failed", "--listen")
    assert option in words(state, port)  # another address for the second service
    with (
        started(state, port, subprocess.DEVNULL),
        started(tmp_path / "b", free_port(), subprocess.DEVNULL),
    ):
        pass


def test_serve_on_terminal_prints_hints_and_logs_plain_text(tmp_path: Path) -> None:
    ours, its = pty.openpty()
    try:
        with started(tmp_path / "state", free_port(), its) as process:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        said = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(its)

    assert "aks-flex-rp node join-command" in said
    assert f"--state {tmp_path / 'state'}" in said
    assert '"level"' not in said


def test_init_reports_created_files_and_keeps_existing_ones(tmp_path: Path) -> None:
    person = Person(tmp_path / "state")

    first, second = person.does("init"), person.does("init")
    assert [line.split()[0] for line in first.out.splitlines()[1:]] == ["created"] * 4
    assert [line.split()[0] for line in second.out.splitlines()[1:]] == ["exists"] * 4
    assert "aks-flex-rp serve" in first.err
