"""Validation rules for other values: URLs, addresses, digests, certificates, paths and Azure resource ids."""

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

# A directory that more than this agent lives in. `reset` would empty it, so none of them may be ours.
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
    return "is still the placeholder; put the real value in its place." if re.fullmatch(r"\s*<.*>\s*", text) else None


def plain(text: str) -> str | None:
    """Settings end up in units and scripts, where a line break would start a line of its own."""
    return None if text.isprintable() else "has a line break or another character that cannot be printed."


def url(text: str) -> str | None:
    return _split(text, ("http", "https"))


def https_url(text: str) -> str | None:
    if text.startswith("http://"):
        return "is not encrypted; the API server is reached by https:// only."
    if (reason := _split(text, ("https",))) is not None:
        return reason
    parts = urlsplit(text)
    return (
        "has a name or password, a query or a fragment, which it must not."
        if _has_extras(text) or parts.query
        else None
    )


def proxy(text: str) -> str | None:
    if (reason := _split(text, ("http", "https"))) is not None:
        return f"{reason.rstrip('.')}; a proxy is like http://proxy.example:3128."
    return None


def _has_extras(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.username or parts.password or parts.fragment)


def _split(text: str, schemes: tuple[str, ...]) -> str | None:
    try:
        parts = urlsplit(text)
        fits = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits or re.search(r"[\s\"'\\<>]", text) or not _is_host(parts.hostname or ""):
        return f"is not a URL that starts with {' or '.join(f'{each}://' for each in schemes)} and has a host."
    return None


def _is_host(text: str) -> bool:
    return bool(_HOST.fullmatch(text)) or ip(text) is None


def template(text: str) -> str | None:
    """A URL in which %s stands for versions and the architecture; %20 and the like stay what they are."""
    if re.search(r"%(?!s|[0-9A-Fa-f]{2})", text):
        return "has a % that is neither %s nor an encoded character like %20."
    return url(text.replace("%s", "x"))


def kubernetes_template(text: str) -> str | None:
    named = re.sub(r"\{(?:version|arch|name)\}", "%s", text)
    placeholders = named.count("%s")
    if placeholders == 3 or (placeholders == 2 and named.endswith(".tar.gz")) or named != text:
        return template(named)
    return (
        f"has {placeholders} times %s. It takes three (version, architecture, program), "
        "or two (version, architecture) when it names a kubernetes-node tarball that ends in .tar.gz."
    )


def ip(text: str) -> str | None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return "is not an IP address, like 10.0.0.10."
    return None


def network(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        if "host bits set" in str(error):
            return f"has bits set after its prefix; you may mean {ipaddress.ip_network(text, strict=False)}."
        return "is not a network, like 192.168.100.0/24."
    return None if "/" in text else "has no prefix length; a network is like 192.168.100.0/24."


def listen_address(text: str) -> str | None:
    """Empty, or a host and a port."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    good_host = not host or (_is_host(bare) and (":" not in bare or bare != host))
    if not text or (good_host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        return None
    return "is not an address and a port from 1 to 65535, like 127.0.0.1:10257; empty means nowhere."


def sha256(text: str) -> str | None:
    return None if re.fullmatch(r"[0-9A-Fa-f]{64}", text) else "is not a SHA-256: 64 hexadecimal digits."


def azure_name(text: str) -> str | None:
    return None if re.fullmatch(r"[\w.()-]{1,90}", text) else "has characters that no name or id in Azure has."


def no_proxy(text: str) -> str | None:
    if "://" not in text and re.fullmatch(r"\*|[^\s,\"']+", text):
        return None
    return (
        "is not a host, domain, address or network, like .example.com or 10.0.0.0/8; it has no scheme and no comma."
    )


def registry(text: str) -> str | None:
    if text == "_default" or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?|\[[0-9a-f:]+\](:\d+)?", text):
        return None
    return "is not the host of a registry, like mcr.microsoft.com; without https:// and path."


def resource_id(text: str) -> tuple[str, str, str] | None:
    """Subscription, resource group and name of an AKS cluster, as its ARM id says them."""
    parts = _RESOURCE_ID.fullmatch(text)
    return (parts[1], parts[2], parts[3]) if parts else None


def cluster_id(text: str) -> str | None:
    if resource_id(text):
        return None
    return (
        "is not the id of an AKS cluster: /subscriptions/…/resourceGroups/…/providers/"
        "Microsoft.ContainerService/managedClusters/…. `az aks show --query id` prints it."
    )


def read_certificate(text: str) -> bytes | None:
    """PEM as it is, or PEM in base64; None when it is neither."""
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
        return "is not a certificate: PEM (-----BEGIN CERTIFICATE-----), as it is or in base64."
    try:
        ssl.create_default_context(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        return "looks like a PEM certificate but cannot be loaded; it may be cut off."
    return None


def directory(text: str) -> str | None:
    """A directory that the agent makes, fills, and takes away again."""
    if posixpath.normpath(text) in SYSTEM_DIRECTORIES or text.startswith("//"):
        return "is a directory of the system, and `reset` would empty it; give the agent one of its own below it."
    return link_directory(text)


def link_directory(text: str) -> str | None:
    """A directory in which the agent only puts links, so that one of the system will do."""
    if not re.fullmatch(r"/[A-Za-z0-9_./@+:-]*", text):
        return "has characters that do not go well with systemd units: use letters, digits and . _ - + @ : only."
    if posixpath.normpath(text) == "/" or any(part in (".", "..") for part in text.split("/")):
        return "must be a full path without `.` and `..`, and not / itself."
    if any(_inside(text, each) for each in KERNEL_DIRECTORIES):
        return "is where the kernel or the boot loader lives."
    return None


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def overlap(first: str, second: str) -> bool:
    one, two = posixpath.normpath(first), posixpath.normpath(second)
    return _inside(one, two) or _inside(two, one)
