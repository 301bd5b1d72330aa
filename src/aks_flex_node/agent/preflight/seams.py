"""What checks see of the network and of disks, and the fakes of both for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.config.secret import Secret


class Cause(Enum):
    """Why nobody was heard."""

    NAME = "name"  # it cannot be looked up
    UNTRUSTED = "untrusted"  # it shows a certificate that nobody we trust has signed
    SILENCE = "silence"  # refused, cut, or no answer


class Unheard(Exception):  # noqa: N818 - it is what a check asks for, and often expected
    """Nobody answered, or nobody we believe."""

    def __init__(self, cause: Cause, words: str) -> None:
        super().__init__(words)
        self.cause = cause
        self.words = words  # the cause as a clause: "the name x cannot be looked up"


@dataclass(frozen=True)
class Heard:
    """An answer to a request."""

    status: int
    date: float | None = None  # the server's clock, in seconds since 1970
    document: Mapping[str, Any] = field(default_factory=dict)  # its body, if that is a JSON object


@dataclass(frozen=True)
class Request:
    """One question over HTTP that changes nothing at the other end."""

    url: str
    authority: bytes | None = field(default=None, repr=False)  # the only CA to trust (PEM); else the machine's own
    token: Secret | None = None
    body: Mapping[str, Any] | None = None  # sent as JSON, by POST
    first_byte: bool = False  # of a file: its first byte is enough


class Network(Protocol):
    def resolve(self, name: str) -> tuple[str, ...]:
        """The addresses of a name; raises Unheard when it has none."""
        ...

    def ask(self, request: Request) -> Heard:
        """What the server says, whatever its status; raises Unheard when none can be asked."""
        ...


@dataclass(frozen=True)
class Room:
    """A file system, as far as it matters."""

    device: int
    free: int  # bytes that root may use
    size: int
    inodes_free: int = 0
    inodes: int = 0  # none where the file system makes them as it needs them
    read_only: bool = False
    no_programs: bool = False  # mounted noexec


class RecordedNetwork:
    """Names and answers that a test wrote down; whatever is not written down is not there."""

    def __init__(
        self,
        names: Mapping[str, tuple[str, ...]] | None = None,
        answers: Mapping[str, Heard | Unheard] | None = None,
        first: Mapping[str, Heard | Unheard] | None = None,  # what some say once, before they answer as they do
    ) -> None:
        self._names = names or {}
        self._answers = answers or {}
        self._first = dict(first or {})
        self.asked: list[Request] = []

    def resolve(self, name: str) -> tuple[str, ...]:
        if name not in self._names:
            raise Unheard(Cause.NAME, f"the name {name} cannot be looked up: there is no such name")
        return self._names[name]

    def ask(self, request: Request) -> Heard:
        self.asked.append(request)
        usual = self._answers.get(request.url, Unheard(Cause.SILENCE, "nobody is there"))
        answer = self._first.pop(request.url, usual)
        if isinstance(answer, Unheard):
            raise answer
        return answer

    def but(self, answers: Mapping[str, Heard | Unheard], *, once: bool = False) -> RecordedNetwork:
        """The same network, where some URLs answer otherwise; or do so the first time."""
        if once:
            return RecordedNetwork(self._names, self._answers, answers)
        return RecordedNetwork(self._names, {**self._answers, **answers})
