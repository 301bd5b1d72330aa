"""Configures the lab's DNS: names of machines and services, and the publishers' names, which lead to the mirror.

dnsmasq watches a directory of host files, so a new machine resolves as soon as its file exists. For any other name,
dnsmasq returns NXDOMAIN immediately, so that no program in the lab waits for a server that it cannot reach.
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

# Host names of the publishers of node artifacts and of the image registries.
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
    """Adds a machine with its short name, its name in the site and its name in the domain."""
    names = f"{name} {name}.{site}.{network.DOMAIN} {name}.{network.DOMAIN}"
    write_atomically(hosts_directory(layout) / name, f"{address} {names}\n")
    _reload(layout)


def remove_host(layout: LabLayout, name: str) -> None:
    (hosts_directory(layout) / name).unlink(missing_ok=True)
    _reload(layout)


def _reload(layout: LabLayout) -> None:
    """Makes dnsmasq read all host files again. It detects new files automatically, but not removed ones."""
    record = layout.components / "dns" / "process.json"
    if record.exists():
        ProcessHandle(**json.loads(record.read_text())["process"]).kill(signal.SIGHUP)
