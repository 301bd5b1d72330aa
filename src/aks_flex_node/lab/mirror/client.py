"""The caller's end of the control socket: what tests and `aks-flex-lab mirror` use.

mirror = Mirror(lab.parts / "mirror" / "control.sock")
mirror.add("dl.k8s.io/*/kubelet", Cut(), times=1)
...
assert mirror.requests()["dl.k8s.io/v1.34.4/bin/linux/amd64/kubelet"].requests == 2
mirror.reset()
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.errors import PartError, UsageError
from aks_flex_node.lab.mirror.switchboard import Fetched, Rule
from aks_flex_node.lab.mirror.switches import Switch, write_switch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LONGEST_ADDRESS = 107  # bytes of path that a UNIX socket address can hold


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """The path of a socket, by way of its directory's descriptor where it is too long to be an address."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("mirror", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with reachable(self.path) as address:
            self.sock.connect(address)


@dataclass(frozen=True)
class Added:
    rule: Rule
    files: int  # of the tree, that its pattern covers


@dataclass(frozen=True)
class Mirror:
    """A running mirror, by its control socket."""

    control: Path
    timeout: float = 10.0

    def add(self, glob: str, switch: Switch, times: int | None = None) -> Added:
        """Switch a fault on for the paths a pattern covers."""
        wire = self.call("POST", "/rules", {"glob": glob, **write_switch(switch), "times": times})
        return Added(Rule.read(wire), int(wire["files"]))

    def rules(self) -> tuple[Rule, ...]:
        """The rules in the order in which they apply."""
        return tuple(Rule.read(each) for each in self.call("GET", "/rules"))

    def remove(self, rule_id: int) -> bool:
        """Whether there was such a rule."""
        return bool(self.call("DELETE", f"/rules/{rule_id}")["removed"])

    def reset(self) -> None:
        """No faults, and all counts at nought."""
        self.call("POST", "/reset")

    def requests(self) -> dict[str, Fetched]:
        """What was fetched since the last reset, by `host/path`."""
        return {each["path"]: Fetched(**each) for each in self.call("GET", "/requests")}

    def answers(self) -> bool:
        """Whether a mirror is there."""
        try:
            self.rules()
        except PartError:
            return False
        return True

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            with closing(UnixConnection(self.control, self.timeout)) as connection:
                connection.request(method, path, json.dumps(body) if body is not None else None)
                answer = connection.getresponse()
                value = json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise PartError(
                "mirror-not-running",
                f"The mirror does not answer at {self.control}: {error}.",
                "Start the lab with `aks-flex-lab up`, or see `aks-flex-lab logs mirror`.",
            ) from error
        if answer.status != 200:
            raise UsageError.told(value)
        return value
