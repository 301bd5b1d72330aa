"""Builds and parses configuration URLs, including the CA pin and the key of a sealed bundle. A configuration URL
grants access to the node's secrets.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from aks_flex_node.api.enrolments import ENROLMENT_PATH
from aks_flex_node.errors import CommandUsageError

CONFIG_PATH = "/configs/"
KEY_URL = "keyUrl"  # in a sealed bundle: the URL at the service that binds the key and has the complete bundle
MAX_URL_LENGTH = 4096
SAS_PARAMETERS = frozenset({"se", "sig", "sp", "spr", "sr", "st", "sv", "skoid"})  # of a signed URL of Azure Storage
DEFAULT_PORTS = {"https": 443, "http": 80}
_FRAGMENT = re.compile(r"(?:ca=sha256:(?P<pin>[0-9a-fA-F]{64})|key=(?P<key>[\w-]{43}))?", re.ASCII)


@dataclass(frozen=True, repr=False)
class ConfigUrl:
    address: str  # secret, without the fragment
    host: str
    port: int
    pin: str = ""  # SHA-256 of the CA certificate in lower-case hex; empty means the system's CAs
    scheme: str = "https"
    key: str = ""  # secret: opens the sealed bundle; empty if the server is the service itself

    @property
    def origin(self) -> str:
        """Returns the part of the URL that can be printed."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == DEFAULT_PORTS[self.scheme]
        return f"{self.scheme}://{host}" if usual else f"{self.scheme}://{host}:{self.port}"

    @property
    def secret(self) -> str:
        """Returns the last part of the path, which the service knows."""
        return self.address.partition("?")[0].rpartition("/")[2]

    @property
    def is_enrolment(self) -> bool:
        """Whether many machines may use the URL, and each of them becomes another node."""
        above = self.address.partition("?")[0].rpartition("/")[0]
        return not self.key and above.endswith(ENROLMENT_PATH.rstrip("/"))

    def __repr__(self) -> str:
        return f"ConfigUrl({self.origin}/***)"

    __str__ = __repr__


def build(origin: str, secret: str, pin: str = "", path: str = CONFIG_PATH) -> str:
    """Builds a configuration URL. `origin` is `https://host:port`, optionally with a path prefix."""
    return origin.rstrip("/") + path + secret + (f"#ca=sha256:{pin}" if pin else "")


def add_key(url: str, key: str) -> str:
    """Adds the key of a sealed bundle to the URL of a storage account, in the part that is never sent."""
    return f"{url}#key={key}"


def parse(text: str, *, plain: bool = False) -> ConfigUrl:
    """Parses a configuration URL. `plain` allows http to this machine. Messages never contain the URL."""
    address, _, fragment = text.strip().partition("#")
    if len(text) > MAX_URL_LENGTH or not address.isascii() or not address.isprintable() or " " in address:
        raise _malformed("It is not a URL.")
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        raise _malformed("It is not a URL.") from None
    if parts.scheme == "http" and not (plain and _is_loopback(host)):
        raise _malformed("It begins with http://, but the configuration is secret. Use https://.")
    if parts.scheme not in DEFAULT_PORTS or not host:
        raise _malformed("It must begin with https:// and a host name.")
    if parts.username is not None:
        raise _malformed("It contains a user name.")
    if parts.path in {"", "/"}:
        raise _malformed("It ends after the host name. The path is missing.")
    found = _FRAGMENT.fullmatch(fragment)
    if not found:
        raise _malformed(
            "The part after # is truncated or changed. It must be ca=sha256: and 64 hexadecimal digits, or key= and "
            "43 characters."
        )
    pin, key = (found["pin"] or "").lower(), found["key"] or ""
    if not key and SAS_PARAMETERS.intersection(parse_qs(parts.query, keep_blank_values=True)):
        # Without the key, whatever the administrator of the storage account has put there would be accepted.
        raise _malformed(
            "It is a URL of a storage account, and its part after # (key=) is missing. No request was sent."
        )
    return ConfigUrl(address, host, port, pin, parts.scheme, key)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name can resolve to any address


def _malformed(what: str) -> CommandUsageError:
    return CommandUsageError(
        "config-url-invalid",
        f"The configuration URL is not valid. {what}",
        "Copy the complete URL from the output of `aks-flex-rp node join-command` or the API, and put it in quotes.",
    )
