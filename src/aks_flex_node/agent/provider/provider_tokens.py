"""Access tokens for the provider. A child process signs in about once an hour, so that the daemon does not load the
Azure libraries: a sign-in takes most of a second of CPU time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING

from aks_flex_node.errors import FlexError
from aks_flex_node.host import processes
from aks_flex_node.lean_dataclass import dataclass, frozen

if TYPE_CHECKING:
    from collections.abc import Callable

SIGN_IN_SECONDS = 90.0
EXPIRY_MARGIN = 300.0  # seconds before its expiry at which a token is replaced


class SignInError(Exception):
    """Entra ID did not issue a token or could not be reached. `error` has the cause."""

    def __init__(self, error: FlexError) -> None:
        super().__init__(str(error))
        self.error = error


@frozen
class ProviderToken:
    value: str = field(repr=False)
    expires: float  # monotonic clock, so that clock changes have no effect
    identity: str = ""  # digest of the identity that signed in


@dataclass
class ProviderTokens:
    program: str
    read_bundle: Callable[[], str] = field(repr=False)  # the current configuration with its secrets
    read_pending: Callable[[], str] = field(
        default=lambda: "", repr=False
    )  # the pending configuration, whose secrets are also valid
    clock: Callable[[], float] = time.monotonic
    _token: ProviderToken | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def value(self) -> str:
        """Returns a valid token. Signs in if the current one is about to expire, or is of another identity."""
        with self._lock:
            known, identity = self._token, self._identity()
            if known is None or self.clock() >= known.expires or identity not in {known.identity, ""}:
                known = self._token = replace(self._sign_in(), identity=identity)
            return known.value

    def invalidate(self) -> None:
        """Discards the token: the provider rejected it, or the identity changed."""
        self._token = None

    def check_credentials(self, bundle: str) -> None:
        """Signs in with other credentials. Raises SignInError if they do not work."""
        self._fetch(bundle)

    def _identity(self) -> str:
        """Returns the digest of the current identity; empty if the configuration cannot be read at the moment."""
        with contextlib.suppress(OSError, ValueError):
            return identity_digest(self.read_bundle())
        return ""

    def _sign_in(self) -> ProviderToken:
        """Signs in. Falls back to the pending configuration, because the current secret can expire before it is
        applied.
        """
        try:
            return self._fetch(_read(self.read_bundle))
        except SignInError:
            if pending := _read(self.read_pending):
                with contextlib.suppress(SignInError):
                    return self._fetch(pending)
            raise

    def _fetch(self, bundle: str) -> ProviderToken:
        begun = self.clock()
        result = processes.run((self.program, "azure-token"), seconds=SIGN_IN_SECONDS, text=bundle.encode())
        try:
            document = json.loads(result.out)
            if failure := document.get("error"):
                retryable = failure.pop("retryable", False)
                raise SignInError(FlexError(**failure, retryable=retryable))
            lasts = float(document["seconds"])
            return ProviderToken(str(document["token"]), begun + max(lasts - EXPIRY_MARGIN, lasts / 2))
        except (ValueError, KeyError, TypeError, AttributeError):
            lines = result.err.strip().splitlines()
            raise sign_in_failed(lines[-1][:300] if lines else "the sign-in process printed no error") from None


def identity_digest(bundle: str) -> str:
    """Returns a digest of what a sign-in depends on, which a new bootstrap token does not change. Raises ValueError
    for a bundle that cannot be read.
    """
    config = json.loads(bundle)
    config = config.get("config", config) if isinstance(config, dict) else {}
    azure = dict(config.get("azure") or {})
    azure.pop("bootstrapToken", None)
    text = json.dumps([azure, config.get("provider")], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(source: Callable[[], str]) -> str:
    try:
        return source()
    except (OSError, ValueError) as error:
        raise sign_in_failed(str(error)) from None


def sign_in_failed(cause: str) -> SignInError:
    hint = "Check `journalctl -u aks-flex-node -n 50`. The agent retries automatically."
    cause = cause.rstrip(".")
    return SignInError(FlexError("sign-in-failed", f"Could not get a token: {cause}.", hint, retryable=True))
