"""Interfaces through which checks see the network and file systems; requests that are retried once, and calls that
run concurrently up to one deadline.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aks_flex_node.agent.config.secret import Secret


class ProbeFailure(Enum):
    """Why nobody was heard."""

    NAME = "name"  # it cannot be looked up
    UNTRUSTED = "untrusted"  # it shows a certificate that nobody we trust has signed
    SILENCE = "silence"  # refused, cut, or no answer


class ProbeFailed(Exception):  # noqa: N818 - it is what a check asks for, and often expected
    """Nobody answered, or nobody we believe."""

    def __init__(self, cause: ProbeFailure, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason  # the cause as a clause: "the name x cannot be looked up"


@dataclass(frozen=True)
class ProbeResponse:
    """An answer to a request."""

    status: int
    date: float | None = None  # the server's clock, in seconds since 1970
    document: Mapping[str, Any] = field(default_factory=dict)  # its body, if that is a JSON object


@dataclass(frozen=True)
class ProbeRequest:
    """One question over HTTP that changes nothing at the other end."""

    url: str
    authority: bytes | None = field(default=None, repr=False)  # the only CA to trust (PEM); else the machine's own
    token: Secret | None = None
    body: Mapping[str, Any] | None = None  # sent as JSON, by POST
    first_byte: bool = False  # of a file: its first byte is enough


class NetworkProbe(Protocol):
    def resolve(self, name: str) -> tuple[str, ...]:
        """The addresses of a name; raises Unheard when it has none."""
        ...

    def ask(self, request: ProbeRequest) -> ProbeResponse:
        """What the server says, whatever its status; raises Unheard when none can be asked."""
        ...


@dataclass(frozen=True)
class FileSystemInfo:
    """A file system, as far as it matters."""

    device: int
    free: int  # bytes that root may use
    size: int
    inodes_free: int = 0
    inodes: int = 0  # none where the file system makes them as it needs them
    read_only: bool = False
    noexec: bool = False  # mounted noexec


RETRYABLE_STATUSES = frozenset((408, 425, 429))
RETRY_IF_FASTER_SECONDS = 1.0  # whoever took longer to fail would take as long again
PAUSE_SECONDS = 0.2


def is_retryable(status: int) -> bool:
    """Whether time heals it."""
    return status in RETRYABLE_STATUSES or status >= 500


def ask_with_retry(network: NetworkProbe, request: ProbeRequest) -> ProbeResponse:
    """The answer, or the second one when the first was a quick failure that may not come again."""
    start = time.monotonic()
    try:
        heard = network.ask(request)
        if not is_retryable(heard.status):
            return heard
    except ProbeFailed as silence:
        if silence.cause is not ProbeFailure.SILENCE or time.monotonic() - start > RETRY_IF_FASTER_SECONDS:
            raise
    time.sleep(PAUSE_SECONDS)
    return network.ask(request)


Item = TypeVar("Item")
CallResult = TypeVar("CallResult")


class CallTimeout(Exception):  # noqa: N818 - not yet wrong: it may still come
    """An answer that has not come in time."""


class BackgroundCall(Generic[CallResult]):
    """A question on its way. Its thread never keeps the program from ending."""

    def __init__(self, question: Callable[[], CallResult]) -> None:
        self._question = question
        self._told: list[CallResult] = []
        self._raised: list[Exception] = []
        self._thread = threading.Thread(target=self._work, name="preflight", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._told.append(self._question())
        except Exception as raised:  # whatever it is, it is told to whoever waits
            self._raised.append(raised)

    def wait(self, end: float) -> CallResult:
        """The answer; raises what the question raised, and Late when the clock passes the end."""
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._raised:
            raise self._raised[0]
        if not self._told:
            raise CallTimeout
        return self._told[0]


def run_concurrently(
    question: Callable[[Item], CallResult], things: Iterable[Item]
) -> list[tuple[Item, BackgroundCall[CallResult]]]:
    """Ask the same of many things; the answers come in the order of the things."""
    return [(thing, BackgroundCall(lambda thing=thing: question(thing))) for thing in things]  # type: ignore[misc]
