"""Installs and purges the azcmagent package with a separate apt configuration: one source, separate caches, and a
keyring whose packets are parsed and compared with the expected fingerprints. The package sources of the machine
are not changed.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.release_signature import dearmor
from aks_flex_node.agent.machine import os_release
from aks_flex_node.agent.reconcile.program_stager import artifact_sources
from aks_flex_node.errors import ArtifactError, BusyError, MachineError
from aks_flex_node.host.actions import MakeDirectory, RemoveTree, Run, WriteFile
from aks_flex_node.host.host import Host, read_text
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aks_flex_node.settings.models import NodeConfig


PUBLIC_KEY = 6


def verified_keyring(text: str, expected: Iterable[str], where: str) -> bytes:
    """Returns the keyring for apt if all of its keys have an expected fingerprint."""
    try:
        ring = dearmor(text)
        found = [_fingerprint(body) for tag, body in _packets(ring) if tag == PUBLIC_KEY]
    except (ValueError, IndexError):
        found = []
    if not found:
        raise ArtifactError(
            "package-key-unreadable",
            f"{where} is not an ASCII-armoured OpenPGP public key.",
            "Check `azure.arc.package.keyURL`. A proxy or a sign-in page may have answered instead.",
        )
    allowed = {each.replace(" ", "").upper() for each in expected}
    if unexpected := [each for each in found if each not in allowed]:
        raise ArtifactError(
            "package-key-mismatch",
            f"The key at {where} is not an expected key: its fingerprint is {unexpected[0]}.",
            "Nothing was installed. If the repository has a new key that you trust, add its fingerprint to "
            "`azure.arc.package.keyFingerprints`.",
        )
    return ring


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and body of each packet. Rejects packets of indeterminate length, which are not valid in a key."""
    at = 0
    while at < len(data):
        first = data[at]
        if not first & 0x80:
            raise ValueError("not a packet")
        tag, start, size = _new_format_packet(data, at) if first & 0x40 else _old_format_packet(data, at)
        body = data[start : start + size]
        if len(body) != size:
            raise ValueError("truncated packet")
        yield tag, body
        at = start + size


def _old_format_packet(data: bytes, at: int) -> tuple[int, int, int]:
    width = {0: 1, 1: 2, 2: 4}.get(data[at] & 3)
    if width is None:
        raise ValueError("packet without a length")
    return (data[at] >> 2) & 15, at + 1 + width, int.from_bytes(data[at + 1 : at + 1 + width], "big")


def _new_format_packet(data: bytes, at: int) -> tuple[int, int, int]:
    tag, first = data[at] & 63, data[at + 1]
    if first < 192:
        return tag, at + 2, first
    if first < 224:
        return tag, at + 3, ((first - 192) << 8) + data[at + 2] + 192
    if first == 255:
        return tag, at + 6, int.from_bytes(data[at + 2 : at + 6], "big")
    raise ValueError("partial body length")


def _fingerprint(body: bytes) -> str:
    if body[0] != 4:
        raise ValueError("unsupported key version")
    content = b"\x99" + len(body).to_bytes(2, "big") + body
    return hashlib.sha1(content, usedforsecurity=False).hexdigest().upper()


PACKAGE = "azcmagent"
MICROSOFT = "https://packages.microsoft.com"
OLD_KEY, NEW_KEY = f"{MICROSOFT}/keys/microsoft.asc", f"{MICROSOFT}/keys/microsoft-2025.asc"
NEW_KEY_SINCE = {"debian": (13,), "ubuntu": (25, 10)}
# Users and directories that the package creates and does not always remove.
USERS = ("himds", "arcproxy")
PACKAGE_FOLDERS = (
    *("/opt/azcmagent", "/var/opt/azcmagent", "/etc/opt/azcmagent"),
    *("/opt/GC_Ext", "/opt/GC_Service", "/var/lib/GuestConfig"),
)
LOCK_SECONDS = 120  # how long to wait for another package manager
UPDATE_SECONDS, INSTALL_SECONDS = 300.0, 900.0
INTERRUPTED = "/var/lib/dpkg/updates"  # not empty after an interrupted dpkg
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get")
BUSY = re.compile(r"could not get lock|frontend lock|is held by process|lock.*another process", re.IGNORECASE)


@frozen
class AptRepository:
    url: str
    suite: str
    key: str


def repository(config: NodeConfig, release: str) -> AptRepository:
    """Returns the configured repository. Missing values default to Microsoft's for this release (the text of
    /etc/os-release).
    """
    package = config.azure.arc.package
    fields = os_release(release)
    name, version, suite = (fields.get(key, "") for key in ("ID", "VERSION_ID", "VERSION_CODENAME"))
    if name not in NEW_KEY_SINCE and not (package.repository and package.suite and package.key_url):
        raise MachineError(
            "azcmagent-not-found",
            "azcmagent is not installed, and no package repository is known for "
            f"{fields.get('PRETTY_NAME', 'this system')}.",
            "Install azcmagent (https://aka.ms/azcmagent), or set `azure.arc.package.repository`, `suite` and "
            "`keyURL`.",
        )
    number = tuple(int(part) for part in version.split(".") if part.isdigit())
    key = NEW_KEY if number >= NEW_KEY_SINCE.get(name, (0,)) else OLD_KEY
    return AptRepository(
        package.repository or f"{MICROSOFT}/{name}/{version}/prod", package.suite or suite, package.key_url or key
    )


@frozen
class AzcmagentPackage:
    host: Host
    config: NodeConfig
    fetch: Callable[[str], str]  # downloads the text at a URL

    @property
    def apt_directory(self) -> str:
        """Outside the agent's data directory, which apt's unprivileged process cannot enter."""
        return f"{self.config.paths.data_dir}-packages"

    def install(self) -> None:
        release = read_text(self.host, "/etc/os-release")
        if self.host.stat("/usr/bin/apt-get") is None:
            raise azcmagent_missing_error("this machine has no apt")
        source = repository(self.config, release)
        key = verified_keyring(self.fetch(source.key), self.config.azure.arc.package.key_fingerprints, source.key)
        url = artifact_sources(self.config).resolve(source.url).url
        with self._apt(f"deb [signed-by={self.apt_directory}/key.gpg] {url} {source.suite} main\n", key) as conf:
            self._finish_interrupted_dpkg()
            self._run((*APT, "-c", conf, "update"), f"read the package list of {source.url}", UPDATE_SECONDS)
            arguments = ("install", "--yes", "--no-install-recommends", PACKAGE)
            self._run((*APT, "-c", conf, *arguments), f"install {PACKAGE}", INSTALL_SECONDS)

    def purge(self, found: tuple[str, ...]) -> None:
        """Purges the package, and removes the users and directories that did not exist before it."""
        # After an interrupted removal the first purge only completes that removal; the second one purges.
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
        """Returns the users and directories of the package that already exist."""
        names = _names(self.host, "/etc/passwd") | _names(self.host, "/etc/group")
        folders = [folder for folder in PACKAGE_FOLDERS if self.host.stat(folder)]
        return (*sorted(names & set(USERS)), *folders)

    @property
    def is_in_dpkg(self) -> bool:
        """Returns whether dpkg knows the package, even if it is only partially installed."""
        return bool(self._entry())

    @property
    def is_installed(self) -> bool:
        return "\nStatus: install ok installed\n" in self._entry()

    def _entry(self) -> str:
        """Returns the entry of the package in dpkg's status file."""
        text = read_text(self.host, "/var/lib/dpkg/status")
        return next((f"{one}\n" for one in text.split("\n\n") if f"Package: {PACKAGE}\n" in f"{one}\n"), "")

    def clean_up(self) -> None:
        """Removes the files of an interrupted run."""
        if self.host.stat(self.apt_directory):
            self.host.apply(RemoveTree(self.apt_directory))

    @contextmanager
    def _apt(self, line: str, key: bytes) -> Iterator[str]:
        """Creates a temporary apt configuration directory."""
        self.clean_up()
        self.host.apply(MakeDirectory(self.apt_directory))
        for folder in ("lists", "cache", "log", "empty"):
            self.host.apply(MakeDirectory(f"{self.apt_directory}/{folder}"))
        self.host.apply(WriteFile(f"{self.apt_directory}/key.gpg", key))
        self.host.apply(WriteFile(f"{self.apt_directory}/sources.list", line.encode()))
        conf = f"{self.apt_directory}/apt.conf"
        self.host.apply(
            WriteFile(conf, self._conf().encode(), 0o600, secret=True)
        )  # the proxy URL can contain a password
        try:
            yield conf
        finally:
            self.clean_up()

    def _conf(self) -> str:
        directory, sources = self.apt_directory, artifact_sources(self.config)
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
            "Acquire::https::CAInfo": sources.ca_file or "",
            "Acquire::http::Proxy": sources.http_proxy or "",
            "Acquire::https::Proxy": sources.https_proxy or "",
        }
        # Programs such as debconf that run before an installation would use apt's default directories.
        hooks = "#clear DPkg::Pre-Install-Pkgs;\n"
        return hooks + "".join(f'{key} "{value}";\n' for key, value in settings.items() if value)

    def _finish_interrupted_dpkg(self) -> None:
        """Completes an interrupted dpkg run, without which apt refuses to work."""
        if self.host.list_dir(INTERRUPTED):
            argv = (*APT[:2], "dpkg", f"--log={self.apt_directory}/log/dpkg.log", "--configure", "-a")
            self._run(argv, "complete an interrupted dpkg run", INSTALL_SECONDS)

    def _run(self, argv: tuple[str, ...], why: str, seconds: float) -> None:
        try:
            self.host.apply(Run(argv, why, seconds=seconds + LOCK_SECONDS))
        except MachineError as error:
            if BUSY.search(error.message):
                raise BusyError(
                    "package-manager-locked",
                    f"Another package manager has been running on this machine for more than {LOCK_SECONDS} s.",
                    "Wait until it finishes (`fuser -v /var/lib/dpkg/lock-frontend` shows the process), then run "
                    "the same command again.",
                    retryable=True,
                ) from error
            raise ArtifactError(
                "arc-package-failed",
                f"Could not {why}: {error.message.partition(': ')[2] or error.message}",
                "Check `azure.arc.package`, the network and the proxy. Or install azcmagent manually and run the "
                "same command again.",
                retryable=True,
            ) from error


def _names(host: Host, path: str) -> set[str]:
    text = read_text(host, path)
    return {line.partition(":")[0] for line in text.splitlines()}


def azcmagent_missing_error(cause: str) -> MachineError:
    return MachineError(
        "azcmagent-not-found",
        f"azcmagent is not installed, and {cause}.",
        "Install azcmagent (https://aka.ms/azcmagent), or set `azure.arc.package.install` to true.",
    )
