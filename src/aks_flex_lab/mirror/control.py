"""The control socket of the mirror: server and client.

    GET    /rules       the rules in the order they apply, with their hits
    POST   /rules       add a rule: {"glob", "kind", …, "times"}; returns it, and the number of files it matches
    DELETE /rules/ID    remove a rule
    POST   /reset       remove all rules, and clear the request counts
    GET    /requests    the requested paths with their counts

It is a UNIX socket with mode 0600.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import socketserver
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab.errors import ComponentError, LabError, UsageError
from aks_flex_lab.mirror.fault_rules import FaultRule, MirrorFault, RequestCount, fault_from_json, fault_to_json

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


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("mirror", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with socket_address(self.path) as address:
            self.sock.connect(address)


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
        wire = self.call("POST", "/rules", {"glob": glob, **fault_to_json(fault), "times": times})
        return AddedRule(FaultRule.from_json(wire), int(wire["files"]))

    def rules(self) -> tuple[FaultRule, ...]:
        """Returns the fault rules in the order in which they apply."""
        return tuple(FaultRule.from_json(each) for each in self.call("GET", "/rules"))

    def remove(self, rule_id: int) -> bool:
        """Removes a fault rule; returns whether it existed."""
        return bool(self.call("DELETE", f"/rules/{rule_id}")["removed"])

    def reset(self) -> None:
        """Removes all fault rules and resets the request counts."""
        self.call("POST", "/reset")

    def requests(self) -> dict[str, RequestCount]:
        """Returns the request counts since the last reset, by `host/path`."""
        return {each["path"]: RequestCount(**each) for each in self.call("GET", "/requests")}

    def is_running(self) -> bool:
        """Returns whether a mirror responds at the socket."""
        try:
            self.rules()
        except ComponentError:
            return False
        return True

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            with closing(UnixConnection(self.control, self.timeout)) as connection:
                connection.request(method, path, json.dumps(body) if body is not None else None)
                answer = connection.getresponse()
                value = json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ComponentError(
                "mirror-not-running",
                f"The mirror does not respond at {self.control}: {error}.",
                "Run `aks-flex-lab up`, or `aks-flex-lab logs mirror`.",
            ) from error
        if answer.status != 200:
            raise UsageError.from_document(value)
        return value


MAX_BODY_BYTES = 1 << 16


class ControlServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class ControlRequestHandler(BaseHTTPRequestHandler):
    timeout = 30

    def __init__(
        self, state: MirrorState, request: Any, client_address: Any, server: socketserver.BaseServer
    ) -> None:
        self.site = state
        super().__init__(request, client_address, server)

    def do_GET(self) -> None:
        self._reply()

    def do_POST(self) -> None:
        self._reply()

    def do_DELETE(self) -> None:
        self._reply()

    def _reply(self) -> None:
        try:
            status, value = 200, handle_call(self.site, self.command, self.path, self._body())
        except LabError as error:
            status, value = 400, {"name": error.name, "message": error.message, "hint": error.hint}
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _body(self) -> Mapping[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if not length:
            return {}
        try:
            body = json.loads(self.rfile.read(min(length, MAX_BODY_BYTES)))
        except ValueError as error:
            raise UsageError("mirror-request-invalid", f"The request body is not JSON: {error}.") from error
        if not isinstance(body, dict):
            raise UsageError("mirror-request-invalid", "The request body is not a JSON object.")
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Logs nothing: the log of the mirror contains only downloads."""


def handle_call(state: MirrorState, method: str, path: str, body: Mapping[str, Any]) -> Any:
    """Executes a call and returns its response."""
    board = state.rules
    match (method, *path.strip("/").split("/")):
        case ("GET", "rules"):
            return [rule.to_json() for rule in board.rules()]
        case ("POST", "rules"):
            rule = board.add(str(body.get("glob", "")), fault_from_json(body), read_times(body.get("times")))
            files = (Path(folder, name) for folder, _, names in os.walk(state.root) for name in names)
            return {
                **rule.to_json(),
                "files": sum(fnmatchcase(str(file.relative_to(state.root)), rule.glob) for file in files),
            }
        case ("DELETE", "rules", number) if number.isdigit():
            return {"removed": board.remove(int(number))}
        case ("POST", "reset"):
            board.reset()
            return {}
        case ("GET", "requests"):
            return [asdict(each) for each in board.request_counts()]
    raise UsageError("mirror-request-unknown", f"The control socket of the mirror does not support {method} {path}.")


def read_times(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise UsageError("mirror-rule-invalid", f"`times` must be a whole number, not {value!r}.")


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
            server = ControlServer(address, partial(ControlRequestHandler, state))
    finally:
        os.umask(before)
    try:
        yield server
    finally:
        path.unlink(missing_ok=True)
        server.server_close()
