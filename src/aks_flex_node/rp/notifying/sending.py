"""Taking messages from the outbox to their receivers, each receiver by itself.

A receiver that is not well is left alone for a while, longer each time; its messages wait in their order. One that
refuses a message is asked again about that message, rarely, while others pass it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.rp.notifying.posting import AT_ONCE, Outcome, Post

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.rp.notifying.hooks import Hook
    from aks_flex_node.rp.store.outbox import Message, Messages

    Count = Callable[[str, int], None]

LEASE = 30.0  # seconds: above what a try takes; when the service is killed in it, the message goes out after that
FIRST, LONGEST = 5.0, 3600.0  # seconds between tries of a message
LEFT_ALONE = 300.0  # the longest that a receiver is: it may be well, and only one message that it got last is not
REFUSED_FIRST = 300.0
DAY = 86400.0  # after which a message is given up

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """How long things take; tests are in more of a hurry."""

    first: float = FIRST
    refused_first: float = REFUSED_FIRST
    lease: float = LEASE

    def pause(self, tries: int, first: float, longest: float = LONGEST) -> float:
        """After so many tries without success; never in step with others."""
        return min(first * 2.0 ** min(tries - 1, 20), longest) * random.uniform(0.5, 1)  # noqa: S311 - no secret


class Sender:
    """Of one receiver. `count` is told how tries ended, and how many."""

    def __init__(self, hook: Hook, store: Messages, count: Count, pace: Pace | None = None) -> None:
        self._hook, self._store, self._count, self._pace = hook, store, count, pace or Pace()
        self._post = Post(hook)
        self._threads = ThreadPoolExecutor(AT_ONCE, "webhook")  # a slow receiver takes nobody else's
        self._failures = 0  # batches in a row of which nothing arrived
        self._not_before = 0.0
        self._gone = False

    async def once(self) -> None:
        """Until nothing is due, or the receiver is not well."""
        if self._gone:
            await self._drop()
            return
        while time.time() >= self._not_before and not self._gone:
            messages = await self._store.due_messages(self._hook.key, time.time(), AT_ONCE, self._pace.lease)
            if not messages:
                return
            await self._settle(messages, await asyncio.gather(*map(self._send, messages)))

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _send(self, message: Message) -> Outcome:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._post.send, message.id, message.body)

    async def _settle(self, messages: tuple[Message, ...], outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self._count(outcome.verdict, 1)
        self._judge(outcomes)
        await asyncio.gather(*map(self._note, messages, outcomes))
        if self._gone:
            await self._drop()

    async def _note(self, message: Message, outcome: Outcome) -> None:
        if outcome.verdict == "sent":
            await self._store.message_sent(message)
            return
        refused = outcome.verdict == "refused"
        await self._store.message_failed(message, self._again(message, outcome), outcome.why, refused=refused)

    def _judge(self, outcomes: list[Outcome]) -> None:
        """How the receiver is, by all that came of a batch."""
        if any(each.verdict == "gone" for each in outcomes):
            self._gone = True
            log.warning("%s wants no more messages (410), and gets none until the next start.", self._hook.title)
        well = any(each.verdict in {"sent", "refused"} for each in outcomes)
        if well:
            self._failures = 0
            return
        self._failures += 1
        pause = self._pace.pause(self._failures, self._pace.first, LEFT_ALONE)
        self._not_before = time.time() + max(pause, *(each.wait for each in outcomes))
        if self._failures == 1:
            log.warning("%s gets no messages now, and is tried again: %s", self._hook.title, outcomes[0].why)

    def _again(self, message: Message, outcome: Outcome) -> float:
        if outcome.verdict == "refused":
            return time.time() + self._pace.pause(message.attempts, self._pace.refused_first)
        if self._failures:
            return self._not_before
        return time.time() + max(outcome.wait, self._pace.pause(message.attempts, self._pace.first))

    async def _drop(self) -> None:
        self._count("dropped", await self._store.drop_messages(self._hook.key))


@dataclass(frozen=True)
class Tidying:
    """What no receiver will get any more: messages beyond the bound, the oldest first, and those of yesterday."""

    store: Messages
    hooks: tuple[Hook, ...]
    most: int
    count: Count

    async def once(self) -> None:
        if gone := await self.store.forget_messages(time.time() - DAY):
            self.count("expired", gone)
            log.warning("%d messages were given up after a day.", gone)
        for hook in self.hooks:
            if dropped := await self.store.trim_messages(hook.key, self.most):
                self.count("dropped", dropped)
                log.warning("%d messages to %s were dropped: too many wait.", dropped, hook.title)
