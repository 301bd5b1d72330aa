"""Configuration URLs: whoever has one can fetch the node's secrets. Builds and parses them, CA pin included."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from aks_flex_node.errors import CommandUsageError

CONFIG_PATH = "/configs/"
MAX_URL_LENGTH = 4096
DEFAULT_PORTS = {"https": 443, "http": 80}
_PIN = re.compile(r"ca=sha256:([0-9a-fA-F]{64})")


@dataclass(frozen=True, repr=False)
class ConfigUrl:
    address: str  # a secret, without the fragment
    host: str
    port: int
    pin: str = ""  # SHA-256 of the CA's certificate, in lower-case hex; empty for the authorities of the system
    scheme: str = "https"

    @property
    def origin(self) -> str:
        """All of it that may be shown."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == DEFAULT_PORTS[self.scheme]
        return f"{self.scheme}://{host}" if usual else f"{self.scheme}://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"ConfigUrl({self.origin}/***)"

    __str__ = __repr__


def build(origin: str, secret: str, pin: str = "") -> str:
    """The URL of a service's own delivery; `origin` is `https://host:port`, perhaps with a path before ours."""
    return origin.rstrip("/") + CONFIG_PATH + secret + (f"#ca=sha256:{pin}" if pin else "")


def parse(text: str, *, plain: bool = False) -> ConfigUrl:
    """A URL as a person gives it; `plain` http only to this machine. No message shows more than what is wrong."""
    address, _, fragment = text.strip().partition("#")
    if len(text) > MAX_URL_LENGTH or not address.isascii() or not address.isprintable() or " " in address:
        raise _malformed("It is not a URL.")
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        raise _malformed("It is not a URL.") from None
    if parts.scheme == "http" and not (plain and _is_loopback(host)):
        raise _malformed("It begins with http://, and what it delivers is secret: only https:// will do.")
    if parts.scheme not in DEFAULT_PORTS or not host:
        raise _malformed("It must begin with https:// and the name of a server.")
    if parts.username is not None:
        raise _malformed("It has a user name in it.")
    if parts.path in {"", "/"}:
        raise _malformed("It ends after the server's name: the part that says what to fetch is missing.")
    return ConfigUrl(address, host, port, _pin(fragment), parts.scheme)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may lead anywhere


def _pin(fragment: str) -> str:
    if not fragment:
        return ""
    found = _PIN.fullmatch(fragment)
    if not found:
        raise _malformed("What comes after its # is cut off or changed: it must be ca=sha256: and 64 characters.")
    return found[1].lower()


def _malformed(what: str) -> CommandUsageError:
    return CommandUsageError(
        "config-url-invalid",
        f"The configuration URL cannot be used. {what}",
        "Copy all of it, in quotes, as `aks-flex-rp node join-command` or the API gave it.",
    )
