"""How HTTP requests leave this machine: mirror, proxies and their exceptions, CA file, concurrency and timeouts.
Also parses and redacts URLs.
"""

from __future__ import annotations

import ipaddress
from hashlib import sha256
from urllib.parse import urlsplit, urlunsplit

from aks_flex_node.lean_dataclass import frozen


@frozen
class DownloadOptions:
    """The download and proxy settings of the configuration."""

    base_url: str | None = None
    bundle: str | None = None
    ca_file: str | None = None
    http_proxy: str | None = None
    https_proxy: str | None = None
    no_proxy: tuple[str, ...] = ()
    parallel: int = 8
    attempts: int = 5
    stall_seconds: float = 30.0
    connect_seconds: float = 15.0  # at most; never longer than `stall_seconds`

    def resolve(self, url: str) -> DownloadUrl:
        """Returns the URL to request for a publisher's URL: on the mirror if one is configured."""
        parts = urlsplit(url)
        if self.base_url is None:
            return DownloadUrl(url, url)
        host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
        query = f"?{parts.query}" if parts.query else ""
        return DownloadUrl(f"{self.base_url.rstrip('/')}/{host}{parts.path}{query}", url)

    def proxy_for(self, url: str) -> str | None:
        """Returns the proxy for a URL, or None."""
        parts = urlsplit(url)
        proxy = self.https_proxy if parts.scheme == "https" else self.http_proxy
        if not proxy or bypasses_proxy(parts.hostname or "", parts.port, self.no_proxy):
            return None
        return proxy if "://" in proxy else f"http://{proxy}"


@frozen
class DownloadUrl:
    """The URL to request and the publisher's URL that it replaces."""

    url: str
    publisher_url: str

    def __str__(self) -> str:
        if self.url == self.publisher_url:
            return redact_url(self.url)
        return f"{redact_url(self.url)} (mirror of {redact_url(self.publisher_url)})"


def redact_url(url: str) -> str:
    """Removes user, password and query, which can contain a signature, so that the URL can be logged."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(invalid URL)"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def url_identity(url: str) -> str:
    """Returns a URL without secrets, but with a digest so that it remains unique."""
    shown = redact_url(url)
    return shown if shown == url else f"{shown}#{sha256(url.encode()).hexdigest()[:16]}"


def bypasses_proxy(host: str, port: int | None, no_proxy: tuple[str, ...]) -> bool:
    """Returns whether a host matches an entry of noProxy: name, parent domain or network."""
    return any(no_proxy_matches(entry.strip().lower(), host.lower(), port) for entry in no_proxy if entry.strip())


def no_proxy_matches(entry: str, host: str, port: int | None) -> bool:
    if entry == "*":
        return True
    address = parse_ip_address(host)
    if address is not None:
        return address in (parse_ip_network(entry) or ())
    name, _, entry_port = entry.partition(":")
    if entry_port and entry_port != str(port):
        return False
    name = name.removeprefix("*").strip(".")
    return host == name or host.endswith(f".{name}")


def parse_ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None


def parse_ip_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        return None
