"""What Azure's resource manager says no to, and which role would make it a yes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase

_FORBIDDEN = re.compile(r"perform action '([^']+)' over scope '([^']+)'")
_WHO = re.compile(r"object id '([^']+)'")
# The least of Azure's built-in roles that allows an action; the first that fits.
ROLES = (
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
class Forbidden:
    """What somebody may not do, and where."""

    action: str
    scope: str
    who: str  # an object id; nothing when ARM did not say

    @property
    def role(self) -> str:
        fitting = (role for pattern, role in ROLES if fnmatchcase(self.action.lower(), pattern))
        return next(fitting, "Contributor")

    @property
    def remedy(self) -> str:
        who = self.who or "OBJECT-ID"
        return (
            f"It needs the role {self.role} at {self.scope}: `az role assignment create --assignee-object-id {who} "
            f'--role "{self.role}" --scope {self.scope}`. A new role takes a few minutes to be in effect.'
        )


def forbidden(message: str) -> Forbidden | None:
    """What ARM's words about a missing right name; None for other words."""
    found, who = _FORBIDDEN.search(message), _WHO.search(message)
    return Forbidden(found[1], found[2], who[1] if who else "") if found else None


def until(retry_after: str, now: datetime) -> str:
    """When a throttled caller may ask again, as a time of day; nothing when Azure did not say."""
    try:
        moment = now + timedelta(seconds=float(retry_after))
    except (ValueError, OverflowError):
        try:
            moment = parsedate_to_datetime(retry_after)
        except (ValueError, TypeError):
            return ""
    return f"{moment.astimezone(timezone.utc):%H:%M:%S} UTC"
