"""All of it together, as the service runs it."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp.notifying import signing
from aks_flex_node.rp.notifying.hooks import Hook, Notices, open_hooks
from aks_flex_node.rp.notifying.sending import Sender, Tidying
from aks_flex_node.rp.notifying.silence import SilenceWatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aks_flex_node.rp.notifying.sending import Count
    from aks_flex_node.rp.notifying.settings import NotificationSettings
    from aks_flex_node.rp.store.store import Store

LOOK_SECONDS = 15.0
SEND_SECONDS = 1.0


@dataclass(frozen=True)
class Chore:
    """What is done again and again, so many seconds after it was done."""

    name: str
    once: Callable[[], Awaitable[None]]
    seconds: float


class Notifying:
    """`silent_after`: seconds without a word after which a node is silent; `count` is told how tries ended."""

    def __init__(self, settings: NotificationSettings, store: Store, silent_after: float, count: Count) -> None:
        # It would write whole addresses: every one at debug, and that of a receiver with odd headers as a warning.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        hooks = open_hooks(settings)
        for hook in hooks:
            check(hook)
        self.notices = Notices(hooks)
        self._senders = {hook: Sender(hook, store, count) for hook in hooks}
        self._silence = SilenceWatch(store, self.notices, silent_after)
        self._tidying = Tidying(store, hooks, settings.most_pending, count)

    def chores(self) -> Iterator[Chore]:
        """That of silence is done also when nobody is told: lists show it."""
        yield Chore("silent nodes", self._silence.once, LOOK_SECONDS)
        yield Chore("outbox", self._tidying.once, LOOK_SECONDS)
        for hook, sender in self._senders.items():
            yield Chore(f"notifications to {hook.title}", sender.once, SEND_SECONDS)

    def stop(self) -> None:
        for sender in self._senders.values():
            sender.stop()


def check(hook: Hook) -> None:
    """What can be known to be wrong before the first message."""
    signing.read_secrets(hook.secret_file)
    if hook.ca_file:
        try:
            ssl.create_default_context(cafile=hook.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                "service-config-invalid",
                f"{hook.ca_file}, which a webhook is to be trusted by, holds no certificates that can be read: "
                f"{error.strerror}.",
                "Correct the settings of the service, or the file.",
            ) from error
