"""What Entra ID says when it gives no token: its number, its words, and what to do about it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = re.compile(r"AADSTS(\d+)")
_CORRELATION = re.compile(r"Correlation ID: *([0-9A-Fa-f-]{36})")
_TAIL = re.compile(r"\s*Trace ID: .*")
# MSAL asks a tenant for its description first, and keeps what Entra said to itself when there is none.
_NO_TENANT = "double check your tenant name"

NEW_SECRET = "make a new one with `az ad app credential reset --id CLIENT-ID --append`, and put it in place."  # noqa: S105
REMEDIES = {
    7000215: f"The secret is not one of this application's. Give its value, not its id; or {NEW_SECRET}",
    7000222: f"The secret has expired: {NEW_SECRET}",
    7000112: "Somebody has disabled the application: enable it in Entra ID under Enterprise applications.",
    700016: "Check the client id, and that the tenant is the one that has this application.",
    90002: "Check the tenant id, and that azure.cloud is the cloud that has this tenant.",
    700027: "Add this certificate to the application (`az ad app credential reset --cert`), or use the one it has.",
    700024: "Check this machine's clock; a federated token must be one that has not expired.",
    70021: "Add a federated credential to the application: issuer, subject and audience as the token has them.",
    500011: "This tenant does not know what the token is for; check azure.cloud and the audience.",
    53003: "A conditional access policy of the tenant forbids it; its administrators can tell which.",
    70043: "The sign-in has expired: type `az login` again.",
    700082: "The sign-in has expired: type `az login` again.",
}
REMEDIES |= dict.fromkeys((700211, 700212, 700213), REMEDIES[70021])
OTHERWISE = "Check the tenant, the client id and the secret, and whether the secret has expired."


@dataclass(frozen=True)
class Refusal:
    code: str  # such as AADSTS7000215; nothing when it gave none
    words: str
    correlation: str = ""
    remedy: str = OTHERWISE

    def sentence(self) -> str:
        """For a person, and for whoever they ask for help."""
        about = f" (correlation id {self.correlation})" if self.correlation else ""
        return f"Entra ID gave us no token: {self.words}{about}."


def read(said: str) -> Refusal:
    """What a library says of Entra's refusal, in which Entra's own words are somewhere."""
    if _NO_TENANT in said:
        return Refusal("AADSTS90002", "AADSTS90002: there is no such tenant", remedy=REMEDIES[90002])
    number = _NUMBER.search(said)
    correlation = _CORRELATION.search(said)
    start = number.start() if number else 0
    lines = _TAIL.sub("", said[start:]).strip().splitlines()
    return Refusal(
        number[0] if number else "",
        lines[0].strip().rstrip(".") if lines else "it gave no reason",
        correlation[1] if correlation else "",
        REMEDIES.get(int(number[1]), OTHERWISE) if number else OTHERWISE,
    )
