"""Installs and purges azcmagent's package with an apt configuration of its own: one source, one keyring that is
read packet by packet and compared with the expected fingerprints, own caches. The machine's package sources
stay untouched.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.reconcile.program_stager import artifact_sources
from aks_flex_node.errors import ArtifactError, BusyError, MachineError
from aks_flex_node.host.actions import MakeDirectory, RemoveTree, Run, WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host


ARMOUR = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\r\n]+: [^\r\n]*\r?\n)*\r?\n(?P<body>[A-Za-z0-9+/=\s]+?)"
    r"(?:\r?\n=[A-Za-z0-9+/]{4})?\s*-----END PGP PUBLIC KEY BLOCK-----"
)
PUBLIC_KEY = 6


def verified_keyring(text: str, expected: Iterable[str], where: str) -> bytes:
    """The keyring for apt, when every key in it is one of those that are expected."""
    try:
        ring = b"".join(_blocks(text))
        found = [_fingerprint(body) for tag, body in _packets(ring) if tag == PUBLIC_KEY]
    except (ValueError, IndexError, binascii.Error):
        found = []
    if not found:
        raise ArtifactError(
            "package-key-unreadable",
            f"{where} is not a public OpenPGP key in ASCII armour.",
            "Check azure.arc.package.keyURL; a proxy or a sign-in page may have answered in its place.",
        )
    allowed = {each.replace(" ", "").upper() for each in expected}
    if strange := [each for each in found if each not in allowed]:
        raise ArtifactError(
            "package-key-mismatch",
            f"The key at {where} is not the one that is expected: its fingerprint is {strange[0]}.",
            "Nothing was installed. If the repository has a new key that you trust, name its fingerprint in "
            "azure.arc.package.keyFingerprints.",
        )
    return ring


def _blocks(text: str) -> Iterator[bytes]:
    for block in ARMOUR.finditer(text):
        yield base64.b64decode("".join(block["body"].split()), validate=True)


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and body of each packet; one whose length is not told has no place in a key."""
    at = 0
    while at < len(data):
        first = data[at]
        if not first & 0x80:
            raise ValueError("not a packet")
        tag, start, size = _new_format_packet(data, at) if first & 0x40 else _old_format_packet(data, at)
        body = data[start : start + size]
        if len(body) != size:
            raise ValueError("cut off")
        yield tag, body
        at = start + size


def _old_format_packet(data: bytes, at: int) -> tuple[int, int, int]:
    width = {0: 1, 1: 2, 2: 4}.get(data[at] & 3)
    if width is None:
        raise ValueError("without a length")
    return (data[at] >> 2) & 15, at + 1 + width, int.from_bytes(data[at + 1 : at + 1 + width], "big")


def _new_format_packet(data: bytes, at: int) -> tuple[int, int, int]:
    tag, first = data[at] & 63, data[at + 1]
    if first < 192:
        return tag, at + 2, first
    if first < 224:
        return tag, at + 3, ((first - 192) << 8) + data[at + 2] + 192
    if first == 255:
        return tag, at + 6, int.from_bytes(data[at + 2 : at + 6], "big")
    raise ValueError("in parts")


def _fingerprint(body: bytes) -> str:
    if body[0] != 4:
        raise ValueError("of another version")
    content = b"\x99" + len(body).to_bytes(2, "big") + body
    return hashlib.sha1(content, usedforsecurity=False).hexdigest().upper()


PACKAGE = "azcmagent"
MICROSOFT = "https://packages.microsoft.com"
OLD_KEY, NEW_KEY = f"{MICROSOFT}/keys/microsoft.asc", f"{MICROSOFT}/keys/microsoft-2025.asc"
NEW_KEY_SINCE = {"debian": (13,), "ubuntu": (25, 10)}
# What the package makes on a machine, and does not always take away.
USERS = ("himds", "arcproxy")
PACKAGE_FOLDERS = (
    *("/opt/azcmagent", "/var/opt/azcmagent", "/etc/opt/azcmagent"),
    *("/opt/GC_Ext", "/opt/GC_Service", "/var/lib/GuestConfig"),
)
LOCK_SECONDS = 120  # how long another package manager may be at work
UPDATE_SECONDS, INSTALL_SECONDS = 300.0, 900.0
INTERRUPTED = "/var/lib/dpkg/updates"  # what a dpkg that was cut off leaves
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get")
BUSY = re.compile(r"could not get lock|frontend lock|is held by process|lock.*another process", re.IGNORECASE)


@dataclass(frozen=True)
class AptRepository:
    url: str
    suite: str
    key: str


def repository(config: NodeConfig, release: str) -> AptRepository:
    """As configured; what is left out is Microsoft's for this release (the text of /etc/os-release)."""
    package = config.azure.arc.package
    fields = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    name, version, suite = (fields.get(key, "").strip('"') for key in ("ID", "VERSION_ID", "VERSION_CODENAME"))
    if name not in NEW_KEY_SINCE and not (package.repository and package.suite and package.key_url):
        raise MachineError(
            "azcmagent-not-found",
            f"azcmagent is not installed, and for {fields.get('PRETTY_NAME', 'this system').strip(chr(34))} no "
            "repository is known.",
            "Install it as Azure's documents say, or set azure.arc.package.repository, suite and keyURL.",
        )
    number = tuple(int(part) for part in version.split(".") if part.isdigit())
    key = NEW_KEY if number >= NEW_KEY_SINCE.get(name, (0,)) else OLD_KEY
    return AptRepository(
        package.repository or f"{MICROSOFT}/{name}/{version}/prod", package.suite or suite, package.key_url or key
    )


@dataclass(frozen=True)
class AzcmagentPackage:
    host: Host
    config: NodeConfig
    fetch: Callable[[str], str]  # the text at a URL

    @property
    def apt_directory(self) -> str:
        """Not inside the agent's own directory, which apt's unprivileged half may not enter."""
        return f"{self.config.paths.data_dir}-packages"

    def install(self) -> None:
        release = (self.host.read("/etc/os-release") or b"").decode(errors="replace")
        if self.host.stat("/usr/bin/apt-get") is None:
            raise azcmagent_missing_error("this machine has no apt to install it with")
        source = repository(self.config, release)
        key = verified_keyring(self.fetch(source.key), self.config.azure.arc.package.key_fingerprints, source.key)
        with self._apt(self._line(source), key) as conf:
            self._finish_interrupted_dpkg()
            self._run((*APT, "-c", conf, "update"), f"read the package list of {source.url}", UPDATE_SECONDS)
            arguments = ("install", "--yes", "--no-install-recommends", PACKAGE)
            self._run((*APT, "-c", conf, *arguments), f"install {PACKAGE}", INSTALL_SECONDS)

    def purge(self, found: tuple[str, ...]) -> None:
        """Take the package away, and what it made that was not found before it."""
        # A removal that was cut off is brought to its end by the first, and only the second purges.
        for _ in range(2):
            if self.is_in_dpkg:
                with self._apt("", b"") as conf:
                    self._finish_interrupted_dpkg()
                    self._run((*APT, "-c", conf, "purge", "--yes", PACKAGE), f"remove {PACKAGE}", INSTALL_SECONDS)
        for folder in PACKAGE_FOLDERS:
            if folder not in found and self.host.stat(folder):
                self.host.apply(RemoveTree(folder))
        for user in USERS:
            if user not in found and user in _names(self.host, "/etc/passwd"):
                self.host.apply(Run(("userdel", user), f"remove user {user}"))
            if user not in found and user in _names(self.host, "/etc/group"):
                self.host.apply(Run(("groupdel", user), f"remove group {user}"))

    def preexisting(self) -> tuple[str, ...]:
        """What of the package's users and directories is here already."""
        names = _names(self.host, "/etc/passwd") | _names(self.host, "/etc/group")
        folders = [folder for folder in PACKAGE_FOLDERS if self.host.stat(folder)]
        return (*sorted(names & set(USERS)), *folders)

    @property
    def is_in_dpkg(self) -> bool:
        """Whether dpkg has anything of it, be it half of it."""
        return bool(self._entry())

    @property
    def is_installed(self) -> bool:
        return "\nStatus: install ok installed\n" in self._entry()

    def _entry(self) -> str:
        """What dpkg has written down of it."""
        text = (self.host.read("/var/lib/dpkg/status") or b"").decode(errors="replace")
        return next((f"{one}\n" for one in text.split("\n\n") if f"Package: {PACKAGE}\n" in f"{one}\n"), "")

    def clean_up(self) -> None:
        """What a run that was cut off left."""
        if self.host.stat(self.apt_directory):
            self.host.apply(RemoveTree(self.apt_directory))

    @contextmanager
    def _apt(self, line: str, key: bytes) -> Iterator[str]:
        """A configuration of apt in a directory that is there for this once."""
        self.clean_up()
        self.host.apply(MakeDirectory(self.apt_directory))
        for folder in ("lists", "cache", "log", "empty"):
            self.host.apply(MakeDirectory(f"{self.apt_directory}/{folder}"))
        self.host.apply(WriteFile(f"{self.apt_directory}/key.gpg", key))
        self.host.apply(WriteFile(f"{self.apt_directory}/sources.list", line.encode()))
        conf = f"{self.apt_directory}/apt.conf"
        self.host.apply(WriteFile(conf, self._conf().encode(), 0o600, secret=True))  # a proxy may have a password
        try:
            yield conf
        finally:
            self.clean_up()

    def _line(self, source: AptRepository) -> str:
        url = artifact_sources(self.config).resolve(source.url).url
        return f"deb [signed-by={self.apt_directory}/key.gpg] {url} {source.suite} main\n"

    def _conf(self) -> str:
        directory, ways = self.apt_directory, artifact_sources(self.config)
        settings = {
            "Dir::Etc::sourcelist": f"{directory}/sources.list",
            "Dir::Etc::sourceparts": f"{directory}/empty",
            "Dir::State::lists": f"{directory}/lists",
            "Dir::State::extended_states": f"{directory}/extended_states",
            "Dir::Cache": f"{directory}/cache",
            "Dir::Log": f"{directory}/log",
            "DPkg::Options::": f"--log={directory}/log/dpkg.log",
            "DPkg::Lock::Timeout": str(LOCK_SECONDS),
            "APT::Update::Error-Mode": "any",
            "Acquire::AllowInsecureRepositories": "false",
            "Acquire::Retries": "3",
            "Acquire::Languages": "none",
            "Acquire::https::CAInfo": ways.ca_file or "",
            "Acquire::http::Proxy": ways.http_proxy or "",
            "Acquire::https::Proxy": ways.https_proxy or "",
        }
        # A program that asks questions before packages are installed would use apt's own directories.
        hooks = "#clear DPkg::Pre-Install-Pkgs;\n"
        return hooks + "".join(f'{key} "{value}";\n' for key, value in settings.items() if value)

    def _finish_interrupted_dpkg(self) -> None:
        """apt does nothing before what a cut off dpkg left is brought to its end."""
        if self.host.list_dir(INTERRUPTED):
            argv = (*APT[:2], "dpkg", f"--log={self.apt_directory}/log/dpkg.log", "--configure", "-a")
            self._run(argv, "finish what an interrupted dpkg left", INSTALL_SECONDS)

    def _run(self, argv: tuple[str, ...], why: str, seconds: float) -> None:
        try:
            self.host.apply(Run(argv, why, seconds=seconds + LOCK_SECONDS))
        except MachineError as error:
            if BUSY.search(error.message):
                raise packages_busy_error() from error
            raise ArtifactError(
                "arc-package-failed",
                f"Could not {why}: {error.message.partition(': ')[2] or error.message}",
                "Check azure.arc.package, the network and the proxy; or install azcmagent yourself and try again.",
                retryable=True,
            ) from error


def _names(host: Host, path: str) -> set[str]:
    text = (host.read(path) or b"").decode(errors="replace")
    return {line.partition(":")[0] for line in text.splitlines()}


def packages_busy_error() -> BusyError:
    return BusyError(
        "package-manager-locked",
        f"Another package manager has been at work on this machine for more than {LOCK_SECONDS} s.",
        "Wait for it (`fuser -v /var/lib/dpkg/lock-frontend` names it), then run the same command again.",
        retryable=True,
    )


def azcmagent_missing_error(cause: str) -> MachineError:
    return MachineError(
        "azcmagent-not-found",
        f"azcmagent is not installed, and {cause}.",
        "Install it as Azure's documents say (https://aka.ms/azcmagent), or let azure.arc.package.install do it.",
    )
