"""The SSLContext that the service serves with. It stays the same object; what it serves with is exchanged."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from aks_flex_node.rp.tls.chains import Chain

log = logging.getLogger(__name__)

SECONDS = 60.0


class Source(Protocol):
    def current(self, now: float) -> Chain:
        """What to serve with now; an error when there is nothing that a client could accept."""
        ...


class Serving:
    def __init__(self, source: Source, now: float) -> None:
        self._source = source
        self.context = _context()
        self._chain = source.current(now)
        _load(self.context, self._chain)

    @property
    def pin(self) -> str:
        """Of the authority, for configuration URLs; empty when clients must know it by themselves."""
        return self._chain.pin

    def refresh(self, now: float) -> bool:
        """Renew and reload where it is time to; connections that are made from now on get the new certificate."""
        chain = self._source.current(now)
        if chain.certificates == self._chain.certificates:
            return False
        _load(self.context, chain)
        self._chain = chain
        return True

    async def keep(self, seconds: float = SECONDS) -> None:
        """Refresh for ever. What cannot be used is told once, and what was there before goes on."""
        told = ""
        while True:
            await asyncio.sleep(seconds)
            try:
                if self.refresh(time.time()):
                    log.info("The TLS certificate was renewed.")
                told = ""
            except (FlexError, OSError) as error:
                if str(error) != told:
                    log.error("The TLS certificate cannot be renewed; the old one stays. %s", error)
                told = str(error)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, chain: Chain) -> None:
    """Exactly what was checked, by way of a file in memory: those on the disk may change at any moment."""
    handle = os.memfd_create("aks-flex-rp-tls")
    try:
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(chain.pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
