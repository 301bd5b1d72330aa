"""The VPN client profile that Azure generates: downloaded, unpacked and reduced to the OpenVPN options that are
safe to use; and the resource manager client, as the operator, that requests it.
"""

from __future__ import annotations

import contextlib
import io
import re
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.http.connections import explain_failure, make_pool, tls_context
from aks_flex_node.agent.identity.cloud_endpoints import proxy_options
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.azure.operations import ArmSender
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.azure.operations import OperationSender


MEMBER = "openvpn/vpnconfig.ovpn"
MAX_PROFILE_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,253}[A-Za-z0-9])?")
WORD = re.compile(r"[A-Za-z0-9:_+.-]{1,128}")
ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
BLOCK = re.compile(r"(?:-----(?:BEGIN|END) [A-Za-z0-9 ]+-----|[A-Za-z0-9+/=]*|#.*)")
PROTOCOLS = {"tcp": "tcp-client", "tcp-client": "tcp-client", "tcp4": "tcp4-client", "udp": "udp", "udp4": "udp4"}
ALLOWED_OPTIONS = ("cipher", "data-ciphers", "auth", "tls-version-min", "key-direction")
ALLOWED_BLOCKS = ("ca", "tls-auth", "tls-crypt")
OWN_OPTIONS = frozenset(  # what we say ourselves
    "client dev dev-type resolv-retry nobind persist-key persist-tun tls-timeout verb mute log log-append port pull "
    "tls-client remote-cert-tls cert key keepalive ping ping-restart status remote-random connect-retry float".split()
)
# By these, a client can be made to run something, or to read and write what it should not.
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


@dataclass(frozen=True)
class ClientProfile:
    remotes: tuple[tuple[str, int], ...]
    protocol: str
    server_name: tuple[str, str]  # what its certificate must say, and how that is compared
    options: dict[str, str]  # ciphers and the like
    blocks: dict[str, str] = field(repr=False)  # certificates and the key that all of its clients share
    name_servers: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()  # directives that we do not know


def unpack_profile(archive: bytes) -> str:
    """The OpenVPN profile in Azure's archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            names = {one.filename.replace("\\", "/").lower(): one for one in files.infolist()}
            found = names.get(MEMBER)
            if found is None:
                raise profile_unfit_error("it holds no OpenVPN profile; is OpenVPN among the gateway's protocols?")
            if found.file_size > MAX_PROFILE_BYTES:
                raise profile_unfit_error(f"its OpenVPN profile has {found.file_size} bytes")
            return files.read(found).decode()
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, UnicodeDecodeError, EOFError) as error:
        raise profile_unfit_error(f"it is not a whole archive ({error})") from error


def parse_profile(text: str) -> ClientProfile:
    plain, blocks = _split(text)
    read = _Reader()
    for directive, arguments in plain:
        if directive in DANGEROUS:
            raise profile_unfit_error(
                f"it has the directive {directive!r}, by which a gateway has nothing to say here"
            )
        if not read.take(directive, arguments) and directive not in OWN_OPTIONS:
            read.dropped.append(directive)
    if not (read.remotes and read.server[0] and "ca" in blocks):
        raise profile_unfit_error("it does not say where the gateway is, or how to know it")
    endpoints = tuple((host, port or read.port) for host, port in read.remotes)
    return ClientProfile(
        endpoints, read.protocol, read.server, read.options, blocks, tuple(read.servers), tuple(read.dropped)
    )


class _Reader:
    """Takes from a profile what is known, in the shape that it must have."""

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
                self.server = (_named(name), _kind(kind[0] if kind else "subject"))
            case ("dhcp-option", ["DNS", address]) if ADDRESS.fullmatch(address):
                self.servers.append(address)
            case (name, [value]) if name in ALLOWED_OPTIONS:
                self.options[name] = _word(name, value)
            case _:
                return False
        return True


def _split(text: str) -> tuple[list[tuple[str, list[str]]], dict[str, str]]:
    """Directives with their words, and the blocks that are kept."""
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
    """What is in a block up to its end. Anything that is no certificate and no key is refused where it is kept."""
    content: list[str] = []
    for line in lines:
        if line.strip() == f"</{name}>":
            return "\n".join(content) + "\n"
        if name in ALLOWED_BLOCKS and not BLOCK.fullmatch(line.strip()):
            raise profile_unfit_error(f"its block {name!r} holds something else than a certificate or a key")
        if line.strip() and not line.strip().startswith("#"):
            content.append(line.strip())
    raise profile_unfit_error(f"its block {name!r} has no end")


def _named(host: str) -> str:
    if not NAME.fullmatch(host):
        raise profile_unfit_error(f"{host!r} is no name of a gateway")
    return host


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise profile_unfit_error(f"{text!r} is no port")
    return int(text)


def _protocol(name: str) -> str:
    if name.lower() not in PROTOCOLS:
        raise profile_unfit_error(f"{name!r} is no protocol that we know")
    return PROTOCOLS[name.lower()]


def _kind(text: str) -> str:
    if text not in {"name", "name-prefix", "subject"}:
        raise profile_unfit_error(f"{text!r} is no way to compare the name of a gateway")
    return text


def _word(name: str, value: str) -> str:
    if not WORD.fullmatch(value):
        raise profile_unfit_error(f"{name} is {value!r}")
    return value


def profile_unfit_error(why: str) -> FlexError:
    return FlexError(
        "vpn-profile-unsupported",
        f"The profile that Azure made for the VPN cannot be used: {why}.",
        "Run the same command again. If it stays so, look at it: `az network vnet-gateway vpn-client generate`.",
    )


def download_link(body: Any) -> str:
    """Where the profile can be fetched, as the operation's result says it."""
    url = body.get("properties", {}).get("output", "") if isinstance(body, dict) else body
    if not (isinstance(url, str) and url.startswith("https://")):
        raise profile_unfit_error("Azure does not say where it can be fetched")
    return url


MAX_ARCHIVE_BYTES = 4 << 20
DOWNLOAD_SECONDS = 60.0


@contextlib.contextmanager
def operator_client(config: NodeConfig) -> Iterator[OperationSender]:
    """As the operator, who may make gateways."""
    from aks_flex_node.agent.identity.azure_sign_in import open_arm

    with open_arm(config, operator=True) as client:
        yield ArmSender(client)


def download_profile(config: NodeConfig, url: str) -> bytes:
    """What a link of Azure's leads to. The link itself opens the archive to whoever has it, so it is told nobody."""
    from urllib3.exceptions import HTTPError

    sources = proxy_options(config)
    proxy = sources.proxy_for(url)
    address = url.partition("?")[0]
    private_cloud = read_certificate(config.azure.ca_cert_data) if config.azure.ca_cert_data else None
    try:
        with make_pool(sources, proxy, tls_context(system=True, pem=private_cloud)) as pool:
            answer = pool.request(
                "GET", url, timeout=DOWNLOAD_SECONDS, retries=False, redirect=False, preload_content=False
            )
            content = answer.read(MAX_ARCHIVE_BYTES + 1)
    except (HTTPError, OSError) as error:
        raise _unreachable(explain_failure(error, address, proxy, DOWNLOAD_SECONDS).cause) from None
    if answer.status != 200:
        raise _unreachable(f"the answer has status {answer.status}")
    if len(content) > MAX_ARCHIVE_BYTES:
        raise profile_unfit_error(f"it has more than {MAX_ARCHIVE_BYTES >> 20} MB")
    return bytes(content)


def _unreachable(why: str) -> FlexError:
    return FlexError(
        "vpn-profile-unreachable",
        f"The profile that Azure made for the VPN cannot be fetched: {why}.",
        "Check that this machine reaches Azure's storage (*.blob.core.windows.net), then run the same command again.",
        retryable=True,
    )
