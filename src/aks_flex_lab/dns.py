"""The lab's DNS: machines and services by name, and the publishers' own names with the lab's mirror behind them.

dnsmasq watches a directory of host files, so a new machine is known the moment its file is there. Any name that the
lab does not know does not exist, at once: nothing inside waits for an answer from a world it cannot reach.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from aks_flex_lab import network
from aks_flex_lab.files import write_atomically
from aks_flex_lab.processes import ProcessHandle

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.layout import LabLayout

# Who publishes what a node is made of, and where images come from.
ARTIFACT_HOSTS = (
    *("dl.k8s.io", "cdn.dl.k8s.io", "github.com", "acs-mirror.azureedge.net", "packages.aks.azure.com"),
    "packages.microsoft.com",
)
IMAGE_HOSTS = ("mcr.microsoft.com", "registry.k8s.io")


def hosts_directory(layout: LabLayout) -> Path:
    return layout.components / "dns" / "hosts"


def dnsmasq_command(layout: LabLayout) -> list[str]:
    known = {
        network.API_NAME: network.API,
        "kubernetes.default.svc.cluster.local": network.API_SERVICE,
        f"registry.{network.DOMAIN}": network.REGISTRY,
        f"mirror.{network.DOMAIN}": network.MIRROR,
        network.LOGIN_NAME: network.AZURE,
        network.MANAGEMENT_NAME: network.AZURE,
        network.PROVIDER_NAME: network.PROVIDER,
        network.VPN_NAME: network.VPN,
        **dict.fromkeys(IMAGE_HOSTS, network.REGISTRY),
        **dict.fromkeys(ARTIFACT_HOSTS, network.MIRROR),
    }
    return [
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--user=root",
        "--log-facility=-",
        "--no-resolv",
        "--no-hosts",
        "--no-poll",
        "--bind-interfaces",
        *(f"--listen-address={address}" for address in (network.DNS, network.DNS_SERVICE)),
        f"--hostsdir={hosts_directory(layout)}",
        f"--pid-file={layout.components / 'dns' / 'pid'}",
        "--local=/#/",
        *(f"--host-record={name},{address}" for name, address in known.items()),
    ]


def add_host(layout: LabLayout, name: str, site: str, address: str) -> None:
    """A machine by its short name, its site's and its full one."""
    names = f"{name} {name}.{site}.{network.DOMAIN} {name}.{network.DOMAIN}"
    write_atomically(hosts_directory(layout) / name, f"{address} {names}\n")
    _reload(layout)


def remove_host(layout: LabLayout, name: str) -> None:
    (hosts_directory(layout) / name).unlink(missing_ok=True)
    _reload(layout)


def _reload(layout: LabLayout) -> None:
    """dnsmasq sees new files by itself, but a removed one only when it is told to read all of them again."""
    record = layout.components / "dns" / "process.json"
    if record.exists():
        ProcessHandle(**json.loads(record.read_text())["process"]).kill(signal.SIGHUP)
