"""Codes that stand for a person who has just signed in, until the application changes them for tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.lab.entra import answers

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.lab.entra.answers import Refusal

SECONDS = 600.0


@dataclass(frozen=True)
class SignedIn:
    """Who, for which application, sent where to, and what the answer must repeat or prove."""

    user: str  # object id
    client: str  # application id
    redirect: str
    scope: str
    nonce: str
    challenge: str  # of PKCE, by S256; "" when the application asked for none


class Codes:
    """In memory: a code that a restart loses is asked for again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[float, SignedIn]] = {}
        self._used: dict[str, float] = {}
        self._alone = threading.Lock()

    def issue(self, signed_in: SignedIn) -> str:
        code = f"0.{secrets.token_urlsafe(48)}"
        with self._alone:
            self._forget()
            self._kept[code] = (self._clock() + SECONDS, signed_in)
        return code

    def redeem(self, code: str, client: str, redirect: str, verifier: str) -> SignedIn | Refusal:
        """Whoever it stands for. A code that is shown is spent, whether the rest fits or not."""
        with self._alone:
            if code in self._used:
                return answers.USED_CODE
            found = self._kept.pop(code, None)
            if found is None:
                return answers.BAD_CODE
            end, signed_in = found
            self._used[code] = end
        return _refusal(signed_in, client, redirect, verifier) or (
            signed_in if self._clock() < end else answers.OLD_CODE
        )

    def _forget(self) -> None:
        """An hour after its end, nobody needs to hear any more what was wrong with a code."""
        past = self._clock() - 3600
        self._kept = {code: kept for code, kept in self._kept.items() if kept[0] > past}
        self._used = {code: end for code, end in self._used.items() if end > past}


def _refusal(signed_in: SignedIn, client: str, redirect: str, verifier: str) -> Refusal | None:
    if client.lower() != signed_in.client.lower():
        return answers.BAD_CODE
    if redirect != signed_in.redirect:
        return answers.OTHER_REDIRECT
    proven = challenge_of(verifier) if verifier else ""
    return None if hmac.compare_digest(proven, signed_in.challenge) else answers.WRONG_VERIFIER


def challenge_of(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
