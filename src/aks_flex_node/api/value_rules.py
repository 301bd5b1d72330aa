"""Validation rules for other values: URLs, addresses, digests, certificates, paths and Azure resource IDs."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import posixpath
import re
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_RESOURCE_ID = (
    r"/subscriptions/([^/]+)/resourcegroups/([^/]+)/providers/microsoft\.containerservice/managedclusters/([^/]+)/?"
)

# Shared system directories. `unbootstrap` would empty them, so the agent cannot use them.
SYSTEM_DIRECTORIES = frozenset(
    """
    / /bin /boot /dev /etc /home /lib /lib32 /lib64 /media /mnt /opt /proc /root /run /sbin /snap /srv /sys
    /tmp /usr /var /usr/bin /usr/include /usr/lib /usr/lib64 /usr/libexec /usr/local /usr/local/bin
    /usr/local/lib /usr/local/sbin /usr/sbin /usr/share /usr/src /var/cache /var/lib /var/local /var/lock
    /var/log /var/mail /var/opt /var/run /var/spool /var/tmp /etc/default /etc/ssh /etc/ssl /etc/systemd
    /etc/systemd/system /lib/systemd /run/systemd /var/lib/systemd
    """.split()
)
KERNEL_DIRECTORIES = ("/proc", "/sys", "/dev", "/boot")
MAX_URL = 2048  # characters


def matching(pattern: str, reason: str, flags: int = 0) -> Callable[[str], str | None]:
    """Returns a rule that accepts a text of this pattern."""
    return lambda text: None if re.fullmatch(pattern, text, flags) else reason


def placeholder(text: str) -> str | None:
    is_one = "<" in text and re.fullmatch(r"\s*<.*>\s*", text)
    return "is still the placeholder. Replace it with the actual value." if is_one else None


def plain(text: str) -> str | None:
    """Accepts one line, without characters that are invisible or change the direction of text."""
    if text.isprintable():
        return None
    hidden = next(f"U+{ord(each):04X}" for each in text if not each.isprintable())
    return f"has a line break, or an invisible or other non-printable character ({hidden})."


def url(text: str) -> str | None:
    return _split(text, ("http", "https"))


def https_url(text: str) -> str | None:
    if text.startswith("http://"):
        return "is not encrypted. The API server must be reached with https://."
    if (reason := _split(text, ("https",))) is not None:
        return reason
    return "must not have a user name, a password, a query or a fragment." if set(text) & set("?#@") else None


def base_url(text: str) -> str | None:
    """Checks a URL to which the agent appends paths."""
    if (reason := url(text)) is not None:
        return reason
    return "must not have a query or a fragment, because paths are appended to it." if set(text) & set("?#") else None


def proxy(text: str) -> str | None:
    if (reason := _split(text, ("http", "https"))) is not None:
        return f"{reason.rstrip('.')}. A proxy has the form http://proxy.example:3128."
    return None


def _split(text: str, schemes: tuple[str, ...]) -> str | None:
    if len(text) > MAX_URL:
        return f"has {len(text)} characters. The maximum is {MAX_URL}."
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or re.search(r"[^!-~]|[\"'\\<>]|:\Z", text) or not _is_host(parts.hostname or ""):
        return f"is not a URL that starts with {' or '.join(f'{each}://' for each in schemes)} and has a host."
    return None


def _is_host(text: str) -> bool:
    return bool(_HOST.fullmatch(text)) or ip(text) is None


def template(text: str) -> str | None:
    """Checks a URL with the placeholders {version} and {arch}, or %s for each of them. Encoded characters such as
    %20 are allowed.
    """
    if (reason := _unknown_placeholder(text, ("version", "arch"))) is not None:
        return reason
    named = re.sub(r"\{\w+\}", "x", text)
    if named != text and "%s" in text:
        return "has both %s and {} placeholders. Use {version} and {arch} only."
    return _positional_template(named)


def _unknown_placeholder(text: str, known: tuple[str, ...]) -> str | None:
    """Returns what is wrong with the first placeholder in braces that is not known, or None."""
    usage = " and ".join(f"{{{name}}}" for name in known)
    for found in re.findall(r"\{[^{}]*\}?|\}", re.sub(rf"\{{(?:{'|'.join(known)})\}}", "", text)):
        return f"has the unknown placeholder {found}. Use {usage}."
    return None


def _positional_template(text: str) -> str | None:
    if re.search(r"%(?!s|[0-9A-Fa-f]{2})", text):
        return "has a % that is neither %s nor an encoded character like %20."
    return url(text.replace("%s", "x"))


def kubernetes_template(text: str) -> str | None:
    if (reason := _unknown_placeholder(text, ("version", "arch", "name"))) is not None:
        return reason
    named = re.sub(r"\{(?:version|arch|name)\}", "%s", text)
    placeholders = named.count("%s")
    if placeholders == 3 or (placeholders == 2 and named.endswith(".tar.gz")) or named != text:
        return _positional_template(named)
    return (
        f"has {placeholders} %s placeholders. Use three (version, architecture, program), or two (version, "
        "architecture) for a kubernetes-node tarball that ends in .tar.gz."
    )


def ip(text: str) -> str | None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return "is not an IP address, for example 10.0.0.10."
    return "has a scope after %. Use an address without one." if "%" in text else None


def network(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        if "host bits set" in str(error):
            return f"has bits set after its prefix. Use {ipaddress.ip_network(text, strict=False)}."
        return "is not a network, for example 192.168.100.0/24."
    if "%" in text:
        return "has a scope after %. Use a network without one."
    return None if "/" in text else "has no prefix length. A network has the form 192.168.100.0/24."


def listen_address(text: str) -> str | None:
    """Checks a host and a port. An empty string is allowed."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    good_host = not host or (_is_host(bare) and (":" not in bare or bare != host))
    if not text or (good_host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        return None
    return "is not an address and a port from 1 to 65535, for example 127.0.0.1:10257. An empty string disables it."


sha256 = matching(r"[0-9A-Fa-f]{64}", "is not a SHA-256 hash of 64 hexadecimal digits.")
fingerprint = matching("( *[0-9A-Fa-f]){40} *", "is not the fingerprint of an OpenPGP key, 40 hexadecimal digits.")
suite = matching(
    "[A-Za-z0-9][A-Za-z0-9._+~/-]*", "is not a suite. Use letters, digits and . _ + ~ / -, for example bookworm."
)
azure_name = matching(
    r"(?!\.{1,2}\Z)[A-Za-z0-9_.()-]{1,90}", "has characters that are not allowed in Azure names and IDs."
)
region = matching("[0-9A-Za-z][0-9A-Za-z ()-]{0,63}", "is not the name of an Azure region.")
gateway_sku = matching("[0-9A-Za-z_]{1,32}", "is not a SKU of VPN gateways, such as VpnGw2AZ.")
LARGEST, SMALLEST = 8, 29  # prefix lengths; Azure accepts no smaller network
# Ranges that cannot be routed through a gateway.
UNUSABLE_RANGES = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")


entra_id = matching(
    "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "is not an ID of Entra ID, for example 6dae42f8-4368-4678-94ff-3960e28e3630.",
)
pool_name = matching(
    "[a-z][a-z0-9]{0,11}",
    "is not the name of a pool: a lower-case letter, then up to 11 lower-case letters and digits.",
)


def arc_machine(text: str) -> str | None:
    return azure_name(text) or (None if len(text) <= 54 else f"has {len(text)} characters. The maximum is 54.")


def vpn_network(text: str) -> str | None:
    if wrong := network(text) or version_4(text):
        return wrong
    found = ipaddress.IPv4Network(text)
    if not LARGEST <= found.prefixlen <= SMALLEST:
        size = "small" if found.prefixlen > SMALLEST else "large"
        return f"is too {size}. The prefix length must be from {LARGEST} to {SMALLEST}."
    if any(found.overlaps(ipaddress.IPv4Network(each)) for each in UNUSABLE_RANGES):
        return "contains unusable addresses, such as loopback or multicast."
    return None


version_4 = matching("[^:]*", "is IPv6, which the VPN does not support.")


def vpn_address(text: str) -> str | None:
    return ip(text) or version_4(text)


gateway = matching(
    "[0-9A-Za-z]([0-9A-Za-z_.-]{0,78}[0-9A-Za-z_])?",
    "is not a valid gateway name. Use letters, digits, `-`, `_` and `.`, beginning with a letter or digit.",
)
virtual_network = matching(
    r"/subscriptions/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/resourcegroups/[-\w.()]{0,89}[-\w()]"
    r"/providers/microsoft\.network/virtualnetworks/[0-9a-z][-0-9a-z_.]{0,62}[0-9a-z_]",
    "is not a virtual network ID: /subscriptions/…/resourceGroups/…/providers/Microsoft.Network/virtualNetworks/"
    "…. List the IDs with `az network vnet list --query [].id`.",
    re.IGNORECASE,
)


def server_url(text: str) -> str | None:
    if wrong := https_url(text):
        return wrong
    if not text.startswith("https://") or set(text.removeprefix("https://")) & set("/?#@"):
        return "must be https://HOST or https://HOST:PORT, without user, path, query or fragment."
    return None


# All readers of a node see it.
public_url = matching(
    "[^?#@]*", "must not contain a user, password, query or fragment, because it is not kept secret."
)


def public_https_url(text: str) -> str | None:
    """Checks the URL of a mirror of programs. Nodes refuse one without TLS."""
    if text.startswith("http://"):
        return (
            "is not encrypted, and nodes refuse it. Use https://. Without an https mirror, use an offline bundle on "
            "the machine (artifacts.bundle)."
        )
    return _split(text, ("https",)) or public_url(text)


def time_zone(text: str) -> str | None:
    """Checks the name of a time zone. What a machine knows depends on its packages, so a node does not ask this."""
    return None if text in _time_zones() else "is not a time zone. Use a name such as Europe/Berlin or UTC."


@cache
def _time_zones() -> frozenset[str]:
    import zoneinfo  # noqa: PLC0415 - slow to import, and rarely needed

    return frozenset({*zoneinfo.available_timezones(), "UTC"})  # read from many files


no_proxy = matching(
    r"\*|(?!.*://)[^\s,\"']+",
    "is not a host, domain, address or network without scheme and comma, for example .example.com or 10.0.0.0/8.",
)
registry = matching(
    r"_default|[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?|\[[0-9a-f:]+\](:[0-9]+)?",
    "is not the host of a registry without https:// and path, for example mcr.microsoft.com.",
)


def resource_id(text: str) -> tuple[str, str, str] | None:
    """Returns subscription, resource group and name of an AKS cluster from its ARM ID."""
    parts = re.fullmatch(_RESOURCE_ID, text, re.IGNORECASE)
    return (parts[1], parts[2], parts[3]) if parts else None


cluster_id = matching(
    _RESOURCE_ID,
    "is not the ID of an AKS cluster: "
    "/subscriptions/…/resourceGroups/…/providers/Microsoft.ContainerService/managedClusters/…. Run `az aks "
    "show --query id` to print it.",
    re.IGNORECASE,
)


def read_certificate(text: str) -> bytes | None:
    """Returns the PEM of a text that is PEM or PEM in base64, or None if it is neither."""
    if "-----BEGIN CERTIFICATE-----" in text:
        return text.encode()
    try:
        pem = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    return pem if b"-----BEGIN CERTIFICATE-----" in pem else None


def certificate(text: str) -> str | None:
    import ssl  # noqa: PLC0415 - most commands look at no certificate

    pem = read_certificate(text)
    if pem is None:
        return "is not a certificate. Use PEM (-----BEGIN CERTIFICATE-----), plain or in base64."
    try:
        ssl.create_default_context(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        return "looks like a PEM certificate, but cannot be loaded. It may be truncated."
    return None


def certificate_and_key(text: str) -> str | None:
    whole = "-----BEGIN CERTIFICATE-----" in text and "PRIVATE KEY-----" in text
    return None if whole else "is not a certificate with its private key in PEM format (-----BEGIN ...)."


def directory(text: str) -> str | None:
    """Checks a directory that the agent creates, fills and removes."""
    if posixpath.normpath(text) in SYSTEM_DIRECTORIES or text.startswith("//"):
        return "is a system directory, which `unbootstrap` would empty. Use a separate directory below it."
    return path(text)


def metrics_file(text: str) -> str | None:
    """Checks a file that the daemon writes. Its unit allows the daemon to write to the directory."""
    return path(text) or ("must be in a directory below /." if posixpath.dirname(text).strip("/") == "" else None)


def path(text: str) -> str | None:
    """Checks a path that is written to units and to configurations of other programs."""
    if not re.fullmatch(r"/[A-Za-z0-9_./@+:-]*", text):
        return "has characters that are not safe in systemd units. Use only letters, digits and . _ - + @ :."
    if posixpath.normpath(text) == "/" or any(part in (".", "..") for part in text.split("/")):
        return "must be an absolute path without `.` and `..`, and not / itself."
    if any(_inside(text, each) for each in KERNEL_DIRECTORIES):
        return "is a directory of the kernel or the boot loader."
    return None


def _inside(inner: str, directory: str) -> bool:
    return inner == directory or inner.startswith(f"{directory}/")


def overlap(first: str, second: str) -> bool:
    one, two = posixpath.normpath(first), posixpath.normpath(second)
    return _inside(one, two) or _inside(two, one)
