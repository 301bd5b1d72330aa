"""Facts about this machine that the agent does not change: architecture, OS, kernel, systemd, addresses, its own
program.
"""

from __future__ import annotations

import ipaddress
import json
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host

ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
CAP_SYS_RESOURCE = 24
RESOLVED = "/run/systemd/resolve/resolv.conf"
PROGRAM = "aks-flex-node"
PROGRAM_PATHS = (f"/usr/bin/{PROGRAM}", f"/usr/local/bin/{PROGRAM}")
UNIT_FILE = f"/etc/systemd/system/{PROGRAM}.service"  # of the agent that stays
PROGRAM_COMMENT = (
    "# Program: "  # how the line starts that says what program the machine has, there and in our launcher
)
PLAIN_PATH = r"/[\w.+@:/-]+"  # one that means the same to systemd and to a shell
LIBRARIES = ("/usr/lib/systemd", "/usr/lib/x86_64-linux-gnu/systemd", "/usr/lib/aarch64-linux-gnu/systemd")


@dataclass(frozen=True)
class Machine:
    arch: str = "amd64"
    hostname: str = "localhost"
    system: str = ""  # ID of /etc/os-release
    release: str = ""  # and its VERSION_ID
    kernel: str = ""
    cgroups: int = 2
    systemd: bool = True  # it is what started the machine
    systemd_version: int = 0  # 0 when it cannot be told
    can_raise_limits: bool = True  # CAP_SYS_RESOURCE: may raise limits and lower out-of-memory scores
    resolv_conf: str = "/etc/resolv.conf"
    address: str = ""  # by which it reaches the API server
    pod_cidr: str = ""  # what the cluster gave this node, once it has
    fstab: bytes = b""
    program: str = PROGRAM_PATHS[0]  # the agent that the machine had before any that it fetched for itself

    def node_name(self, config: NodeConfig) -> str:
        """Kubernetes knows lower case alone, and a kubelet makes its host's name so by itself."""
        return config.node.name or self.hostname.lower()

    def cgroup_driver(self, config: NodeConfig) -> str:
        """Who makes control groups for pods. containerd and the kubelet must agree; with systemd it is systemd."""
        chosen = config.node.kubelet.cgroup_driver
        if chosen != "auto":
            return chosen
        return "systemd" if self.systemd else "cgroupfs"


def read_machine(host: Host, config: NodeConfig, pod_cidr: str = "") -> Machine:
    release = os_release(_text(host, "/etc/os-release"))
    return Machine(
        arch=ARCHITECTURES.get(platform.machine(), platform.machine()),
        hostname=_text(host, "/proc/sys/kernel/hostname").strip() or _text(host, "/etc/hostname").strip(),
        system=release.get("ID", ""),
        release=release.get("VERSION_ID", ""),
        kernel=_text(host, "/proc/sys/kernel/osrelease").strip(),
        cgroups=2 if host.stat("/sys/fs/cgroup/cgroup.controllers") else 1,
        systemd=not host.live or host.stat("/run/systemd/system") is not None,
        can_raise_limits=can_raise_limits(
            _text(host, "/proc/1/status")
        ),  # of the machine: a process may have been confined
        systemd_version=systemd_version(host),
        resolv_conf=RESOLVED if host.stat(RESOLVED) else "/etc/resolv.conf",
        address=config.node.ip or address_towards(host, config.node.kubelet.server_url),
        pod_cidr=pod_cidr,
        fstab=host.read("/etc/fstab") or b"",
        program=own_program(host, config.paths.install_dir, running_program()),
    )


def running_program() -> str:
    """The command that this process was started by; nothing when it was started in another way."""
    path = Path(sys.argv[0]).absolute()
    return str(path) if path.name == PROGRAM else ""


def own_program(host: Host, install_dir: str, running: str) -> str:
    """The agent that came with the machine: the one that its unit names if it is there, else the running one.

    What is kept stays, so that a look at the machine with another copy of the agent is no reason to change its unit.
    A version that the agent fetched for itself is none: it goes away with everything else that is ours.
    """
    fetched = f"{install_dir}/agent/"
    texts = (_text(host, UNIT_FILE), _text(host, f"{fetched}launch"))
    candidates = (*re.findall(rf"(?m)^{PROGRAM_COMMENT}(.+)$", "\n".join(texts)), running, *PROGRAM_PATHS)
    fit = (path for path in candidates if re.fullmatch(PLAIN_PATH, path) and not path.startswith(fetched))
    return next((path for path in fit if host.stat(path)), PROGRAM_PATHS[0])


def systemd_version(host: Host) -> int:
    """By the name of its library, so that it can be told of an image, too."""
    names = (name for folder in LIBRARIES for name in host.list_dir(folder))
    return next((int(found[1]) for name in names if (found := re.match(r"libsystemd-shared-(\d+)", name))), 0)


def _text(host: Host, path: str) -> str:
    return (host.read(path) or b"").decode(errors="replace")


def os_release(text: str) -> dict[str, str]:
    """The lines of an os-release file."""
    return {found[1]: found[2].strip("\"'") for found in re.finditer(r"^(\w+)=(.*)$", text, re.MULTILINE)}


def can_raise_limits(status: str) -> bool:
    found = re.search(r"^CapBnd:\s*([0-9a-f]+)", status, re.MULTILINE)
    return found is None or bool(int(found[1], 16) >> CAP_SYS_RESOURCE & 1)


def address_towards(host: Host, url: str | None) -> str:
    """The address from which this machine would speak to a server; nothing when it cannot be told."""
    name = urlsplit(url or "").hostname
    if not name:
        return ""
    return source_address(host.query("ip", "-j", "route", "get", resolve(host, name) or name).out)


def resolve(host: Host, name: str) -> str:
    return first_address(host.query("getent", "ahosts", name, seconds=3.0).out)


def first_address(text: str) -> str:
    """What `getent ahosts` says first."""
    return text.split(maxsplit=1)[0] if text.split() else ""


def source_address(text: str) -> str:
    """What `ip -j route get` says."""
    try:
        routes = json.loads(text or "[]")
    except ValueError:
        return ""
    found = str(routes[0].get("prefsrc", "")) if routes else ""
    # A node that is known by its loopback address is reached by nobody; a kubelet refuses such a one.
    return "" if found and ipaddress.ip_address(found).is_loopback else found
