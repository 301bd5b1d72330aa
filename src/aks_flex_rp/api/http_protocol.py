"""uvicorn's HTTP protocol with limits on connections, on the size of request headers, and on every wait for a client.

The parser accepts headers of any size and waits for the rest of a request without limit, which would cost memory
and connections before the caller is authenticated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

    from aks_flex_rp.api.connection_limits import ConnectionLimiter

LARGEST_HEAD = 64 * 1024  # bytes of the request line and headers
HEAD_SECONDS = 20.0  # for a request's headers, from its first byte: also from a byte that begins no request
REST_SECONDS = 20.0  # for the rest of a request that has already been answered
WRITE_SECONDS = 60.0  # for a client to read a response that fills its buffers


class BoundedProtocol(HttpToolsProtocol):
    limiter: ConnectionLimiter
    _in_head = True
    _head = 0  # bytes received since the request line began
    _timer: asyncio.TimerHandle | None = None
    _in_body = False
    _rest_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limiter.admit(self, self.client[0] if self.client else ""):
            self._wait_for_head()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limiter.release(self)
        for timer in (self._timer, self._rest_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._rest_timer = self._write_timer = None
        self._in_head = self._in_body = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > LARGEST_HEAD:
            self.transport.abort()
        elif self._timer or self._in_head or self.cycle is None or self.cycle.response_complete:
            self._wait_for_head()  # most requests arrive in one piece and need no timer

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being served."""
        return (self.cycle is None or self.cycle.response_complete) and not self.pipeline

    @property
    def _lacks_request(self) -> bool:
        # Received data ends the wait of keep-alive, and an empty line begins no request.
        return self._in_head or self.is_waiting

    def drop(self) -> None:
        self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_head, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head = False, 0
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:  # uvicorn reads on after every response, so that pipelined requests could fill the memory
            self.flow.pause_reading()
        # The following data may already be the next request, pipelined before this response.
        unread_body = self._in_body and self.cycle.response_complete
        if unread_body and self._rest_timer is None and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(REST_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _wait_for_head(self) -> None:
        if self._lacks_request and self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(HEAD_SECONDS, self._abort)
        elif not self._lacks_request and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort(self) -> None:
        self._timer = None
        if self._lacks_request:
            self.transport.abort()


def bounded_by(limits: ConnectionLimiter) -> type[BoundedProtocol]:
    """Returns the protocol of a server whose connections these limits bound."""

    class LimitedProtocol(BoundedProtocol):
        limiter = limits

    return LimitedProtocol
