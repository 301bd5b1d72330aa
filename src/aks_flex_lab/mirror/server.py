"""The mirror's HTTP server: TLS, one thread for each connection, requests, fault rules, access log."""

from __future__ import annotations

import os
import socket
import socketserver
import ssl
import sys
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from aks_flex_lab.errors import HostError, UsageError
from aks_flex_lab.mirror import served_files
from aks_flex_lab.mirror.fault_rules import (
    ChecksumFault,
    CorruptFault,
    CutFault,
    FaultRule,
    FaultRuleTable,
    MirrorRequest,
    SlowFault,
    StallFault,
    StatusFault,
)
from aks_flex_lab.mirror.responses import (
    BodySender,
    FileResponse,
    ReadBody,
    damaged,
    file_response,
    hold_connection,
    reset_connection,
)

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Mapping
    from pathlib import Path


LARGEST_CHECKSUM_FILE = 1 << 20
STDOUT = 1


@dataclass(frozen=True)
class MirrorState:
    """The state that all connections share."""

    root: Path
    rules: FaultRuleTable


@dataclass
class AccessLogEntry:
    """The line of the access log for a request."""

    path: str
    range_header: str = "-"  # the Range header
    status: int = 0
    sent: int = 0
    switch: str = "-"
    began: float = field(default_factory=time.monotonic)
    count_bytes: Callable[[int], None] = field(default=lambda _sent: None, repr=False)


class MirrorRequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120  # seconds without any progress
    disable_nagle_algorithm = True
    server: MirrorServer

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def _refuse_method(self) -> None:
        self.close_connection = True  # its body, if any, is not read
        record = AccessLogEntry(self.path)
        self._send_text(record, 405, "This mirror supports only GET and HEAD.", {"Allow": "GET, HEAD"})
        self._log(record)

    do_POST = do_PUT = do_PATCH = do_DELETE = _refuse_method  # noqa: N815

    def _serve(self) -> None:
        path = served_files.requested_path(self.path, self.headers.get("Host", ""))
        record = AccessLogEntry(path, self.headers.get("Range", "-"))
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # An unread body must not be parsed as the next request.
        record.count_bytes = self.server.state.rules.count_request(path)
        try:
            self._answer(record)
        finally:
            self._log(record)

    def _answer(self, record: AccessLogEntry) -> None:
        with served_files.open_file(self.server.state.root, record.path) or nullcontext() as file:
            reply = file_response(*self._requested(file)) if file else FileResponse(404, {})
            has_body = self.command == "GET" and reply.length > 0
            summed: tuple[str, ...] = ()
            if file and has_body and record.path.endswith(served_files.CHECKSUM_SUFFIXES):
                summed = served_files.checksum_subjects(record.path, read_content(file))
            rule = self.server.state.rules.match(MirrorRequest(record.path, has_body, summed))
            if rule:
                record.switch = f"{rule.fault.kind}#{rule.id}"
            if rule and isinstance(rule.fault, StatusFault):
                self._refuse(rule.fault, record)
            elif file is None:
                hint = "`aks-flex-lab tools install NAME@VERSION` adds the releases of a tool."
                self._send_text(record, 404, f"The mirror does not have {record.path}. {hint}")
            else:
                self._head(record, reply.status, reply.headers)
                if has_body:
                    self._send_body(file, reply, rule, record)

    def _requested(self, file: io.FileIO) -> tuple[os.stat_result, str, str | None]:
        range_header = self.headers.get("Range", "") if self.command == "GET" else ""
        return os.fstat(file.fileno()), range_header, self.headers.get("If-Range")

    def _send_body(
        self, file: io.FileIO, reply: FileResponse, rule: FaultRule | None, record: AccessLogEntry
    ) -> None:
        def note(count: int) -> None:
            record.sent += count
            record.count_bytes(count)

        start, end = reply.start, reply.start + reply.length
        delivery = BodySender(self.connection, body(file, reply, rule, record.path), note)
        rules, fault = self.server.state.rules, rule.fault if rule else None
        if rule and isinstance(fault, SlowFault):
            delivery.send_throttled(start, end, fault.rate, lambda: rules.is_active(rule))
        elif rule and isinstance(fault, CutFault | StallFault):
            delivery.send(start, start + fault.after.of(reply.length))
            if isinstance(fault, StallFault):
                hold_connection(self.connection, fault.hold, lambda: rules.is_active(rule))
            self.close_connection = True
            reset_connection(self.connection)
        else:
            delivery.send(start, end)

    def _refuse(self, fault: StatusFault, record: AccessLogEntry) -> None:
        headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
        self._send_text(
            record, fault.code, f"{reason_phrase(fault.code)}, because of a fault rule of the lab.", headers
        )

    def _send_text(
        self, record: AccessLogEntry, status: int, sentence: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends a response with a line of text."""
        text = f"{sentence}\n".encode("utf-8", "backslashreplace")
        kind = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(text))}
        self._head(record, status, {**kind, **(headers or {})})
        if self.command != "HEAD":
            record.sent += len(text)
            self.wfile.write(text)

    def _head(self, record: AccessLogEntry, status: int, headers: Mapping[str, str]) -> None:
        record.status = status
        self.send_response(status, reason_phrase(status))
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Sends an error as text instead of HTML; http.server calls it for an invalid request."""
        self.close_connection = True
        self.command = self.command or "GET"
        record = AccessLogEntry("-")
        self._send_text(record, int(code), message or reason_phrase(int(code)))
        self._log(record)

    def version_string(self) -> str:
        return "aks-flex-lab-mirror"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Logs nothing: `_log` writes one line for each request."""

    def _log(self, record: AccessLogEntry) -> None:
        milliseconds = (time.monotonic() - record.began) * 1000
        write_log(
            f"{self.command} {record.path} {record.status} bytes={record.sent} range={record.range_header} "
            f"ms={milliseconds:.0f} switch={record.switch}"
        )


def body(file: io.FileIO, reply: FileResponse, rule: FaultRule | None, path: str) -> ReadBody:
    """Returns what reads the body of a response, which a fault may falsify."""

    def read(offset: int, count: int) -> bytes:
        return os.pread(file.fileno(), count, offset)

    if rule and isinstance(rule.fault, CorruptFault):
        return damaged(read, reply.start, reply.length)
    if rule and isinstance(rule.fault, ChecksumFault):
        text = served_files.falsify_checksums(path, read_content(file), rule.glob)
        return lambda offset, count: text[offset : offset + count]
    return read


def read_content(file: io.FileIO) -> bytes:
    return os.pread(file.fileno(), LARGEST_CHECKSUM_FILE, 0)


def reason_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Refused"


def write_log(line: str) -> None:
    """Writes a line with one system call, so that the lines of several threads do not mix."""
    clean = "".join(char if char.isprintable() else "?" for char in line)
    stamp = time.strftime("%H:%M:%S")
    os.write(STDOUT, f"{stamp} {clean}\n".encode("utf-8", "backslashreplace"))


HANDSHAKE_SECONDS = 20.0


class MirrorServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], state: MirrorState, tls: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.tls = tls
        self.state = state
        super().__init__(address, MirrorRequestHandler)

    def server_bind(self) -> None:
        # HTTPServer resolves its own name here, which takes many seconds without a DNS server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(HANDSHAKE_SECONDS)
        with self.tls.wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)
            close_tls(secure)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Logs a line for a client that disconnects or rejects the certificate; a traceback for other errors."""
        error = sys.exc_info()[1]
        if isinstance(error, ConnectionError | TimeoutError | ssl.SSLError):
            write_log(f"connection from {client_address[0]} ended: {error}")
        else:
            traceback.print_exc()


def close_tls(connection: ssl.SSLSocket) -> None:
    """Sends the TLS close alert without waiting for the client's."""
    if connection.fileno() < 0:
        return
    try:
        connection.settimeout(0)
        connection.unwrap()
    except (OSError, ValueError):
        return


def server_tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM+AES128:ECDHE+AESGCM:ECDHE+CHACHA20")
    # The kernel encrypts if Python (3.12 or later) and the kernel support it. Otherwise, this has no effect.
    context.options |= getattr(ssl, "OP_ENABLE_KTLS", 0)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise UsageError(
            "mirror-certificate-invalid",
            f"The certificate {cert} with the key {key} cannot be used: {error}.",
            "Run `aks-flex-lab down`, then `aks-flex-lab up`, which creates new certificates.",
        ) from error
    return context


def listen(address: tuple[str, int], state: MirrorState, tls: ssl.SSLContext | None) -> MirrorServer:
    try:
        return MirrorServer(address, state, tls)
    except OSError as error:
        host, port = address
        raise HostError(
            "address-in-use",
            f"The mirror cannot listen on {host} port {port}: {error.strerror}.",
            "Find the process with `ss -ltnp`, or run `aks-flex-lab down` if it belongs to an earlier lab.",
        ) from error
