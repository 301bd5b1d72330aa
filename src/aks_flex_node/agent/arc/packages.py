"""azcmagent's package: from a repository whose key is known, without touching the machine's own package sources.

apt gets a directory of its own, with one source, one key, and its caches and logs: the machine's lists stay as they
are, and a source that somebody else has set up for the same repository is not in our way, nor are we in its.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.arc.keys import checked
from aks_flex_node.agent.reconcile.program_stager import artifact_sources
from aks_flex_node.errors import ArtifactError, BusyError, MachineError
from aks_flex_node.host.actions import MakeDirectory, RemoveTree, Run, WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host

PACKAGE = "azcmagent"
MICROSOFT = "https://packages.microsoft.com"
OLD_KEY, NEW_KEY = f"{MICROSOFT}/keys/microsoft.asc", f"{MICROSOFT}/keys/microsoft-2025.asc"
NEW_KEY_SINCE = {"debian": (13,), "ubuntu": (25, 10)}
# What the package makes on a machine, and does not always take away.
USERS = ("himds", "arcproxy")
FOLDERS = (
    *("/opt/azcmagent", "/var/opt/azcmagent", "/etc/opt/azcmagent"),
    *("/opt/GC_Ext", "/opt/GC_Service", "/var/lib/GuestConfig"),
)
LOCK_SECONDS = 120  # how long another package manager may be at work
UPDATE_SECONDS, INSTALL_SECONDS = 300.0, 900.0
INTERRUPTED = "/var/lib/dpkg/updates"  # what a dpkg that was cut off leaves
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get")
BUSY = re.compile(r"could not get lock|frontend lock|is held by process|lock.*another process", re.IGNORECASE)


@dataclass(frozen=True)
class Repository:
    url: str
    suite: str
    key: str


def repository(config: NodeConfig, release: str) -> Repository:
    """As configured; what is left out is Microsoft's for this release (the text of /etc/os-release)."""
    package = config.azure.arc.package
    told = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    name, version, suite = (told.get(key, "").strip('"') for key in ("ID", "VERSION_ID", "VERSION_CODENAME"))
    if name not in NEW_KEY_SINCE and not (package.repository and package.suite and package.key_url):
        raise MachineError(
            "azcmagent-missing",
            f"azcmagent is not installed, and for {told.get('PRETTY_NAME', 'this system').strip(chr(34))} no "
            "repository is known.",
            "Install it as Azure's documents say, or set azure.arc.package.repository, suite and keyURL.",
        )
    number = tuple(int(part) for part in version.split(".") if part.isdigit())
    key = NEW_KEY if number >= NEW_KEY_SINCE.get(name, (0,)) else OLD_KEY
    return Repository(
        package.repository or f"{MICROSOFT}/{name}/{version}/prod", package.suite or suite, package.key_url or key
    )


@dataclass(frozen=True)
class Packages:
    host: Host
    config: NodeConfig
    fetch: Callable[[str], str]  # the text at a URL

    @property
    def room(self) -> str:
        """Not inside the agent's own directory, which apt's unprivileged half may not enter."""
        return f"{self.config.paths.data_dir}-packages"

    def install(self) -> None:
        release = (self.host.read("/etc/os-release") or b"").decode(errors="replace")
        if self.host.look("/usr/bin/apt-get") is None:
            raise missing("this machine has no apt to install it with")
        source = repository(self.config, release)
        key = checked(self.fetch(source.key), self.config.azure.arc.package.key_fingerprints, source.key)
        with self._apt(self._line(source), key) as conf:
            self._mend()
            self._run((*APT, "-c", conf, "update"), f"read the package list of {source.url}", UPDATE_SECONDS)
            words = ("install", "--yes", "--no-install-recommends", PACKAGE)
            self._run((*APT, "-c", conf, *words), f"install {PACKAGE}", INSTALL_SECONDS)

    def purge(self, found: tuple[str, ...]) -> None:
        """Take the package away, and what it made that was not found before it."""
        # A removal that was cut off is brought to its end by the first, and only the second purges.
        for _ in range(2):
            if self.is_known:
                with self._apt("", b"") as conf:
                    self._mend()
                    self._run((*APT, "-c", conf, "purge", "--yes", PACKAGE), f"remove {PACKAGE}", INSTALL_SECONDS)
        for folder in FOLDERS:
            if folder not in found and self.host.look(folder):
                self.host.do(RemoveTree(folder))
        for user in USERS:
            if user not in found and user in _names(self.host, "/etc/passwd"):
                self.host.do(Run(("userdel", user), f"remove user {user}"))
            if user not in found and user in _names(self.host, "/etc/group"):
                self.host.do(Run(("groupdel", user), f"remove group {user}"))

    def present(self) -> tuple[str, ...]:
        """What of the package's users and directories is here already."""
        names = _names(self.host, "/etc/passwd") | _names(self.host, "/etc/group")
        folders = [folder for folder in FOLDERS if self.host.look(folder)]
        return (*sorted(names & set(USERS)), *folders)

    @property
    def is_known(self) -> bool:
        """Whether dpkg has anything of it, be it half of it."""
        return bool(self._entry())

    @property
    def is_whole(self) -> bool:
        return "\nStatus: install ok installed\n" in self._entry()

    def _entry(self) -> str:
        """What dpkg has written down of it."""
        text = (self.host.read("/var/lib/dpkg/status") or b"").decode(errors="replace")
        return next((f"{one}\n" for one in text.split("\n\n") if f"Package: {PACKAGE}\n" in f"{one}\n"), "")

    def tidy(self) -> None:
        """What a run that was cut off left."""
        if self.host.look(self.room):
            self.host.do(RemoveTree(self.room))

    @contextmanager
    def _apt(self, line: str, key: bytes) -> Iterator[str]:
        """A configuration of apt in a directory that is there for this once."""
        self.tidy()
        self.host.do(MakeDirectory(self.room))
        for folder in ("lists", "cache", "log", "empty"):
            self.host.do(MakeDirectory(f"{self.room}/{folder}"))
        self.host.do(WriteFile(f"{self.room}/key.gpg", key))
        self.host.do(WriteFile(f"{self.room}/sources.list", line.encode()))
        conf = f"{self.room}/apt.conf"
        self.host.do(WriteFile(conf, self._conf().encode(), 0o600, secret=True))  # a proxy may have a password
        try:
            yield conf
        finally:
            self.tidy()

    def _line(self, source: Repository) -> str:
        url = artifact_sources(self.config).place(source.url).asked
        return f"deb [signed-by={self.room}/key.gpg] {url} {source.suite} main\n"

    def _conf(self) -> str:
        room, ways = self.room, artifact_sources(self.config)
        settings = {
            "Dir::Etc::sourcelist": f"{room}/sources.list",
            "Dir::Etc::sourceparts": f"{room}/empty",
            "Dir::State::lists": f"{room}/lists",
            "Dir::State::extended_states": f"{room}/extended_states",
            "Dir::Cache": f"{room}/cache",
            "Dir::Log": f"{room}/log",
            "DPkg::Options::": f"--log={room}/log/dpkg.log",
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

    def _mend(self) -> None:
        """apt does nothing before what a cut off dpkg left is brought to its end."""
        if self.host.names(INTERRUPTED):
            words = (*APT[:2], "dpkg", f"--log={self.room}/log/dpkg.log", "--configure", "-a")
            self._run(words, "finish what an interrupted dpkg left", INSTALL_SECONDS)

    def _run(self, argv: tuple[str, ...], why: str, seconds: float) -> None:
        try:
            self.host.do(Run(argv, why, seconds=seconds + LOCK_SECONDS))
        except MachineError as error:
            if BUSY.search(error.message):
                raise busy() from error
            raise ArtifactError(
                "arc-package-failed",
                f"Could not {why}: {error.message.partition(': ')[2] or error.message}",
                "Check azure.arc.package, the network and the proxy; or install azcmagent yourself and try again.",
                again=True,
            ) from error


def _names(host: Host, path: str) -> set[str]:
    text = (host.read(path) or b"").decode(errors="replace")
    return {line.partition(":")[0] for line in text.splitlines()}


def busy() -> BusyError:
    return BusyError(
        "packages-busy",
        f"Another package manager has been at work on this machine for more than {LOCK_SECONDS} s.",
        "Wait for it (`fuser -v /var/lib/dpkg/lock-frontend` names it), then run the same command again.",
        again=True,
    )


def missing(cause: str) -> MachineError:
    return MachineError(
        "azcmagent-missing",
        f"azcmagent is not installed, and {cause}.",
        "Install it as Azure's documents say (https://aka.ms/azcmagent), or let azure.arc.package.install do it.",
    )
