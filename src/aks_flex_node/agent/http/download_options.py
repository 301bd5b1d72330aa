"""How HTTP requests leave this machine: mirror, proxies and their exceptions, CA file, concurrency and timeouts.
Also parses and redacts URLs.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import SplitResult, urlsplit, urlunsplit

from aks_flex_node.errors import ArtifactError


@dataclass(frozen=True)
class DownloadOptions:
    """What the configuration says about it."""

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
        """Where a publisher's URL is really asked for."""
        parts = parse_http_url(url)
        if self.base_url is None:
            return DownloadUrl(url, url)
        parse_http_url(self.base_url)
        host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
        query = f"?{parts.query}" if parts.query else ""
        return DownloadUrl(f"{self.base_url.rstrip('/')}/{host}{parts.path}{query}", url)

    def proxy_for(self, url: str) -> str | None:
        """The proxy that leads to a URL, if one does."""
        parts = urlsplit(url)
        proxy = self.https_proxy if parts.scheme == "https" else self.http_proxy
        if not proxy or bypasses_proxy(parts.hostname or "", parts.port, self.no_proxy):
            return None
        return proxy if "://" in proxy else f"http://{proxy}"


@dataclass(frozen=True)
class DownloadUrl:
    """A URL that is asked, and the publisher's URL that it stands for."""

    url: str
    publisher_url: str

    def __str__(self) -> str:
        if self.url == self.publisher_url:
            return redact_url(self.url)
        return f"{redact_url(self.url)} (the mirror of {redact_url(self.publisher_url)})"


def redact_url(url: str) -> str:
    """A URL as it may be shown: without a user, a password or a query, which may hold a signature."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(an invalid URL)"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def parse_http_url(url: str) -> SplitResult:
    """The parts of a URL that can be fetched."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ArtifactError(
            "artifact-url-invalid",
            f"{redact_url(url)!r} is not a URL that can be fetched.",
            "Write `https://host/path`; the URL templates and `artifacts.baseURL` are in the configuration.",
        )
    return parts


def url_identity(url: str) -> str:
    """A URL as it may be written down: without secrets, and still different from every other URL."""
    shown = redact_url(url)
    return shown if shown == url else f"{shown}#{sha256(url.encode()).hexdigest()[:16]}"


def bypasses_proxy(host: str, port: int | None, no_proxy: tuple[str, ...]) -> bool:
    """Whether a host is reached without a proxy: by its name, a domain it is in, or a network its address is in."""
    return any(no_proxy_matches(entry.strip().lower(), host.lower(), port) for entry in no_proxy if entry.strip())


def no_proxy_matches(entry: str, host: str, port: int | None) -> bool:
    if entry == "*":
        return True
    address = parse_ip_address(host)
    if address is not None:
        return address in (parse_ip_network(entry) or ())
    name, _, asked_port = entry.partition(":")
    if asked_port and asked_port != str(port):
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
