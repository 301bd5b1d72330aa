"""What an answer of the provider means. Pure, and strict: whoever is not plainly the provider has said nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.artifacts.connections import read_delay

if TYPE_CHECKING:
    from collections.abc import Mapping


PARENTS = {"ParentResourceNotFound", "ResourceGroupNotFound", "SubscriptionNotFound"}
LONGEST = 500  # characters of what somebody else says


class Standing(Enum):
    """How it stands between this node and the provider: each is shown by `status` and has a section in the docs."""

    STARTING = "Starting"
    FOLLOWING = "Following"
    UNREACHABLE = "ProviderUnreachable"
    UNTRUSTED = "ProviderUntrusted"
    SIGN_IN_FAILED = "SignInFailed"
    NOT_AUTHORIZED = "NotAuthorized"
    THROTTLED = "Throttled"
    FAILING = "ProviderFailing"
    NOT_THE_PROVIDER = "NotTheProvider"
    BAD_CONFIGURATION = "ConfigurationInvalid"
    NO_CLUSTER = "ClusterNotFound"
    DELETED = "Deleted"
    AGENT_FAILING = "AgentFailing"  # it was us


@dataclass(frozen=True)
class Verdict:
    standing: Standing
    message: str = ""
    changed: bool = False  # there is news
    version: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    after: float | None = None  # seconds that the provider asks us to wait

    @property
    def good(self) -> bool:
        return self.standing is Standing.FOLLOWING

    @property
    def may_pass(self) -> bool:
        """Whether the same question may get another answer in a moment."""
        return self.standing in {Standing.UNREACHABLE, Standing.THROTTLED, Standing.FAILING}


def judge(status: int, headers: Mapping[str, str], body: bytes) -> Verdict:
    """The meaning of an answer to a poll."""
    if status == 304:
        return Verdict(Standing.FOLLOWING)
    if status == 200:
        return _news(body)
    code, message = refusal(body)
    if not code:
        return _somebody_else(f"status {status}, and not in the words of a resource provider")
    after = read_delay(headers.get("Retry-After", ""))
    return Verdict(_standing(status, code), f"{code}: {message} (status {status})", after=after)


def _standing(status: int, code: str) -> Standing:
    """Only the word for "this resource does not exist" means that it was deleted."""
    if status == 404 and code == "ResourceNotFound":
        return Standing.DELETED
    if status == 404 and code in PARENTS:
        return Standing.NO_CLUSTER
    known = {401: Standing.NOT_AUTHORIZED, 403: Standing.NOT_AUTHORIZED, 429: Standing.THROTTLED}
    return known.get(status, Standing.FAILING)


def _news(body: bytes) -> Verdict:
    document = as_object(body)
    properties = document.get("properties")
    if not isinstance(properties, dict):
        return _somebody_else("an answer that is no flexNodeConfig")
    version, config = str(properties.get("configVersion") or ""), properties.get("config")
    if not (version.isascii() and version.isdigit() and isinstance(config, dict) and config):
        return _somebody_else("a flexNodeConfig without a configuration or its version")
    return Verdict(Standing.FOLLOWING, changed=True, version=version, config=config)


def _somebody_else(what: str) -> Verdict:
    return Verdict(
        Standing.NOT_THE_PROVIDER, f"The answer was {what}: a proxy or a login page may answer in its place."
    )


def refusal(body: bytes) -> tuple[str, str]:
    """Code and message of ARM's error; empty when it is none."""
    error = as_object(body).get("error")
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        return "", ""
    return error["code"][:LONGEST], str(error.get("message") or "no reason was given")[:LONGEST]


def as_object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
