"""The VPN client profile that Azure generates: downloads and unpacks it, and reduces it to the OpenVPN options that
are safe to use.
"""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.http.connections import explain_failure, make_pool, tls_context
from aks_flex_node.agent.identity.cloud_endpoints import proxy_options
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.bounded_http.limits import time_limit
from aks_flex_node.errors import FlexError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.settings.models import NodeConfig


MEMBER = "openvpn/vpnconfig.ovpn"
MAX_PROFILE_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,253}[A-Za-z0-9])?")
WORD = re.compile(r"[A-Za-z0-9:_+.-]{1,128}")
ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
BLOCK = re.compile(r"(?:-----(?:BEGIN|END) [A-Za-z0-9 ]+-----|[A-Za-z0-9+/=]*|#.*)")
PROTOCOLS = {"tcp": "tcp-client", "tcp-client": "tcp-client", "tcp4": "tcp4-client", "udp": "udp", "udp4": "udp4"}
ALLOWED_OPTIONS = ("cipher", "data-ciphers", "auth", "tls-version-min", "key-direction")
ALLOWED_BLOCKS = ("ca", "tls-auth", "tls-crypt")
OWN_OPTIONS = frozenset(  # options that the agent sets itself
    "client dev dev-type resolv-retry nobind persist-key persist-tun tls-timeout verb mute log log-append port pull "
    "tls-client remote-cert-tls cert key keepalive ping ping-restart status remote-random connect-retry float".split()
)
# Options that can make a client run programs, or read and write other files.
DANGEROUS = frozenset(
    """
    up down up-restart up-delay down-pre route-up route-pre-down ipchange script-security plugin tls-verify
    learn-address client-connect client-disconnect client-crresponse auth-user-pass-verify tls-crypt-v2-verify
    config cd chroot setenv setenv-safe writepid management management-external-key iproute engine providers
    pkcs11-providers pkcs11-id pkcs12 daemon inetd user group auth-user-pass askpass http-proxy socks-proxy
    redirect-gateway redirect-private crl-verify x509-track tls-export-cert secret dh extra-certs replay-persist
    tmp-dir syslog echo
    """.split()
)


@frozen
class ClientProfile:
    remotes: tuple[tuple[str, int], ...]
    protocol: str
    server_name: tuple[str, str]  # expected name in the certificate, and how it is compared
    options: dict[str, str]  # for example ciphers
    blocks: dict[str, str] = field(repr=False)  # certificates and the key that all clients share
    name_servers: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()  # unknown directives


def unpack_profile(archive: bytes) -> str:
    """Returns the OpenVPN profile from Azure's archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            names = {entry.filename.replace("\\", "/").lower(): entry for entry in files.infolist()}
            found = names.get(MEMBER)
            if found is None:
                raise profile_unfit_error(
                    "it contains no OpenVPN profile. Check that OpenVPN is one of the gateway's protocols"
                )
            if found.file_size > MAX_PROFILE_BYTES:
                raise profile_unfit_error(f"its OpenVPN profile has {found.file_size} bytes")
            return files.read(found).decode()
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, UnicodeDecodeError, EOFError) as error:
        raise profile_unfit_error(f"it is not a valid archive ({error})") from error


def parse_profile(text: str) -> ClientProfile:
    plain, blocks = _split(text)
    read = _Reader()
    for directive, arguments in plain:
        if directive in DANGEROUS:
            raise profile_unfit_error(f"it has the directive {directive!r}, which is not allowed")
        if not read.take(directive, arguments) and directive not in OWN_OPTIONS:
            read.dropped.append(directive)
    if not (read.remotes and read.server[0] and "ca" in blocks):
        raise profile_unfit_error("it does not contain the gateway's address, its name or its CA")
    endpoints = tuple((host, port or read.port) for host, port in read.remotes)
    return ClientProfile(
        endpoints, read.protocol, read.server, read.options, blocks, tuple(read.servers), tuple(read.dropped)
    )


class _Reader:
    """Collects the supported directives of a profile and validates their values."""

    def __init__(self) -> None:
        self.remotes: list[tuple[str, int]] = []
        self.protocol, self.port, self.server = "udp", 1194, ("", "")
        self.options: dict[str, str] = {}
        self.servers: list[str] = []
        self.dropped: list[str] = []

    def take(self, directive: str, arguments: list[str]) -> bool:
        match directive, arguments:
            case ("remote", [host, *more]):
                self.remotes.append((_named(host), _port(more[0]) if more else 0))
                self.protocol = _protocol(more[1]) if len(more) > 1 else self.protocol
            case ("proto", [name]):
                self.protocol = _protocol(name)
            case ("port", [number]):
                self.port = _port(number)
            case ("verify-x509-name", [name, *kind]):
                text = kind[0] if kind else "subject"
                if text not in {"name", "name-prefix", "subject"}:
                    raise profile_unfit_error(f"the name comparison {text!r} is not supported")
                self.server = (_named(name), text)
            case ("dhcp-option", ["DNS", address]) if ADDRESS.fullmatch(address):
                self.servers.append(address)
            case (name, [value]) if name in ALLOWED_OPTIONS:
                if not WORD.fullmatch(value):
                    raise profile_unfit_error(f"the value {value!r} of {name} is not valid")
                self.options[name] = value
            case _:
                return False
        return True


def _split(text: str) -> tuple[list[tuple[str, list[str]]], dict[str, str]]:
    """Returns the directives with their arguments, and the allowed blocks."""
    plain: list[tuple[str, list[str]]] = []
    blocks: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if opened := re.fullmatch(r"<([a-z0-9-]+)>", stripped):
            content = _block(opened[1], lines)
            if opened[1] in ALLOWED_BLOCKS:
                blocks[opened[1]] = content
            elif opened[1] in DANGEROUS:
                raise profile_unfit_error(f"it has a block {opened[1]!r}")
            continue
        directive, *rest = (word.strip("'\"") for word in stripped.split())
        plain.append((directive.lstrip("-").lower(), rest))
    return plain, blocks


def _block(name: str, lines: Iterator[str]) -> str:
    """Returns the content of a block. Rejects an allowed block with anything but certificates and keys."""
    content: list[str] = []
    for line in lines:
        if line.strip() == f"</{name}>":
            return "\n".join(content) + "\n"
        if name in ALLOWED_BLOCKS and not BLOCK.fullmatch(line.strip()):
            raise profile_unfit_error(f"its block {name!r} contains data other than certificates and keys")
        if line.strip() and not line.strip().startswith("#"):
            content.append(line.strip())
    raise profile_unfit_error(f"its block {name!r} has no end")


def _named(host: str) -> str:
    if not NAME.fullmatch(host):
        raise profile_unfit_error(f"{host!r} is not a valid gateway name")
    return host


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise profile_unfit_error(f"{text!r} is not a valid port")
    return int(text)


def _protocol(name: str) -> str:
    if name.lower() not in PROTOCOLS:
        raise profile_unfit_error(f"the protocol {name!r} is not supported")
    return PROTOCOLS[name.lower()]


def profile_unfit_error(cause: str) -> FlexError:
    return FlexError(
        "vpn-profile-unsupported",
        f"The VPN profile that Azure generated cannot be used: {cause}.",
        "Run the same command again. If it fails again, check the profile with `az network vnet-gateway vpn-client "
        "generate`.",
    )


def download_link(body: Any) -> str:
    """Returns the download URL of the profile from the result of the operation."""
    url = body.get("properties", {}).get("output", "") if isinstance(body, dict) else body
    if not (isinstance(url, str) and url.startswith("https://")):
        raise profile_unfit_error("Azure returned no download URL")
    return url


MAX_ARCHIVE_BYTES = 4 << 20
DOWNLOAD_SECONDS = 60.0


def download_profile(config: NodeConfig, url: str) -> bytes:
    """Downloads the profile. The URL grants access to the archive, so messages never contain its query."""
    from urllib3.exceptions import HTTPError

    sources = proxy_options(config)
    proxy = sources.proxy_for(url)
    address = url.partition("?")[0]
    private_cloud = read_certificate(config.azure.ca_cert_data) if config.azure.ca_cert_data else None
    try:
        trust = tls_context(system=True, pem=private_cloud)
        with make_pool(sources, proxy, trust) as pool, time_limit(DOWNLOAD_SECONDS):
            response = pool.request(
                "GET", url, timeout=DOWNLOAD_SECONDS, retries=False, redirect=False, preload_content=False
            )
            content = response.read(MAX_ARCHIVE_BYTES + 1, decode_content=False)
    except (HTTPError, OSError) as error:
        raise _unreachable(explain_failure(error, address, proxy, DOWNLOAD_SECONDS).cause) from None
    if response.status != 200:
        raise _unreachable(f"the response has status {response.status}")
    if len(content) > MAX_ARCHIVE_BYTES:
        raise profile_unfit_error(f"it is larger than {MAX_ARCHIVE_BYTES >> 20} MiB")
    return bytes(content)


def _unreachable(cause: str) -> FlexError:
    return FlexError(
        "vpn-profile-unreachable",
        f"The VPN profile that Azure generated cannot be downloaded: {cause}.",
        "Check that this machine can reach Azure storage (*.blob.core.windows.net), then run the same command again.",
        retryable=True,
    )
