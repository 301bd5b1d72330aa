"""Tests of time limits that are independent of each other."""

from __future__ import annotations

import socket

import pytest

from aks_flex_node.bounded_http.limits import RequestTimeout, time_limit, watch


class BrokenConnection:
    """A connection that fails in a way that nobody expected when its socket is asked for."""

    @property
    def sock(self) -> socket.socket:
        raise RuntimeError("not a socket")

    def close(self) -> None: ...


def read_silent_socket(seconds: float) -> None:
    """Reads a socket that never has data, with a time limit of its own."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)  # without the limit
    with ours, theirs, time_limit(seconds):
        watch(ours)
        assert ours.recv(1) == b""


def read_beside_broken_connection() -> None:
    with time_limit(0.05):
        watch(BrokenConnection())
        with pytest.raises(RequestTimeout):
            read_silent_socket(0.2)


def test_connection_that_cannot_be_interrupted_leaves_other_limits() -> None:
    with pytest.raises(RequestTimeout):
        read_beside_broken_connection()
