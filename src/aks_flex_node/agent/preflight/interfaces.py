"""What checks ask of the network and of file systems, and calls that run concurrently with one deadline."""

from __future__ import annotations

import threading
import time
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aks_flex_node.settings.secret import Secret


class ProbeFailure(Enum):
    """Why a probe failed."""

    NAME = "name"  # the name cannot be resolved
    UNTRUSTED = "untrusted"  # the certificate is not trusted
    SILENCE = "failure"  # connection refused, interrupted or timed out


class ProbeFailed(Exception):  # noqa: N818 - it is what a check asks for, and often expected
    """The server did not respond, or is not trusted."""

    def __init__(self, cause: ProbeFailure, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason  # a clause, for example: the DNS name x cannot be resolved


@frozen
class ProbeResponse:
    """The response to a probe."""

    status: int
    date: float | None = None  # the server's clock, Unix time
    document: Mapping[str, Any] = field(default_factory=dict)  # the body, if it is a JSON object


@frozen
class ProbeRequest:
    """An HTTP request that changes nothing on the server."""

    url: str
    authority: bytes | None = field(
        default=None, repr=False
    )  # the only CA to trust (PEM); None means the machine's CAs
    token: Secret | None = None
    body: Mapping[str, Any] | None = None  # sent as JSON with POST
    first_byte: bool = False  # request only the first byte of a file
    system_cas: bool = False  # do not trust the CA of the configuration


@frozen
class FileSystemInfo:
    """Free space and mount options of a file system."""

    device: int
    free: int  # bytes that root can use
    size: int
    inodes_free: int = 0
    inodes: int = 0  # 0 if the file system allocates inodes dynamically
    read_only: bool = False
    noexec: bool = False  # mounted noexec


Item = TypeVar("Item")
CallResult = TypeVar("CallResult")


class CallTimeout(Exception):  # noqa: N818 - not yet wrong: it may still come
    """A call did not finish before the deadline."""


class BackgroundCall(Generic[CallResult]):
    """A call in a daemon thread, which does not prevent the process from exiting."""

    def __init__(self, function: Callable[[], CallResult]) -> None:
        self._function = function
        self._results: list[CallResult] = []
        self._raised: list[Exception] = []
        self._thread = threading.Thread(target=self._work, name="preflight", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._results.append(self._function())
        except Exception as failure:  # raised again in wait()
            self._raised.append(failure)

    def wait(self, end: float) -> CallResult:
        """Returns the result. Raises the exception of the call, or CallTimeout after the deadline."""
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._raised:
            raise self._raised[0]
        if not self._results:
            raise CallTimeout
        return self._results[0]


def run_concurrently(
    function: Callable[[Item], CallResult], items: Iterable[Item]
) -> list[tuple[Item, BackgroundCall[CallResult]]]:
    """Calls a function for each item concurrently. The calls are returned in the order of the items."""
    return [(item, BackgroundCall(lambda item=item: function(item))) for item in items]  # type: ignore[misc]
