"""Seeing that a node is silent, which no request shows, and telling of it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from aks_flex_node.rp.notifying import changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.rp.notifying.hooks import Notices
    from aks_flex_node.rp.store.silences import Silence, Silences

AT_ONCE = 500


class SilenceWatch:
    """`after`: seconds without a word. Nobody is called silent before this service itself has listened for so long:
    while it, its store or its whole machine was away, no node could be heard of. A clock that was set, or a machine
    that slept, shows in how long ago the last look was."""

    def __init__(
        self, store: Silences, notices: Notices, after: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._notices, self._after, self._clock = store, notices, after, clock
        self._listening_since = self._looked = clock()

    async def once(self) -> None:
        now = self._clock()
        if not 0 <= now - self._looked <= self._after / 2:
            self._listening_since = now
        try:
            await self._look(now)
            self._looked = self._clock()
        except BaseException:
            self._listening_since = self._clock()
            raise

    async def _look(self, now: float) -> None:
        since = now - self._after
        for silent in (False, True) if now - self._listening_since >= self._after else (False,):
            while found := await self._store.unnoted_silences(since, AT_ONCE, silent=silent):
                await asyncio.gather(*(self._note(each, since, now) for each in found))

    async def _note(self, silence: Silence, since: float, now: float) -> None:
        """A node that is silent because nobody follows it any more has not been heard of."""
        news = []
        if silence.silent:
            news = [changes.silent(silence.last_seen)]
        elif silence.monitored:
            news = [changes.heard(silence.last_seen)]
        messages = self._notices.about(silence.cluster, silence.name, news, now)
        await self._store.note_silence(silence, since, messages)
