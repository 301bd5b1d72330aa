"""Enrolment on the wire: the path of its URLs, the facts that a machine sends about itself, and the refusals.

A machine sends `{"proof": …, "facts": {…}}` to the URL. It gets its configuration (200), or has to wait for an
approval (202), or is refused with one of the codes (409). Facts are what the machine says, and prove nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

ENROLMENT_PATH = "/enrolments/"
MAX_FACTS_BYTES = 16 << 10  # of the whole request
MAX_MAC_ADDRESSES = 32
TEXT_LIMITS = {
    "hostname": 253,
    "serialNumber": 128,
    "systemUuid": 64,
    "os": 200,
    "architecture": 32,
    "agentVersion": 64,
}
LARGEST_NUMBER = 2**53  # that JSON clients read exactly

# Codes of refusals, which the agent shows with a remedy each.
EXHAUSTED = "EnrolmentExhausted"
EXPIRED = "EnrolmentExpired"
REVOKED = "EnrolmentRevoked"
NOT_LISTED = "NotOnAllowList"
CLONED = "MachineCloned"
NAME_TAKEN = "NodeNameTaken"
NAME_INVALID = "NodeNameInvalid"
REJECTED = "MachineRejected"
NOT_FOUND = "EnrolmentNotFound"
REFUSALS = frozenset({EXHAUSTED, EXPIRED, REVOKED, NOT_LISTED, CLONED, NAME_TAKEN, NAME_INVALID, REJECTED})

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
# Defaults of vendors, with which many machines are sold.
_PLACEHOLDER_UUIDS = frozenset(
    {
        "03000200-0400-0500-0006-000700080009",
        "00020003-0004-0005-0006-000700080009",
        "12345678-1234-5678-90ab-cddeefaabbcc",
        "4c4c4544-0000-2010-8020-80c04f202020",
        "fefefefe-fefe-fefe-fefe-fefefefefefe",
    }
)
_PLACEHOLDER_SERIALS = frozenset(
    {
        *("", "0", "none", "n/a", "not specified", "not applicable", "unknown", "invalid", "default string"),
        *("to be filled by o.e.m.", "to be filled by oem", "system serial number", "serial number", "oem"),
        *("123456789", "0123456789", "1234567890", "empty", "default", "sys-1234567890"),
    }
)


def normalized_uuid(text: str) -> str:
    """Returns the UUID in lower case, or an empty string if it is none or the same on many machines."""
    found = text.strip().lower()
    if not _UUID.fullmatch(found) or found in _PLACEHOLDER_UUIDS or len(set(found.replace("-", ""))) == 1:
        return ""
    return found


def normalized_serial(text: str) -> str:
    """Returns the serial number in lower case, or an empty string for a default of a vendor."""
    found = " ".join(text.split()).lower()
    return "" if found in _PLACEHOLDER_SERIALS or set(found) <= set("0. -") else found


def normalized_mac(text: str) -> str:
    """Returns the address with colons in lower case, or an empty string if it is none."""
    found = text.strip().lower().replace("-", ":")
    return found if _MAC.fullmatch(found) and found != "00:00:00:00:00:00" else ""


@dataclass(frozen=True)
class MachineFacts:
    """What a machine says about itself when it enrols."""

    hostname: str = ""
    serial_number: str = ""
    system_uuid: str = ""
    os: str = ""
    architecture: str = ""
    agent_version: str = ""
    mac_addresses: tuple[str, ...] = ()
    cpus: int = 0
    memory_bytes: int = 0

    def to_document(self) -> dict[str, Any]:
        named: dict[str, Any] = {
            "hostname": self.hostname,
            "serialNumber": self.serial_number,
            "systemUuid": self.system_uuid,
            "os": self.os,
            "architecture": self.architecture,
            "agentVersion": self.agent_version,
            "macAddresses": list(self.mac_addresses),
            "cpus": self.cpus,
            "memoryBytes": self.memory_bytes,
        }
        return {key: value for key, value in named.items() if value}


def parse_facts(document: object) -> MachineFacts:
    """Parses the facts of a request. Raises ValueError with the property and what is wrong with it.

    Characters that are not printable are removed: the facts are shown to people. Unknown facts are ignored, because
    a newer agent may send more.
    """
    if not isinstance(document, dict):
        raise ValueError("facts must be an object.")
    texts = {name: _text(document, name, limit) for name, limit in TEXT_LIMITS.items()}
    macs = document.get("macAddresses", [])
    if not isinstance(macs, list) or len(macs) > MAX_MAC_ADDRESSES or not all(isinstance(mac, str) for mac in macs):
        raise ValueError(f"facts.macAddresses must be a list of at most {MAX_MAC_ADDRESSES} addresses.")
    numbers = {name: _number(document, name) for name in ("cpus", "memoryBytes")}
    return MachineFacts(
        texts["hostname"],
        texts["serialNumber"],
        texts["systemUuid"],
        texts["os"],
        texts["architecture"],
        texts["agentVersion"],
        tuple(filter(None, map(normalized_mac, macs))),
        numbers["cpus"],
        numbers["memoryBytes"],
    )


def bounded_text(text: str, limit: int) -> str:
    """Returns the printable part of a text, within the limit of a fact."""
    return "".join(each for each in text.strip() if each.isprintable())[:limit]


def _text(document: dict[str, Any], name: str, limit: int) -> str:
    value = document.get(name, "")
    if not isinstance(value, str) or len(value) > limit:
        raise ValueError(f"facts.{name} must be a text of at most {limit} characters.")
    return bounded_text(value, limit)


def _number(document: dict[str, Any], name: str) -> int:
    value = document.get(name, 0)
    if type(value) is not int or not 0 <= value <= LARGEST_NUMBER:
        raise ValueError(f"facts.{name} must be a number.")
    return value
