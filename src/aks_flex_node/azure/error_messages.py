"""Parses error messages of Azure Resource Manager and Entra ID: the missing role, the AADSTS code, the correlation
id, and what to do about it. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase

_FORBIDDEN = re.compile(r"perform action '([^']+)' over scope '([^']+)'")
_WHO = re.compile(r"object id '([^']+)'")
# The least of Azure's built-in roles that allows an action; the first that fits.
ROLE_BY_ACTION = (
    ("*/listclusteradmincredential/action", "Azure Kubernetes Service Cluster Admin Role"),
    ("*/listclusterusercredential/action", "Azure Kubernetes Service Cluster User Role"),
    ("microsoft.authorization/roleassignments/write", "User Access Administrator"),
    ("microsoft.authorization/roleassignments/delete", "User Access Administrator"),
    ("microsoft.hybridcompute/machines/delete", "Azure Connected Machine Resource Administrator"),
    ("microsoft.hybridcompute/*", "Azure Connected Machine Onboarding"),
    ("microsoft.network/*", "Network Contributor"),
    ("*/read", "Reader"),
    ("microsoft.containerservice/*", "Azure Kubernetes Service Contributor Role"),
)


@dataclass(frozen=True)
class MissingPermission:
    """What somebody may not do, and where."""

    action: str
    scope: str
    who: str  # an object id; nothing when ARM did not say

    @property
    def role(self) -> str:
        fitting = (role for pattern, role in ROLE_BY_ACTION if fnmatchcase(self.action.lower(), pattern))
        return next(fitting, "Contributor")

    @property
    def remedy(self) -> str:
        who = self.who or "OBJECT-ID"
        return (
            f"It needs the role {self.role} at {self.scope}: `az role assignment create --assignee-object-id {who} "
            f'--role "{self.role}" --scope {self.scope}`. A new role takes a few minutes to be in effect.'
        )


def parse_forbidden(message: str) -> MissingPermission | None:
    """What ARM's words about a missing right name; None for other words."""
    found, who = _FORBIDDEN.search(message), _WHO.search(message)
    return MissingPermission(found[1], found[2], who[1] if who else "") if found else None


def retry_time(retry_after: str, now: datetime) -> str:
    """When a throttled caller may ask again, as a time of day; nothing when Azure did not say."""
    try:
        moment = now + timedelta(seconds=float(retry_after))
    except (ValueError, OverflowError):
        from email.utils import parsedate_to_datetime  # noqa: PLC0415 - large, and few answers have a date

        try:
            moment = parsedate_to_datetime(retry_after)
        except (ValueError, TypeError):
            return ""
    return f"{moment.astimezone(timezone.utc):%H:%M:%S} UTC"


_AADSTS_CODE = re.compile(r"AADSTS(\d+)")
_CORRELATION = re.compile(r"Correlation ID: *([0-9A-Fa-f-]{36})")
_TRACE_ID = re.compile(r"\s*Trace ID: .*")
# MSAL asks a tenant for its description first, and keeps what Entra said to itself when there is none.
_NO_TENANT = "double check your tenant name"

NEW_SECRET_HINT = "make a new one with `az ad app credential reset --id CLIENT-ID --append`, and put it in place."  # noqa: S105
REMEDIES = {
    7000215: f"The secret is not one of this application's. Give its value, not its id; or {NEW_SECRET_HINT}",
    7000222: f"The secret has expired: {NEW_SECRET_HINT}",
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
DEFAULT_REMEDY = "Check the tenant, the client id and the secret, and whether the secret has expired."


@dataclass(frozen=True)
class SignInRefusal:
    code: str  # such as AADSTS7000215; nothing when it gave none
    message: str
    correlation: str = ""
    remedy: str = DEFAULT_REMEDY

    def sentence(self) -> str:
        """For a person, and for whoever they ask for help."""
        about = f" (correlation id {self.correlation})" if self.correlation else ""
        return f"Entra ID gave us no token: {self.message}{about}."


def parse_sign_in_error(message: str) -> SignInRefusal:
    """What a library says of Entra's refusal, in which Entra's own words are somewhere."""
    if _NO_TENANT in message:
        return SignInRefusal("AADSTS90002", "AADSTS90002: there is no such tenant", remedy=REMEDIES[90002])
    number = _AADSTS_CODE.search(message)
    correlation = _CORRELATION.search(message)
    start = number.start() if number else 0
    lines = _TRACE_ID.sub("", message[start:]).strip().splitlines()
    return SignInRefusal(
        number[0] if number else "",
        lines[0].strip().rstrip(".") if lines else "it gave no reason",
        correlation[1] if correlation else "",
        REMEDIES.get(int(number[1]), DEFAULT_REMEDY) if number else DEFAULT_REMEDY,
    )
