"""Tests that no API server keeps the daemon's main thread longer than systemd's watchdog allows."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.cluster import client, node_health
from aks_flex_node.agent.cluster.client import ApiClient
from tests.service.agent.daemon.fake_providers import answer, serving
from tests.service.answers.behaviours import drips_headers

if TYPE_CHECKING:
    import socket
    import threading

    from aks_flex_lab.pki import CertificateAuthority

UNIT = Path("src/aks_flex_node/agent/components/service/aks-flex-node.service")
MISSING = b'{"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}'


def watchdog_seconds() -> float:
    found = re.search(r"^WatchdogSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert found
    return float(found[1])


def test_sign_in_and_two_requests_fit_into_watchdog() -> None:
    """A health check signs in once, and asks a second time when the Node is missing."""
    assert watchdog_seconds() > client.SIGN_IN_SECONDS + 2 * client.NODE_SECONDS


def test_health_check_ends_when_each_answer_is_slow(authority: CertificateAuthority) -> None:
    asked: list[float] = []

    def does(link: socket.socket, over: threading.Event) -> None:
        """Says that the Node is missing, and then sends its headers one byte at a time."""
        asked.append(time.monotonic())
        if len(asked) == 1:
            link.recv(65536)
            link.sendall(answer("404 Not Found", MISSING))
            return
        drips_headers(link, over)

    with serving(does, authority.issue("localhost", "localhost", names=("localhost",))) as port:
        api = ApiClient(f"https://localhost:{port}", str(authority.certificate), seconds=1.0)
        node, missing, cause, refused = node_health._find_node(api, "edge-1")
    assert (node, missing, refused, len(asked)) == (None, False, False, 2)
    assert "did not complete its response within 1 s" in cause
