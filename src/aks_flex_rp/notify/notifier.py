"""Background tasks of notifications: send messages with retries, trim the outbox, detect silent nodes.

An unavailable receiver is retried with backoff while its messages wait in order. A rejected message is retried
rarely while later ones pass it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.notify import webhook_client
from aks_flex_rp.notify.node_events import EventPublisher, NodeEvent
from aks_flex_rp.notify.notification_settings import NodeEventKind
from aks_flex_rp.notify.webhook_client import MAX_CONCURRENT, SendResult, SendStatus, WebhookClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.store.outbox import Outbox, OutboxMessage

    Count = Callable[[str, int], None]
    from collections.abc import Awaitable, Iterator
    from pathlib import Path

    from aks_flex_rp.notify.notification_settings import NotificationSettings, WebhookSettings
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.heartbeat import HeartbeatChange, Heartbeats


LEASE = 30.0  # seconds; longer than one attempt. If the service is killed, the message is sent after that time
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 3600.0  # seconds between attempts of a message
MAX_RECEIVER_PAUSE = 300.0  # maximum pause of a receiver: it may work again, although its last message failed
REFUSED_FIRST = 300.0
MAX_MESSAGE_AGE = 86400.0  # after which a message is dropped

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetryPolicy:
    """Retry intervals in seconds. Tests use shorter ones."""

    first: float = FIRST_RETRY_SECONDS
    refused_first: float = REFUSED_FIRST
    lease: float = LEASE

    def pause(self, tries: int, first: float, longest: float = MAX_RETRY_SECONDS) -> float:
        """Returns the pause after this number of failed attempts, with random jitter."""
        return min(first * 2.0 ** min(tries - 1, 20), longest) * random.uniform(0.5, 1)  # noqa: S311 - no secret


class WebhookSender:
    """Sends the messages of one receiver. `count` is called with the outcome and number of attempts."""

    def __init__(
        self, webhook: WebhookSettings, store: Outbox, count: Count, policy: RetryPolicy | None = None
    ) -> None:
        self._hook, self._store, self._count, self._pace = webhook, store, count, policy or RetryPolicy()
        self._post = WebhookClient(webhook)
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT, "webhook")  # a slow receiver does not block the others
        self._failures = 0  # consecutive batches without a delivered message
        self._not_before = 0.0
        self._gone = False

    async def once(self) -> None:
        """Sends messages until none is due, or until the receiver fails."""
        if self._gone:
            await self._drop()
            return
        while time.time() >= self._not_before and not self._gone:
            messages = await self._store.due_messages(self._hook.key, time.time(), MAX_CONCURRENT, self._pace.lease)
            if not messages:
                return
            outcomes = await asyncio.gather(*map(self._send, messages))
            for outcome in outcomes:
                self._count(outcome.status, 1)
            self._update_health(outcomes)
            await asyncio.gather(*map(self._record, messages, outcomes))
            if self._gone:
                await self._drop()

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _send(self, message: OutboxMessage) -> SendResult:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._post.send, message.id, message.body)

    async def _record(self, message: OutboxMessage, result: SendResult) -> None:
        if result.status is SendStatus.SENT:
            await self._store.message_sent(message)
            return
        refused = result.status is SendStatus.REFUSED
        await self._store.message_failed(message, self._next_attempt(message, result), result.why, refused=refused)

    def _update_health(self, outcomes: list[SendResult]) -> None:
        """Updates the state of the receiver from the results of a batch."""
        if any(each.status is SendStatus.GONE for each in outcomes):
            self._gone = True
            log.warning(
                "%s rejected all further messages (410). None are sent until the next start.", self._hook.title
            )
        well = any(each.status in {SendStatus.SENT, SendStatus.REFUSED} for each in outcomes)
        if well:
            self._failures = 0
            return
        self._failures += 1
        pause = self._pace.pause(self._failures, self._pace.first, MAX_RECEIVER_PAUSE)
        self._not_before = time.time() + max(pause, *(each.wait for each in outcomes))
        if self._failures == 1:
            log.warning("Cannot deliver messages to %s, retrying: %s", self._hook.title, outcomes[0].why)

    def _next_attempt(self, message: OutboxMessage, result: SendResult) -> float:
        if result.status is SendStatus.REFUSED:
            return time.time() + self._pace.pause(message.attempts, self._pace.refused_first)
        if self._failures:
            return self._not_before
        return time.time() + max(result.wait, self._pace.pause(message.attempts, self._pace.first))

    async def _drop(self) -> None:
        self._count("dropped", await self._store.drop_messages(self._hook.key))


@dataclass(frozen=True)
class OutboxCleaner:
    """Drops messages that will not be delivered: the oldest above the limit, and those older than a day."""

    store: Outbox
    hooks: tuple[WebhookSettings, ...]
    most: int
    count: Count

    async def once(self) -> None:
        if gone := await self.store.forget_messages(time.time() - MAX_MESSAGE_AGE):
            self.count("expired", gone)
            log.warning("Dropped %d messages that could not be delivered within a day.", gone)
        for hook in self.hooks:
            if dropped := await self.store.trim_messages(hook.key, self.most):
                self.count("dropped", dropped)
                log.warning("Dropped %d messages to %s: too many are pending.", dropped, hook.title)


NODES_PER_READ = 500


class StaleNodeMonitor:
    """Detects nodes without a heartbeat for `after` seconds.

    No node is reported as silent before this service has been running for that time, because it could not receive
    heartbeats while it, its store or its machine was down. A clock change or a suspended machine is detected from the
    time since the last check.
    """

    def __init__(
        self, store: Heartbeats, notices: EventPublisher, after: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._notices, self._after, self._clock = store, notices, after, clock
        self._listening_since = self._checked = clock()

    async def once(self) -> None:
        now = self._clock()
        if not 0 <= now - self._checked <= self._after / 2:
            self._listening_since = now
        try:
            since = now - self._after
            for silent in (False, True) if now - self._listening_since >= self._after else (False,):
                while found := await self._store.unnoted_silences(since, NODES_PER_READ, silent=silent):
                    await asyncio.gather(*(self._record(each, since, now) for each in found))
            self._checked = self._clock()
        except BaseException:
            self._listening_since = self._clock()
            raise

    async def _record(self, silence: HeartbeatChange, since: float, now: float) -> None:
        """Records and reports a change. A node that is silent because it is no longer managed is not reported."""
        kind = NodeEventKind.HEARTBEAT_LOST if silence.silent else NodeEventKind.HEARTBEAT_RESTORED
        event = NodeEvent(kind, {"lastSeen": format_utc(silence.last_seen)})
        news = [event] if silence.silent or silence.monitored else []
        messages = self._notices.messages_about(silence.cluster, silence.name, news, now)
        await self._store.note_silence(silence, since, messages)


CHECK_SECONDS = 15.0
SEND_SECONDS = 1.0


class Notifier:
    """Composes the notification tasks.

    `silent_after` is the time in seconds without a heartbeat after which a node is silent. `count` is called with the
    outcomes of attempts.
    """

    def __init__(self, settings: NotificationSettings, store: Store, silent_after: float, count: Count) -> None:
        # urllib3 logs complete URLs, which may contain secrets.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        webhooks = settings.webhooks
        for hook in webhooks:
            check_webhook(hook)
        self.publisher = EventPublisher(webhooks)
        self._senders = {hook: WebhookSender(hook, store, count) for hook in webhooks}
        self._stale_nodes = StaleNodeMonitor(store, self.publisher, silent_after)
        self._cleaner = OutboxCleaner(store, webhooks, settings.most_pending, count)

    def tasks(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]], float]]:
        """Yields the names of the tasks, what each does, and the seconds after each run.

        Silent nodes are detected even without receivers, because lists show them.
        """
        yield "silent nodes", self._stale_nodes.once, CHECK_SECONDS
        yield "outbox", self._cleaner.once, CHECK_SECONDS
        for hook, sender in self._senders.items():
            yield f"notifications to {hook.title}", sender.once, SEND_SECONDS

    def stop(self) -> None:
        for sender in self._senders.values():
            sender.stop()


def check_webhook(webhook: WebhookSettings) -> None:
    """Validates the files of a webhook before the first message."""
    webhook_client.read_secrets(webhook.secret_file)
    check_ca_file(webhook.ca_file, "a webhook")


def check_ca_file(ca_file: Path | None, of: str) -> None:
    """Raises ConfigError if the file contains no certificates. `of` names its setting in the message."""
    if ca_file is None:
        return
    try:
        ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "service-config-invalid",
            f"The CA file {ca_file} of {of} contains no readable certificates: {error.strerror}.",
            "Correct the settings of the service, or the file.",
        ) from error
