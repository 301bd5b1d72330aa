"""uvicorn's HTTP protocol with limits on the size of request headers and on the time to receive them.

The parser accepts headers of any size and waits for the rest of a request without limit, which would cost memory
and connections before the caller is authenticated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

LARGEST_HEAD = 64 * 1024  # bytes of the request line and headers
HEAD_SECONDS = 20.0
REST_SECONDS = 20.0  # for the rest of a request that has already been answered


class BoundedProtocol(HttpToolsProtocol):
    _in_head = True
    _head = 0  # bytes received since the request line began
    _timer: asyncio.TimerHandle | None = None
    _in_body = False
    _rest_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_head = self._in_body = False
        self._wait_for_head()
        self._wait_for_rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > LARGEST_HEAD:
            self.transport.abort()
        elif self._in_head or self._timer:  # most requests arrive in one piece and need no timer
            self._wait_for_head()

    def on_message_begin(self) -> None:
        self._in_head, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head = False, 0
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._wait_for_rest()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The following data may already be the next request, pipelined before this response.
        unread_body = self._in_body and self.cycle.response_complete
        if unread_body and self._rest_timer is None and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(REST_SECONDS, self.transport.abort)

    def _wait_for_head(self) -> None:
        if self._in_head and self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._abort)
        elif not self._in_head and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_for_rest(self) -> None:
        if not self._in_body and self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _abort(self) -> None:
        self._timer = None
        if self._in_head:
            self.transport.abort()
