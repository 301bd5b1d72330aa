"""Assertions of the node key, which the daemon sends to the provider instead of tokens of Entra ID.

An assertion is valid for five minutes. A child process signs those of the next hour at once, so that the daemon does
not load the cryptography library. If the provider refuses the time of an assertion, the next ones use its time.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.http.client import parse_clock_offset
from aks_flex_node.agent.identity.node_key import NodeKeyStore, StoredKey
from aks_flex_node.agent.provider.provider_tokens import sign_in_failed
from aks_flex_node.api.arm_errors import NODE_KEY_TIME
from aks_flex_node.api.node_keys import ASSERTION_SECONDS, ASSERTION_TYPE
from aks_flex_node.host import processes
from aks_flex_node.lean_dataclass import dataclass, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.host.host import CommandResult, Host

SIGN_SECONDS = 300.0  # limit for the child process, which an overloaded machine starts slowly
STEP_SECONDS = 240.0  # for which an assertion is used
BATCH = 15  # assertions that are signed at once: an hour


@frozen
class AssertionBatch:
    thumbprint: str  # of the key that signed
    audience: str
    begun: float  # monotonic clock, so that clock changes have no effect
    tokens: tuple[str, ...] = field(repr=False)

    def at(self, now: float) -> str:
        """Returns the assertion for this moment; empty if the batch is used up."""
        number = int((now - self.begun) // STEP_SECONDS)
        return self.tokens[number] if 0 <= number < len(self.tokens) else ""


@dataclass
class NodeAssertions:
    program: str
    host: Host
    subject: str  # resource ID of the node
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    run: Callable[..., CommandResult] = processes.run
    in_process: bool = False  # for commands that end soon
    by_previous: bool = False  # signs with the key that the present one replaced
    clock_offset: float = 0.0  # that the provider's time differs from the clock of this machine
    _batch: AssertionBatch | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def value(self) -> str:
        """Returns an assertion, or an empty string if no provider has bound the key of this machine.

        Raises SignInError if none can be signed.
        """
        key = _signing_key(self.host, previous=self.by_previous)
        if key is None or not key.is_bound:
            return ""
        with self._lock:
            batch = self._batch
            if batch is None or (batch.thumbprint, batch.audience) != (key.thumbprint, key.audience):
                batch = None
            found = batch.at(self.clock()) if batch else ""
            if not found:
                self._batch = self._sign(key.thumbprint, key.audience)
                found = self._batch.tokens[0]
            return found

    def reject(self, code: str, headers: Mapping[str, str]) -> None:
        """Handles a refusal: the assertions are signed again, with the provider's time if it refused their time."""
        self._batch = None
        if code == NODE_KEY_TIME:
            offset = parse_clock_offset(headers, self.wall_clock())
            self.clock_offset = offset if offset is not None else self.clock_offset

    @property
    def keys(self) -> NodeKeyStore:
        return NodeKeyStore(self.host)

    @property
    def clock_note(self) -> str:
        """Returns what `status` shows if the clock of this machine is wrong."""
        if not self.clock_offset:
            return ""
        direction = "behind" if self.clock_offset > 0 else "ahead of"
        return (
            f"The clock of this machine is {abs(self.clock_offset):.0f} s {direction} the provider's. Requests use "
            "the provider's time. Check the time synchronization of this machine."
        )

    def _sign(self, thumbprint: str, audience: str) -> AssertionBatch:
        begun = self.clock()
        moment = self.wall_clock() + self.clock_offset
        asked = {"subject": self.subject.lower(), "audience": audience, "begin": moment}
        asked |= {"previous": True} if self.by_previous else {}
        lines: list[str] = []
        try:
            if self.in_process:
                document = sign_assertions(self.host, asked)
            else:
                command = (self.program, "node-assertions")
                result = self.run(command, seconds=SIGN_SECONDS, text=json.dumps(asked).encode())
                lines = result.err.strip().splitlines()
                document = json.loads(result.out)
            tokens = tuple(str(each) for each in document["tokens"])
            if document["thumbprint"] == thumbprint and tokens:
                return AssertionBatch(thumbprint, audience, begun, tokens)
            cause = "the key was replaced at the same time"
        except (ValueError, KeyError, TypeError):
            cause = lines[-1][:300] if lines else "the process that signs printed no error"
        raise sign_in_failed(f"the node key could not sign: {cause}")


def _signing_key(host: Host, *, previous: bool) -> StoredKey | None:
    key = NodeKeyStore(host).read()
    return key.previous if key and previous else key


def sign_assertions(host: Host, asked: Mapping[str, Any]) -> dict[str, Any]:
    from aks_flex_node.api.node_keys import sign_tokens

    key = _signing_key(host, previous=bool(asked.get("previous")))
    if key is None:
        return {"thumbprint": "", "tokens": []}
    begins = [float(asked["begin"]) + number * STEP_SECONDS for number in range(BATCH)]
    claims = {"sub": str(asked["subject"]), "aud": str(asked["audience"])}
    periods = [(begin, begin + ASSERTION_SECONDS) for begin in begins]
    return {"thumbprint": key.thumbprint, "tokens": sign_tokens(key.private_key, ASSERTION_TYPE, claims, periods)}
