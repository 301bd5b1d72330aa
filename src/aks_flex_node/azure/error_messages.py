"""Parses error messages of Azure Resource Manager and Entra ID: the missing role, the AADSTS code, the correlation ID
and the remedy. Pure functions.
"""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase

from aks_flex_node.lean_dataclass import frozen

_FORBIDDEN = re.compile(r"perform action '([^']+)' over scope '([^']+)'")
_CLIENT = re.compile(r"[Cc]lient '([^']+)'")
_WHO = re.compile(r"object id '([^']+)'")
# The least privileged built-in role for an action. The first match applies.
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


@frozen
class MissingPermission:
    """An action that an identity is not allowed to perform on a scope."""

    action: str
    scope: str
    who: str  # object ID; empty if ARM does not return it
    principal_type: str = ""  # of the identity: User or ServicePrincipal; empty if unknown

    @property
    def role(self) -> str:
        fitting = (role for pattern, role in ROLE_BY_ACTION if fnmatchcase(self.action.lower(), pattern))
        return next(fitting, "Contributor")

    @property
    def remedy(self) -> str:
        command = role_assignment_command(self.who, self.role, self.scope, self.principal_type)
        return f"Assign the role {self.role} at {self.scope}: `{command}`. It takes effect after a few minutes."


def role_assignment_command(who: str, role: str, scope: str, principal_type: str = "") -> str:
    """Returns the command for an administrator. `who` is an object ID, or empty if it is not known."""
    kind = f" --assignee-principal-type {principal_type}" if principal_type else ""
    return (
        f"az role assignment create --assignee-object-id {shlex.quote(who or 'OBJECT-ID')}{kind} "
        f'--role "{role}" --scope {shlex.quote(scope)}'
    )


def parse_forbidden(message: str) -> MissingPermission | None:
    """Parses an authorization error of ARM. Returns None for other messages."""
    found, who, client = _FORBIDDEN.search(message), _WHO.search(message), _CLIENT.search(message)
    kind = ("User" if "@" in client[1] else "ServicePrincipal") if client else ""
    return MissingPermission(found[1], found[2], who[1] if who else "", kind) if found else None


def retry_seconds(retry_after: str) -> float:
    """Returns the seconds of a Retry-After; 0 if there is none, or if it is a date."""
    return float(retry_after) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", retry_after.strip()) else 0.0


def retry_time(retry_after: str, now: datetime) -> str:
    """Returns the time of day after which a throttled request can be retried, or an empty string if unknown."""
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
# MSAL queries the tenant's metadata first, and hides Entra's error if the tenant does not exist.
_NO_TENANT = "double check your tenant name"

NEW_SECRET_HINT = (
    "create a new one with `az ad app credential reset --id CLIENT-ID --append`, and update the configuration."  # noqa: S105
)
REMEDIES = {
    7000215: f"The secret does not belong to this application. Use its value, not its ID, or {NEW_SECRET_HINT}",
    7000222: f"The secret has expired: {NEW_SECRET_HINT}",
    7000112: "The application is disabled. Enable it in Entra ID under Enterprise applications.",
    700016: "Check the client ID, and that this tenant has the application.",
    90002: "Check the tenant ID, and that `azure.cloud` is the cloud of this tenant.",
    700027: (
        "Add this certificate to the application (`az ad app credential reset --cert`), or use its current "
        "certificate."
    ),
    700024: "Check the clock of this machine, and that the federated token has not expired.",
    70021: "Add a federated credential to the application with the issuer, subject and audience of the token.",
    500011: "The tenant does not know the requested resource. Check `azure.cloud` and the audience.",
    53003: "A conditional access policy of the tenant blocks the sign-in. Ask the administrators of the tenant.",
    70043: "The sign-in has expired. Run `az login` again.",
    700082: "The sign-in has expired. Run `az login` again.",
}
REMEDIES |= dict.fromkeys((700211, 700212, 700213), REMEDIES[70021])
DEFAULT_REMEDY = "Check the tenant, the client ID and the secret, and whether the secret has expired."


@frozen
class SignInRefusal:
    code: str  # for example AADSTS7000215; empty if unknown
    message: str
    correlation: str = ""
    remedy: str = DEFAULT_REMEDY

    def sentence(self) -> str:
        """Returns the message with the correlation ID for support requests."""
        details = f" (correlation ID {self.correlation})" if self.correlation else ""
        return f"Entra ID issued no token: {self.message}{details}."


def parse_sign_in_error(message: str) -> SignInRefusal:
    """Parses the error of a failed sign-in, which contains Entra's message."""
    if _NO_TENANT in message:
        return SignInRefusal("AADSTS90002", "AADSTS90002: the tenant was not found", remedy=REMEDIES[90002])
    number = _AADSTS_CODE.search(message)
    correlation = _CORRELATION.search(message)
    start = number.start() if number else 0
    lines = _TRACE_ID.sub("", message[start:]).strip().splitlines()
    return SignInRefusal(
        number[0] if number else "",
        lines[0].strip().rstrip(".") if lines else "no message",
        correlation[1] if correlation else "",
        REMEDIES.get(int(number[1]), DEFAULT_REMEDY) if number else DEFAULT_REMEDY,
    )
