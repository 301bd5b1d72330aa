"""One connection: read a request, find the file, ask the switchboard, answer, write a line of log."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from aks_flex_node.lab.mirror import checksums, trees
from aks_flex_node.lab.mirror.answers import Answer, Facts, answer
from aks_flex_node.lab.mirror.delivery import CHUNK, Body, DamagedBody, Delivery, FileBody, TextBody, hold, sever
from aks_flex_node.lab.mirror.switchboard import Request, Rule, Switchboard
from aks_flex_node.lab.mirror.switches import Checksum, Corrupt, Cut, Slow, Stall, Status

if TYPE_CHECKING:
    import io
    import socket
    import socketserver
    from collections.abc import Mapping
    from pathlib import Path

LARGEST_CHECKSUM_FILE = 1 << 20
STDOUT = 1


@dataclass(frozen=True)
class Site:
    """What all connections share."""

    root: Path
    board: Switchboard


@dataclass
class Record:
    """What the log will say about a request."""

    path: str
    asked: str = "-"  # the range
    status: int = 0
    sent: int = 0
    switch: str = "-"
    began: float = field(default_factory=time.monotonic)


class Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120  # seconds without any progress
    disable_nagle_algorithm = True

    def __init__(
        self, site: Site, request: socket.socket, client_address: object, server: socketserver.BaseServer
    ) -> None:
        self.site = site
        self.buffer: memoryview | None = None  # made with the first body, kept for the connection
        super().__init__(request, client_address, server)

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def _refuse_method(self) -> None:
        self.close_connection = True  # its body, if any, is not going to be read
        record = Record(self.path)
        self._say(record, 405, "This mirror knows GET and HEAD.", {"Allow": "GET, HEAD"})
        self._log(record)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse_method  # noqa: N815

    def _serve(self) -> None:
        target = trees.read_target(self.path, self.headers.get("Host", ""))
        record = Record(target.path, self.headers.get("Range", "-"))
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body that nobody reads must not be taken for the next request
        self.site.board.count(target.path, requests=1)
        try:
            self._answer(target, record)
        finally:
            self._log(record)

    def _answer(self, target: trees.Target, record: Record) -> None:
        file = trees.open_file(self.site.root, target)
        if file is None:
            self._answer_without_file(target, record)
            return
        with file:
            facts = Facts.of(target.names[-1], os.fstat(file.fileno()))
            reply = answer(facts, self._asked())
            rule = self._strike(self._request(target, file, reply), record)
            if rule and isinstance(rule.switch, Status):
                self._refuse(rule.switch, record)
                return
            self._head(record, reply.status, reply.headers)
            if self.command == "GET" and reply.length:
                self._send_body(file, reply, rule, record)

    def _asked(self) -> dict[str, str]:
        """The request's headers; a range has a meaning for GET alone."""
        asked = {name.lower(): value for name, value in self.headers.items()}
        if self.command != "GET":
            asked.pop("range", None)
        return asked

    def _answer_without_file(self, target: trees.Target, record: Record) -> None:
        rule = self._strike(Request(target.path, body=False), record)
        if rule and isinstance(rule.switch, Status):
            self._refuse(rule.switch, record)
            return
        known = trees.hosts(self.site.root)
        if target.host in known:
            self._say(record, 404, f"{target.host} has no such file here.")
        else:
            self._say(record, 404, f"No host {target.host!r} here. The hosts are: {', '.join(known) or 'none'}.")

    def _request(self, target: trees.Target, file: io.FileIO, reply: Answer) -> Request:
        body = self.command == "GET" and reply.length > 0
        summed = checksums.subjects(target.path, content(file)) if body and is_sum(target, file) else ()
        return Request(target.path, body, summed)

    def _strike(self, request: Request, record: Record) -> Rule | None:
        """The rule for this request, noted in the record."""
        rule = self.site.board.strike(request)
        if rule:
            record.switch = f"{rule.switch.kind}#{rule.id}"
        return rule

    def _send_body(self, file: io.FileIO, reply: Answer, rule: Rule | None, record: Record) -> None:
        def note(count: int) -> None:
            record.sent += count
            self.site.board.count(record.path, sent=count)

        if self.buffer is None:
            self.buffer = memoryview(bytearray(CHUNK))
        start, end = reply.start, reply.start + reply.length
        delivery = Delivery(self.connection, self._body(file, reply, rule, record), self.buffer, note)
        switch = rule.switch if rule else None
        if rule and isinstance(switch, Slow):
            delivery.drip(start, end, switch.rate, lambda: self.site.board.is_on(rule))
        elif rule and isinstance(switch, Cut | Stall):
            delivery.pour(start, start + switch.after.of(reply.length))
            if isinstance(switch, Stall):
                hold(self.connection, switch.hold, lambda: self.site.board.is_on(rule))
            self.close_connection = True
            sever(self.connection)
        else:
            delivery.pour(start, end)

    def _body(self, file: io.FileIO, reply: Answer, rule: Rule | None, record: Record) -> Body:
        if rule and isinstance(rule.switch, Corrupt):
            return DamagedBody.amid(FileBody(file), reply.start, reply.length)
        if rule and isinstance(rule.switch, Checksum):
            return TextBody(checksums.falsify(record.path, content(file), rule.glob))
        return FileBody(file)

    def _refuse(self, switch: Status, record: Record) -> None:
        headers = {} if switch.retry_after is None else {"Retry-After": str(switch.retry_after)}
        self._say(record, switch.code, f"{phrase(switch.code)}, as a switch of the lab demands.", headers)

    def _say(self, record: Record, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        """Answer with a line of text."""
        text = f"{sentence}\n".encode("utf-8", "backslashreplace")
        kind = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(text))}
        self._head(record, status, {**kind, **(headers or {})})
        if self.command != "HEAD":
            record.sent += len(text)
            self.wfile.write(text)

    def _head(self, record: Record, status: int, headers: Mapping[str, str]) -> None:
        record.status = status
        self.send_response(status, phrase(status))
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """What http.server calls for a request it cannot read: text, not a page."""
        self.close_connection = True
        self.command = self.command or "GET"
        record = Record("-")
        self._say(record, int(code), message or phrase(int(code)))
        self._log(record)

    def version_string(self) -> str:
        return "aks-flex-lab-mirror"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silent: one line a request is written by `_log`."""

    def _log(self, record: Record) -> None:
        milliseconds = (time.monotonic() - record.began) * 1000
        log(
            f"{self.command} {record.path} {record.status} bytes={record.sent} range={record.asked} "
            f"ms={milliseconds:.0f} switch={record.switch}"
        )


def is_sum(target: trees.Target, file: io.FileIO) -> bool:
    return checksums.is_checksum(target.path) and os.fstat(file.fileno()).st_size <= LARGEST_CHECKSUM_FILE


def content(file: io.FileIO) -> bytes:
    return os.pread(file.fileno(), LARGEST_CHECKSUM_FILE, 0)


def phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Refused"


def log(line: str) -> None:
    """One write a line, straight to the descriptor: the lines of several threads never mix."""
    clean = "".join(char if char.isprintable() else "?" for char in line)
    stamp = time.strftime("%H:%M:%S")
    os.write(STDOUT, f"{stamp} {clean}\n".encode("utf-8", "backslashreplace"))
