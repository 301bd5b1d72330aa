"""What the service answers instead of a configuration: errors for refused machines and keys, with a remedy each, and
the request to wait for an approval.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aks_flex_node.agent.http.client import parse_clock_offset
from aks_flex_node.api import enrolments
from aks_flex_node.api.arm_errors import (
    CONFIG_URL_TAKEN,
    NODE_KEY_REVOKED,
    NODE_KEY_TIME,
    ON_ANOTHER_MACHINE,
    parse_object,
)
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_WAIT_SECONDS = 60.0  # between two requests for an approval

ENROLMENT_REFUSALS: dict[str, Callable[[str], ConfigError]] = {
    enrolments.EXHAUSTED: lambda why: ConfigError(
        "enrolment-exhausted",
        f"The provider refuses to enrol this machine: {why}",
        "Create another enrolment with `aks-flex-rp pool enrolment create --pool POOL --max-uses N`, and run the "
        "line that it prints.",
    ),
    enrolments.EXPIRED: lambda why: ConfigError(
        "enrolment-expired",
        f"The provider refuses to enrol this machine: {why}",
        "Create another enrolment with `aks-flex-rp pool enrolment create --pool POOL --max-uses N`, and run the "
        "line that it prints.",
    ),
    enrolments.REVOKED: lambda why: ConfigError(
        "enrolment-revoked",
        f"The provider refuses to enrol this machine: {why}",
        "Ask who revoked it. To enrol this machine, create another enrolment with `aks-flex-rp pool enrolment create "
        "--pool POOL --max-uses N`, and run the line that it prints.",
    ),
    enrolments.NOT_FOUND: lambda why: ConfigError(
        "enrolment-revoked",
        f"The provider refuses to enrol this machine: {why}",
        "Check that the URL is complete. If its pool was deleted, create another enrolment with `aks-flex-rp pool "
        "enrolment create --pool POOL --max-uses N`, and run the line that it prints.",
    ),
    enrolments.NOT_LISTED: lambda why: ConfigError(
        "machine-not-listed",
        f"The provider refuses to enrol this machine: {why}",
        "Create an enrolment whose list has this machine: `aks-flex-rp pool enrolment create --pool POOL --max-uses "
        "N --allow-file FILE`, and run the line that it prints. `aks-flex-rp audit --what enrolment.refused` shows "
        "the facts of this machine.",
    ),
    enrolments.CLONED: lambda why: ConfigError(
        "machine-cloned",
        f"The provider refuses to enrol this machine: {why}",
        "If it was re-imaged or unbootstrapped, release its node with `aks-flex-rp node release --name NODE`, and "
        "run the same command again. If its disk is a copy, run `aks-flex-node unbootstrap` here first.",
    ),
    enrolments.NAME_TAKEN: lambda why: ConfigError(
        "enrolment-name-taken",
        f"The provider refuses to enrol this machine: {why}",
        "Give this machine another host name, or delete the other node with `aks-flex-rp node delete --name NODE`. "
        "Then run the same command again.",
    ),
    enrolments.NAME_INVALID: lambda why: ConfigError(
        "enrolment-name-invalid",
        f"The provider refuses to enrol this machine: {why}",
        "Create an enrolment with another rule for names: `aks-flex-rp pool enrolment create --pool POOL --max-uses "
        "N --node-name 'edge-{number:04}'`, and run the line that it prints.",
    ),
    enrolments.REJECTED: lambda why: ConfigError(
        "machine-rejected",
        f"The provider refuses to enrol this machine: {why}",
        "If that was a mistake, run `aks-flex-rp pool enrolment approve --pool POOL --id ENROLMENT --fingerprint "
        "FINGERPRINT`, and run the same command again here.",
    ),
}


class WrongClockError(Exception):
    """The provider refused the proof of the key because of its time. `offset` corrects the clock of this machine."""

    def __init__(self, offset: float) -> None:
        super().__init__(offset)
        self.offset = offset


class KeyRevokedError(ConfigError):
    """The key of this machine was revoked for the node of the URL. The URL can be fetched with a new key."""


class ApprovalPendingError(Exception):
    """The machine waits until a person approves it. `fingerprint` is that of its key."""

    def __init__(self, fingerprint: str, seconds: float) -> None:
        super().__init__(fingerprint, seconds)
        self.fingerprint, self.seconds = fingerprint, seconds


def parse_pending(body: bytes) -> ApprovalPendingError:
    found = parse_object(body)
    fingerprint, seconds = found.get("fingerprint"), found.get("retryAfterSeconds")
    wait = float(seconds) if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) else 0.0
    shown = "".join(each for each in str(fingerprint or "") if each.isalnum() or each == "-")[:64]
    return ApprovalPendingError(shown, min(max(wait, 1.0), MAX_WAIT_SECONDS))


def check_refusal(headers: Mapping[str, str], code: str, message: str) -> None:
    """Raises the error for a request that the service refuses because of its machine or its key."""
    if code == NODE_KEY_TIME and (offset := parse_clock_offset(headers, time.time())) is not None:
        raise WrongClockError(offset)
    if code in ENROLMENT_REFUSALS:
        raise ENROLMENT_REFUSALS[code](message)
    if code == ON_ANOTHER_MACHINE:
        raise node_on_another_machine(message)
    if code in {CONFIG_URL_TAKEN, NODE_KEY_REVOKED}:
        error = ConfigError(
            "config-url-taken",
            f"The provider refuses this machine: {message}",
            "Nothing was changed on this machine. If you do not know the other client, revoke its URL with a new "
            "join command: `aks-flex-rp node join-command --name NODE --replace`.",
        )
        raise KeyRevokedError(error.name, error.message, error.hint) if code == NODE_KEY_REVOKED else error


def node_on_another_machine(message: str) -> ConfigError:
    return ConfigError(
        "node-on-another-machine",
        f"The provider refuses this machine: {message}",
        "Nothing was changed on this machine. Create another node for it, or move the node to it with "
        "`aks-flex-rp node join-command --name NODE --replace`.",
    )
