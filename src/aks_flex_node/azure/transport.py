"""The transport of all requests to Azure: azure-core's, with limits of time and size for each response, and for the
pause that a server may ask for. Imported together with azure-core, when a call is made.
"""

from __future__ import annotations

import zlib
from typing import Any

import requests
from azure.core.pipeline.transport import RequestsTransport
from requests.adapters import HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import HTTPError, ProtocolError

from aks_flex_node.azure.retry_policy import MAX_RETRY_AFTER_SECONDS
from aks_flex_node.bounded_http.connections import bound, protocol_cause
from aks_flex_node.bounded_http.limits import BodyLimitError, RequestTimeout, read_body, time_limit

CONNECT_SECONDS, READ_SECONDS, TOTAL_SECONDS = 10.0, 30.0, 60.0
MAX_RESPONSE_BYTES = 16 << 20  # a page of a list is a few megabytes


class BoundedTransport(RequestsTransport):  # type: ignore[misc] # azure-core loads it on demand
    """Reads each response completely, and only within its limits."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"connection_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, **options})

    def _init_session(self, session: requests.Session) -> None:
        super()._init_session(session)
        for scheme in ("http://", "https://"):
            session.mount(scheme, BoundedAdapter(max_retries=Retry(False, redirect=False, raise_on_status=False)))

    def sleep(self, duration: float) -> None:
        """Pauses before a retry. A server could ask for hours."""
        super().sleep(min(duration, MAX_RETRY_AFTER_SECONDS))


class BoundedAdapter(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        bound(self.poolmanager)

    def proxy_manager_for(self, proxy: Any, **options: Any) -> Any:
        return bound(super().proxy_manager_for(proxy, **options))

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        request.headers["Accept-Encoding"] = "identity"
        try:
            with time_limit(TOTAL_SECONDS):
                response = super().send(request, *arguments, **{**options, "stream": True})
                content = read_body(response.raw, MAX_RESPONSE_BYTES)
                response.raw.release_conn()
                content = decode(content, response.raw.headers.get("Content-Encoding", ""))
        except RequestTimeout as error:
            raise requests.exceptions.ReadTimeout(str(error)) from None
        except BodyLimitError as error:
            raise requests.exceptions.RequestException(f"The response cannot be used: {error}") from None
        except requests.exceptions.ConnectionError as error:
            if error.args and isinstance(error.args[0], ProtocolError):
                raise requests.exceptions.ConnectionError(explain(error.args[0])) from None
            raise
        except ProtocolError as error:  # while the body is read
            raise requests.exceptions.ConnectionError(explain(error)) from None
        except HTTPError as error:
            raise requests.exceptions.ConnectionError(error) from error
        # The response must not be read again, without limits.
        response._content = content
        response._content_consumed = True
        return response


def explain(error: ProtocolError) -> ProtocolError:
    """Returns the error with a message for operators instead of the names of exceptions."""
    return ProtocolError(protocol_cause(error))


def decode(content: bytes, encoding: str) -> bytes:
    """Decompresses a body, which was not asked for, within the limit of size."""
    if encoding.lower() not in {"gzip", "x-gzip", "deflate"}:
        return content
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        text = decoder.decompress(content, MAX_RESPONSE_BYTES)
    except zlib.error:
        raise BodyLimitError("its compressed data is damaged") from None
    if decoder.unconsumed_tail:
        raise BodyLimitError(f"it is larger than {MAX_RESPONSE_BYTES >> 20} MiB")
    return text
