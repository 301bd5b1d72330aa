"""Access tokens for the provider. A child process signs in about once an hour,
so that the daemon does not load Azure's libraries.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.errors import FlexError
from aks_flex_node.host import processes

if TYPE_CHECKING:
    from collections.abc import Callable

SIGN_IN_SECONDS = 90.0
EXPIRY_MARGIN = 300.0  # seconds before its end at which a token is replaced


class SignInError(Exception):
    """Entra ID gave us no token, or could not be asked; the error says why."""

    def __init__(self, error: FlexError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class ProviderToken:
    value: str = field(repr=False)
    expires: float  # by the monotonic clock, which no change of the time of day disturbs


@dataclass
class ProviderTokens:
    program: str
    bundle: Callable[[], str] = field(repr=False)  # the configuration, with its secrets, at this moment
    fallback_bundle: Callable[[], str] = field(
        default=lambda: "", repr=False
    )  # the one that waits: its secrets work, too
    clock: Callable[[], float] = time.monotonic
    _token: ProviderToken | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def value(self) -> str:
        """A token that lasts a while."""
        with self._lock:
            if self._token is None or self.clock() >= self._token.expires:
                self._token = self._sign_in()
            return self._token.value

    def invalidate(self) -> None:
        """The provider did not like it; or who we are has changed."""
        self._token = None

    def check_credentials(self, bundle: str) -> None:
        """Whether other credentials are good for a token; SignInError when they are not."""
        self._fetch(bundle)

    def _sign_in(self) -> ProviderToken:
        """What waits may wait for longer than the secret in effect is good for: then the new one is used."""
        try:
            return self._fetch(_read(self.bundle))
        except SignInError:
            if waiting := _read(self.fallback_bundle):
                with contextlib.suppress(SignInError):
                    return self._fetch(waiting)
            raise

    def _fetch(self, bundle: str) -> ProviderToken:
        begun = self.clock()
        answer = processes.run((self.program, "azure-token"), seconds=SIGN_IN_SECONDS, text=bundle.encode())
        try:
            document = json.loads(answer.out)
            if refusal := document.get("error"):
                retryable = refusal.pop("again", False)
                raise SignInError(FlexError(**refusal, retryable=retryable))
            lasts = float(document["seconds"])
            return ProviderToken(str(document["token"]), begun + max(lasts - EXPIRY_MARGIN, lasts / 2))
        except (ValueError, KeyError, TypeError, AttributeError):
            lines = answer.err.strip().splitlines()
            raise _sign_in_failed(lines[-1][:300] if lines else "the sign-in gave no reason") from None


def _read(source: Callable[[], str]) -> str:
    try:
        return source()
    except OSError as error:
        raise _sign_in_failed(str(error)) from None


def _sign_in_failed(why: str) -> SignInError:
    hint = "Look at the journal: `journalctl -u aks-flex-node -n 50`. It is tried again."
    return SignInError(FlexError("sign-in-failed", f"No token could be had: {why}", hint, retryable=True))
