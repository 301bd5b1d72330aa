"""The control socket of the mirror, a UNIX socket with mode 0600: server and client.

A call is a line of JSON with an action and its values, and the reply a line with the `value` or an `error`:

    rules       the rules in the order they apply, with their hits
    add         add a rule; returns it, and the number of files it matches
    reset       remove all rules, and clear the request counts
    requests    the requested paths with their counts
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab.errors import ComponentError, LabError, UsageError
from aks_flex_lab.mirror.fault_rules import FaultRule, MirrorFault, RequestCount, fault_from_texts, fault_to_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_lab.mirror.server import MirrorState


MAX_SOCKET_PATH = 107  # the longest path of a UNIX socket address, in bytes


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yields an address for the path of a socket; a long path goes through a descriptor of its directory."""
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@dataclass(frozen=True)
class AddedRule:
    rule: FaultRule
    files: int  # number of files of the tree that its pattern matches


@dataclass(frozen=True)
class MirrorClient:
    """A client of a running mirror's control socket."""

    control: Path
    timeout: float = 10.0

    def add(self, glob: str, fault: MirrorFault, times: int | None = None) -> AddedRule:
        """Adds a fault rule for the paths that match a pattern."""
        added = self.call("add", glob=glob, fault=fault_to_texts(fault), times=times)
        return AddedRule(FaultRule.from_document(added["rule"]), added["files"])

    def rules(self) -> tuple[FaultRule, ...]:
        """Returns the fault rules in the order in which they apply."""
        return tuple(FaultRule.from_document(each) for each in self.call("rules"))

    def reset(self) -> None:
        """Removes all fault rules and resets the request counts."""
        self.call("reset")

    def requests(self) -> dict[str, RequestCount]:
        """Returns the request counts since the last reset, by `host/path`."""
        return {each["path"]: RequestCount(**each) for each in self.call("requests")}

    def is_running(self) -> bool:
        """Returns whether a mirror responds at the socket."""
        try:
            self.rules()
        except ComponentError:
            return False
        return True

    def call(self, action: str, **values: Any) -> Any:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(self.timeout)
                with socket_address(self.control) as address:
                    connection.connect(address)
                connection.sendall(json.dumps({"action": action, **values}).encode() + b"\n")
                reply = json.loads(connection.makefile().readline())
        except (OSError, ValueError) as error:
            raise ComponentError(
                "mirror-not-running",
                f"The mirror does not respond at {self.control}: {error}.",
                "Run `aks-flex-lab up`, or `aks-flex-lab logs mirror`.",
            ) from error
        if "error" in reply:
            raise UsageError.from_document(reply["error"])
        return reply["value"]


class ControlServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, address: str, state: MirrorState) -> None:
        self.state = state
        super().__init__(address, ControlRequestHandler)


class ControlRequestHandler(socketserver.StreamRequestHandler):
    server: ControlServer
    timeout = 30

    def handle(self) -> None:
        try:
            reply = {"value": answer_call(self.server.state, json.loads(self.rfile.readline()))}
        except LabError as error:
            reply = {"error": {"name": error.name, "message": error.message, "hint": error.hint}}
        self.wfile.write(json.dumps(reply).encode() + b"\n")


def answer_call(state: MirrorState, call: Mapping[str, Any]) -> Any:
    rules = state.rules
    match call["action"]:
        case "rules":
            return [rule.document for rule in rules.rules()]
        case "add":
            rule = rules.add(call["glob"], fault_from_texts(call["fault"]), call["times"])
            files = (Path(folder, name) for folder, _, names in os.walk(state.root) for name in names)
            matches = sum(fnmatchcase(str(file.relative_to(state.root)), rule.glob) for file in files)
            return {"rule": rule.document, "files": matches}
        case "reset":
            return rules.reset()
        case _:
            return [asdict(each) for each in rules.request_counts()]


@contextmanager
def listen_for_control(path: Path, state: MirrorState) -> Iterator[ControlServer]:
    """Opens the control socket for the block; replaces the socket of a mirror that exited without removing it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_socket():
        if MirrorClient(path).is_running():
            raise LabError(
                "mirror-already-running",
                f"Another mirror already runs at {path}.",
                "Run `aks-flex-lab down`, then `aks-flex-lab up`.",
            )
        path.unlink()
    before = os.umask(0o177)
    try:
        with socket_address(path) as address:
            server = ControlServer(address, state)
    finally:
        os.umask(before)
    try:
        yield server
    finally:
        path.unlink(missing_ok=True)
        server.server_close()
