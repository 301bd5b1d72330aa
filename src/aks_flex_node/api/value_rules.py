"""Validation rules for other values: URLs, addresses, digests, certificates, paths and Azure resource IDs."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import posixpath
import re
from urllib.parse import urlsplit

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_RESOURCE_ID = re.compile(
    r"/subscriptions/([^/]+)/resourcegroups/([^/]+)/providers/microsoft\.containerservice/managedclusters/([^/]+)/?",
    re.IGNORECASE,
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


def placeholder(text: str) -> str | None:
    return (
        "is still the placeholder. Replace it with the actual value." if re.fullmatch(r"\s*<.*>\s*", text) else None
    )


def plain(text: str) -> str | None:
    """Rejects line breaks, because settings are written to units and scripts."""
    return None if text.isprintable() else "has a line break or another non-printable character."


def url(text: str) -> str | None:
    return _split(text, ("http", "https"))


def https_url(text: str) -> str | None:
    if text.startswith("http://"):
        return "is not encrypted. The API server must be reached with https://."
    if (reason := _split(text, ("https",))) is not None:
        return reason
    parts = urlsplit(text)
    return (
        "must not have a user name, a password, a query or a fragment." if _has_extras(text) or parts.query else None
    )


def proxy(text: str) -> str | None:
    if (reason := _split(text, ("http", "https"))) is not None:
        return f"{reason.rstrip('.')}. A proxy has the form http://proxy.example:3128."
    return None


def _has_extras(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.username or parts.password or parts.fragment)


def _split(text: str, schemes: tuple[str, ...]) -> str | None:
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or re.search(r"[\s\"'\\<>]", text) or not _is_host(parts.hostname or ""):
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
    return None


def network(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        if "host bits set" in str(error):
            return f"has bits set after its prefix. Use {ipaddress.ip_network(text, strict=False)}."
        return "is not a network, for example 192.168.100.0/24."
    return None if "/" in text else "has no prefix length. A network has the form 192.168.100.0/24."


def listen_address(text: str) -> str | None:
    """Checks a host and a port. An empty string is allowed."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    good_host = not host or (_is_host(bare) and (":" not in bare or bare != host))
    if not text or (good_host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        return None
    return "is not an address and a port from 1 to 65535, for example 127.0.0.1:10257. An empty string disables it."


def sha256(text: str) -> str | None:
    return None if re.fullmatch(r"[0-9A-Fa-f]{64}", text) else "is not a SHA-256 hash of 64 hexadecimal digits."


def azure_name(text: str) -> str | None:
    return (
        None
        if re.fullmatch(r"[\w.()-]{1,90}", text, re.ASCII) and text not in {".", ".."}
        else "has characters that are not allowed in Azure names and IDs."
    )


def no_proxy(text: str) -> str | None:
    if "://" not in text and re.fullmatch(r"\*|[^\s,\"']+", text):
        return None
    return (
        "is not a host, domain, address or network without scheme and comma, for example .example.com or 10.0.0.0/8."
    )


def registry(text: str) -> str | None:
    if text == "_default" or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?|\[[0-9a-f:]+\](:\d+)?", text):
        return None
    return "is not the host of a registry without https:// and path, for example mcr.microsoft.com."


def resource_id(text: str) -> tuple[str, str, str] | None:
    """Returns subscription, resource group and name of an AKS cluster from its ARM ID."""
    parts = _RESOURCE_ID.fullmatch(text)
    return (parts[1], parts[2], parts[3]) if parts else None


def cluster_id(text: str) -> str | None:
    if resource_id(text):
        return None
    return (
        "is not the ID of an AKS cluster: "
        "/subscriptions/…/resourceGroups/…/providers/Microsoft.ContainerService/managedClusters/…. Run `az aks "
        "show --query id` to print it."
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
    return link_directory(text)


def link_directory(text: str) -> str | None:
    """Checks a directory in which the agent only creates links. System directories are allowed."""
    if not re.fullmatch(r"/[A-Za-z0-9_./@+:-]*", text):
        return "has characters that are not safe in systemd units. Use only letters, digits and . _ - + @ :."
    if posixpath.normpath(text) == "/" or any(part in (".", "..") for part in text.split("/")):
        return "must be an absolute path without `.` and `..`, and not / itself."
    if any(_inside(text, each) for each in KERNEL_DIRECTORIES):
        return "is a directory of the kernel or the boot loader."
    return None


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def overlap(first: str, second: str) -> bool:
    one, two = posixpath.normpath(first), posixpath.normpath(second)
    return _inside(one, two) or _inside(two, one)
