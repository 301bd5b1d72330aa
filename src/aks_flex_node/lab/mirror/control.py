"""The server's end of the control socket.

    GET    /rules       the rules in the order they apply, with their hits
    POST   /rules       add one: {"glob", "kind", …, "times"}; answers with it, and how many files it covers
    DELETE /rules/ID    take one away
    POST   /reset       take all away, and forget what was fetched
    GET    /requests    what was fetched, how often

It is a UNIX socket with mode 0600: who may open the file may switch, and the network cannot see it.
"""

from __future__ import annotations

import json
import os
import socketserver
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.errors import LabError, UsageError
from aks_flex_node.lab.mirror.client import Mirror, reachable
from aks_flex_node.lab.mirror.switches import read_switch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_node.lab.mirror.exchange import Site

LARGEST_CALL = 1 << 16


class ControlServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class ControlCall(BaseHTTPRequestHandler):
    timeout = 30

    def __init__(self, site: Site, request: Any, client_address: Any, server: socketserver.BaseServer) -> None:
        self.site = site
        super().__init__(request, client_address, server)

    def do_GET(self) -> None:
        self._reply()

    def do_POST(self) -> None:
        self._reply()

    def do_DELETE(self) -> None:
        self._reply()

    def _reply(self) -> None:
        try:
            status, value = 200, carry_out(self.site, self.command, self.path, self._body())
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
            body = json.loads(self.rfile.read(min(length, LARGEST_CALL)))
        except ValueError as error:
            raise UsageError("call-not-json", f"The call's body is not JSON: {error}.") from error
        if not isinstance(body, dict):
            raise UsageError("call-not-json", "The call's body is not a JSON object.")
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silent: the log is for what was fetched."""


def carry_out(site: Site, method: str, path: str, body: Mapping[str, Any]) -> Any:
    """One call: what it changes, and what it answers."""
    board = site.board
    match (method, *path.strip("/").split("/")):
        case ("GET", "rules"):
            return [rule.wire() for rule in board.rules()]
        case ("POST", "rules"):
            rule = board.add(str(body.get("glob", "")), read_switch(body), read_times(body.get("times")))
            return {**rule.wire(), "files": covered(site.root, rule.glob)}
        case ("DELETE", "rules", number) if number.isdigit():
            return {"removed": board.remove(int(number))}
        case ("POST", "reset"):
            board.reset()
            return {}
        case ("GET", "requests"):
            return [asdict(each) for each in board.fetched()]
    raise UsageError("call-unknown", f"The mirror's control knows no {method} {path}.")


def read_times(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise UsageError("rule-invalid", f"`times` is a whole number, not {value!r}.")


def covered(root: Path, glob: str) -> int:
    """How many files of the tree a pattern covers: nought is most often a slip of the fingers."""
    files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    return sum(fnmatchcase(str(file.relative_to(root)), glob) for file in files)


@contextmanager
def listen_for_control(path: Path, site: Site) -> Iterator[ControlServer]:
    """The socket while the mirror runs; one that a dead mirror left behind is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_socket():
        if Mirror(path).answers():
            raise LabError("mirror-already-running", f"Another mirror already answers at {path}.")
        path.unlink()
    before = os.umask(0o177)
    try:
        with reachable(path) as address:
            server = ControlServer(address, partial(ControlCall, site))
    finally:
        os.umask(before)
    try:
        yield server
    finally:
        path.unlink(missing_ok=True)
        server.server_close()
