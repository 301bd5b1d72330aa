"""Identity of a machine, which the agent sends to the resource provider in a header of its requests.

The machine ID is a hash of `/etc/machine-id`, which systemd asks programs not to expose. The resource provider
derives the same hash from `status.nodeInfo.machineID` of a Node, so it can tell on which machine a Node lives.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import parse_qsl, urlencode

MACHINE_HEADER = "Aks-Flex-Node-Machine"
MAX_TEXT = 253  # characters of a host name, address or OS
MAX_HEADER = 2048
_SALT = "aks-flex-node machine "
_ID = re.compile(r"[0-9a-f]{32}")
_HOST_CHARACTERS = re.compile(r"[^A-Za-z0-9._:%-]")  # all others are removed: the values are shown in messages


@dataclass(frozen=True)
class MachineIdentity:
    id: str  # hash of the machine ID
    host_name: str = ""
    address: str = ""
    os: str = ""

    def __str__(self) -> str:
        known = ", ".join((*((self.address,) if self.address else ()), f"ID {self.id[:8]}"))
        return f"{self.host_name} ({known})" if self.host_name else f"({known})"

    def to_document(self) -> dict[str, str]:
        named = {"id": self.id, "hostName": self.host_name, "address": self.address, "os": self.os}
        return {key: value for key, value in named.items() if value}

    @cached_property
    def header(self) -> str:
        return urlencode(self.to_document())


def hash_machine_id(text: str) -> str:
    """Returns the hash of a machine ID, or an empty string if there is none, as on an image before its first boot."""
    known = text.strip().replace("-", "").lower()
    return hashlib.sha256(f"{_SALT}{known}".encode()).hexdigest()[:32] if _ID.fullmatch(known) else ""


def parse_machine_header(text: str) -> MachineIdentity | None:
    """Parses the header. Returns None if it is absent or names no machine: it is written by the caller."""
    if not text or len(text) > MAX_HEADER:
        return None
    try:
        found = dict(parse_qsl(text, max_num_fields=16))
    except ValueError:
        return None
    if not _ID.fullmatch(found.get("id", "")):
        return None
    host, address = (_HOST_CHARACTERS.sub("", found.get(name, ""))[:MAX_TEXT] for name in ("hostName", "address"))
    return MachineIdentity(
        found["id"],
        host,
        address,
        "".join(each for each in found.get("os", "") if each.isprintable() and each != "`")[:MAX_TEXT],
    )
