"""Authentication errors, with ARM's error codes."""

from __future__ import annotations

from typing import Literal

from aks_flex_node.errors import FlexError

AuthErrorCode = Literal[
    "AuthenticationFailed",  # nothing was shown, or something that is no token
    "InvalidAuthenticationToken",
    "ExpiredAuthenticationToken",
    "InvalidAuthenticationTokenTenant",
    "InvalidAuthenticationTokenAudience",
]


class Unauthenticated(Exception):  # noqa: N818 - an answer, and often an expected one
    """To be answered with 401. Nothing of what was shown is repeated in it."""

    status = 401

    def __init__(self, code: AuthErrorCode, message: str, sign_in: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.sign_in = sign_in  # where a token can be had, if anywhere

    @property
    def challenge(self) -> str:
        """The value of WWW-Authenticate."""
        where = f'authorization_uri="{self.sign_in}", ' if self.sign_in else ""
        error = "invalid_request" if self.code == "AuthenticationFailed" else "invalid_token"
        return f'Bearer {where}error="{error}", error_description="{_quoted(self.message)}"'


class TenantUnreachable(FlexError):  # noqa: N818 - it says what is the case
    """To be answered with 503: a token can be neither accepted nor refused until its authority answers."""

    def __init__(self, address: str, cause: str) -> None:
        super().__init__(
            "entra-unreachable",
            f"The keys that tokens are signed with cannot be fetched from {address}: {cause}.",
            "Check auth.tenants[].metadataUrl and caFile, and that this machine reaches that address.",
            retryable=True,
        )


def _quoted(text: str) -> str:
    """What may stand between quotes in a header: printable ASCII without quotes and backslashes."""
    return "".join(letter if " " <= letter <= "~" and letter not in '"\\' else "'" for letter in text)
