"""What the VPN asks besides this machine's files and its systemd: Azure, a running client, name servers, clocks."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.vpn import downloading, names, tunnels
from aks_flex_node.agent.vpn.pairs import make_pair
from aks_flex_node.azure.operations import Patience

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.vpn.pairs import Pair
    from aks_flex_node.agent.vpn.tunnels import Tunnel
    from aks_flex_node.azure.operations import Sender


def reaches(name: str, port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection((name, port), 5).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class World:
    azure: Callable[[NodeConfig], AbstractContextManager[Sender]] = downloading.azure
    download: Callable[[NodeConfig, str], bytes] = downloading.download
    pair: Callable[[str], Pair] = make_pair
    look: Callable[[], Tunnel | None] = tunnels.look
    ask: Callable[[str, str], str] = names.ask
    reaches: Callable[[str, int], bool] = reaches
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time

    @property
    def patience(self) -> Patience:
        return Patience(sleep=self.sleep, now=self.now, clock=self.clock)

    @property
    def waiting(self) -> tunnels.Waiting:
        return tunnels.Waiting(self.look, self.sleep, self.clock)
