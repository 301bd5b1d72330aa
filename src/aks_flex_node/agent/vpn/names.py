"""Names behind the VPN: asked of the name servers there, and kept in /etc/hosts where nothing else resolves them."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import struct

from aks_flex_node.agent.components.vpn import HOSTS_MARK, without_managed_lines

A, IN, POINTER = 1, 1, 0xC0
SECONDS = 2.0


def with_name(hosts: bytes, name: str, address: str) -> bytes:
    """The content of /etc/hosts with our line first, so that it is the one that counts, and all else as it was."""
    return f"{address} {name} {HOSTS_MARK}\n".encode() + without_managed_lines(hosts)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def ask(server: str, name: str) -> str:
    """The address that a name server gives; nothing when it gives none, or does not answer."""
    number = secrets.randbelow(1 << 16)
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(SECONDS)
        line.connect((server, 53))
        line.send(question(number, name))
        return answer(number, line.recv(4096))
    return ""


def question(number: int, name: str) -> bytes:
    labels = b"".join(bytes([len(part)]) + part for part in name.rstrip(".").encode("idna").split(b"."))
    return struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", A, IN)


def answer(number: int, packet: bytes) -> str:
    """The first address in an answer; aliases are passed over, because their addresses come with them."""
    try:
        told, flags, questions, answers = struct.unpack_from(">4H", packet)
        if told != number or flags & 0x800F != 0x8000:
            return ""
        at = 12
        for _ in range(questions):
            at = _after_name(packet, at) + 4
        for _ in range(answers):
            at = _after_name(packet, at)
            kind, _, _, length = struct.unpack_from(">2HIH", packet, at)
            at += 10
            if kind == A and length == 4:
                return str(ipaddress.IPv4Address(packet[at : at + 4]))
            at += length
    except (struct.error, IndexError, ValueError):
        return ""
    return ""


def _after_name(packet: bytes, at: int) -> int:
    while packet[at]:
        if packet[at] & POINTER == POINTER:
            return at + 2
        at += packet[at] + 1
    return at + 1
