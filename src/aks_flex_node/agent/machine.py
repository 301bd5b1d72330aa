"""Reads facts about this machine that the agent does not change: architecture, OS, kernel, systemd, addresses and
the agent's program.
"""

from __future__ import annotations

import ipaddress
import json
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aks_flex_node.api.machine_identity import MachineIdentity, hash_machine_id
from aks_flex_node.host.host import EntryKind, Host, read_text
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from aks_flex_node.settings.models import NodeConfig

ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
CAP_SYS_RESOURCE = 24
MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")  # in the order of the kubelet
RESOLV_CONF = "/etc/resolv.conf"
RESOLVED = "/run/systemd/resolve/resolv.conf"  # the DNS servers that systemd-resolved uses
RESOLVED_LINKS = (RESOLVED, "/run/systemd/resolve/stub-resolv.conf")
PROGRAM = "aks-flex-node"
PROGRAM_PATHS = (f"/usr/bin/{PROGRAM}", f"/usr/local/bin/{PROGRAM}")
UNIT_FILE = f"/etc/systemd/system/{PROGRAM}.service"  # of the daemon
PROGRAM_COMMENT = (
    "# Program: "  # prefix of the comment, in the unit and in the launcher, that names the machine's own program
)
PLAIN_PATH = r"/[\w.+@:/-]+"  # needs no quoting in systemd units or shell scripts
LIBRARIES = ("/usr/lib/systemd", "/usr/lib/x86_64-linux-gnu/systemd", "/usr/lib/aarch64-linux-gnu/systemd")


@frozen
class Machine:
    arch: str = "amd64"
    hostname: str = "localhost"
    system: str = ""  # ID of /etc/os-release
    release: str = ""  # and its VERSION_ID
    kernel: str = ""
    cgroups: int = 2
    systemd: bool = True  # systemd is the init system
    systemd_version: int = 0  # 0 when unknown
    can_raise_limits: bool = True  # CAP_SYS_RESOURCE: may raise limits and lower out-of-memory scores
    resolv_conf: str = RESOLV_CONF
    address: str = ""  # source address towards the API server
    pod_cidr: str = ""  # assigned by the cluster; empty before that
    program: str = PROGRAM_PATHS[0]  # the agent that was installed on the machine before any self-update

    def node_name(self, config: NodeConfig) -> str:
        """Returns the configured name or the host name in lower case, as the kubelet does."""
        return config.node.name or self.hostname.lower()

    def cgroup_driver(self, config: NodeConfig) -> str:
        """Returns the cgroup driver of containerd and the kubelet, which must be the same."""
        chosen = config.node.kubelet.cgroup_driver
        if chosen != "auto":
            return chosen
        return "systemd" if self.systemd else "cgroupfs"


def read_machine(host: Host, config: NodeConfig, pod_cidr: str = "") -> Machine:
    release = os_release(read_text(host, "/etc/os-release"))
    return Machine(
        arch=ARCHITECTURES.get(platform.machine(), platform.machine()),
        hostname=read_text(host, "/proc/sys/kernel/hostname").strip() or read_text(host, "/etc/hostname").strip(),
        system=release.get("ID", ""),
        release=release.get("VERSION_ID", ""),
        kernel=read_text(host, "/proc/sys/kernel/osrelease").strip(),
        cgroups=2 if host.stat("/sys/fs/cgroup/cgroup.controllers") else 1,
        systemd=not host.live or host.stat("/run/systemd/system") is not None,
        can_raise_limits=can_raise_limits(
            read_text(host, "/proc/1/status")
        ),  # of PID 1: this process may have fewer capabilities
        systemd_version=systemd_version(host),
        resolv_conf=pod_resolv_conf(host),
        address=config.node.ip or address_towards(host, config.node.kubelet.server_url),
        pod_cidr=pod_cidr,
        program=own_program(host, config.paths.install_dir, running_program()),
    )


def identify_machine(host: Host, url: str | None) -> MachineIdentity | None:
    """Returns the identity of this machine towards the server of a URL, or None if it has no machine ID."""
    found = (hash_machine_id(read_text(host, path)) for path in MACHINE_ID_FILES)
    known = next(filter(None, found), "")
    if not known:
        return None
    release = os_release(read_text(host, "/etc/os-release"))
    name = read_text(host, "/proc/sys/kernel/hostname").strip() or read_text(host, "/etc/hostname").strip()
    return MachineIdentity(known, name, address_towards(host, url), release.get("PRETTY_NAME", ""))


def running_program() -> str:
    """Returns the path of the `aks-flex-node` command that runs; empty if started as another program."""
    path = Path(sys.argv[0]).absolute()
    return str(path) if path.name == PROGRAM else ""


def own_program(host: Host, install_dir: str, running: str) -> str:
    """Returns the agent program that was installed on the machine: the one named in the unit, else the running one.

    The recorded path takes precedence, so that running another copy of the agent does not change the unit. Versions
    installed by self-update are excluded because unbootstrap removes them.
    """
    fetched = f"{install_dir}/agent/"
    texts = (read_text(host, UNIT_FILE), read_text(host, f"{fetched}launch"))
    candidates = (*re.findall(rf"(?m)^{PROGRAM_COMMENT}(.+)$", "\n".join(texts)), running, *PROGRAM_PATHS)
    fit = (path for path in candidates if re.fullmatch(PLAIN_PATH, path) and not path.startswith(fetched))
    return next((path for path in fit if host.stat(path)), PROGRAM_PATHS[0])


def systemd_version(host: Host) -> int:
    """Returns systemd's version from the name of its library, which also works in an image; 0 when unknown."""
    names = (name for folder in LIBRARIES for name in host.list_dir(folder))
    return next((int(found[1]) for name in names if (found := re.match(r"libsystemd-shared-(\d+)", name))), 0)


def os_release(text: str) -> dict[str, str]:
    """Parses the text of an os-release file into a mapping."""
    return {found[1]: found[2].strip("\"'") for found in re.finditer(r"^(\w+)=(.*)$", text, re.MULTILINE)}


def pod_resolv_conf(host: Host) -> str:
    """Returns the file with the DNS servers of the host, which the kubelet gives to pods.

    A pod cannot reach a server on the host's loopback addresses, such as the stub of systemd-resolved. Its own file
    is used only then: it can exist although an administrator has written other servers into /etc/resolv.conf.
    """
    entry = host.stat(RESOLV_CONF)
    if entry and entry.kind is EntryKind.LINK and f"/{entry.target.lstrip('./')}" in RESOLVED_LINKS:
        return RESOLVED  # also in an image, where the file does not exist
    servers = name_servers(read_text(host, RESOLV_CONF))
    unreachable = not servers or any(map(is_loopback, servers))
    return RESOLVED if unreachable and host.stat(RESOLVED) else RESOLV_CONF


def name_servers(text: str) -> list[str]:
    """Parses the addresses of the DNS servers from a resolv.conf file."""
    return re.findall(r"^nameserver[ \t]+(\S+)", text, re.MULTILINE)


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def can_raise_limits(status: str) -> bool:
    found = re.search(r"^CapBnd:\s*([0-9a-f]+)", status, re.MULTILINE)
    return found is None or bool(int(found[1], 16) >> CAP_SYS_RESOURCE & 1)


def address_towards(host: Host, url: str | None) -> str:
    """Returns the source address of this machine for connections to a URL; empty when unknown."""
    name = urlsplit(url or "").hostname
    if not name:
        return ""
    return source_address(host.query("ip", "-j", "route", "get", resolve(host, name) or name).out)


def resolve(host: Host, name: str) -> str:
    shown = host.query("getent", "ahosts", name, seconds=3.0).out.split(maxsplit=1)
    return shown[0] if shown else ""


def source_address(text: str) -> str:
    """Returns the source address in the output of `ip -j route get`; empty for a loopback address."""
    try:
        routes = json.loads(text or "[]")
    except ValueError:
        return ""
    found = str(routes[0].get("prefsrc", "")) if routes else ""
    # A loopback address is not reachable from the cluster, and the kubelet rejects it.
    return "" if is_loopback(found) else found
