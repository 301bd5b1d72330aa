"""Authentication errors, with ARM's error codes."""

from __future__ import annotations

from typing import Literal

from aks_flex_node.errors import FlexError

AuthErrorCode = Literal[
    "AuthenticationFailed",  # no credentials, or something that is not a token
    "InvalidAuthenticationToken",
    "ExpiredAuthenticationToken",
    "InvalidAuthenticationTokenTenant",
    "InvalidAuthenticationTokenAudience",
    "NodeKeyTimeInvalid",  # the time of an assertion: the clock of the machine is wrong
    "NodeKeyNotKnown",
]


class Unauthenticated(Exception):  # noqa: N818 - a response, and often an expected one
    """Results in a 401 response. Contains nothing of the presented credentials."""

    status = 401

    def __init__(self, code: AuthErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.sign_in = ""  # where the caller can get a token, if known
        self.resource = ""  # the audience of that token

    @property
    def challenge(self) -> str:
        """Returns the value of the WWW-Authenticate header."""
        known = {"authorization_uri": self.sign_in, "resource": self.resource}
        where = "".join(f'{name}="{_quoted(value)}", ' for name, value in known.items() if value)
        error = "invalid_request" if self.code == "AuthenticationFailed" else "invalid_token"
        return f'Bearer {where}error="{error}", error_description="{_quoted(self.message)}"'


class TooManyFailures(Exception):  # noqa: N818 - a response
    """Results in a 429 response: an address has sent too many assertions of keys that no node has."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class TenantUnreachable(FlexError):  # noqa: N818 - names a state
    """Results in a 503 response: a token can be neither accepted nor rejected while the tenant is unreachable."""

    def __init__(self, address: str, cause: str) -> None:
        super().__init__(
            "entra-unreachable",
            f"The signing keys of the tenant cannot be fetched from {address}: {cause}.",
            "Check `auth.tenants[].metadataUrl` and `caFile`, and that this machine can reach that address.",
            retryable=True,
        )


def _quoted(text: str) -> str:
    """Replaces characters that are not allowed in a quoted header value: non-ASCII, quotes and backslashes."""
    return "".join(letter if " " <= letter <= "~" and letter not in '"\\' else "'" for letter in text)
