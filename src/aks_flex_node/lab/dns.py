"""The lab's DNS: machines and services by name, and the publishers' own names with the lab's mirror behind them.

dnsmasq watches a directory of host files, so a new machine is known the moment its file is there. Any name that the
lab does not know does not exist, at once: nothing inside waits for an answer from a world it cannot reach.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from aks_flex_node.lab import network
from aks_flex_node.lab.files import write_atomically
from aks_flex_node.lab.processes import Process

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.lab.layout import Layout

# Who publishes what a node is made of, and where images come from.
ARTIFACT_HOSTS = (
    *("dl.k8s.io", "cdn.dl.k8s.io", "github.com", "acs-mirror.azureedge.net", "packages.aks.azure.com"),
    "packages.microsoft.com",
)
IMAGE_HOSTS = ("mcr.microsoft.com", "registry.k8s.io")


def host_files(layout: Layout) -> Path:
    return layout.parts / "dns" / "hosts"


def command(layout: Layout) -> list[str]:
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
        f"--hostsdir={host_files(layout)}",
        f"--pid-file={layout.parts / 'dns' / 'pid'}",
        "--local=/#/",
        *(f"--host-record={name},{address}" for name, address in known.items()),
    ]


def announce(layout: Layout, name: str, site: str, address: str) -> None:
    """A machine by its short name, its site's and its full one."""
    names = f"{name} {name}.{site}.{network.DOMAIN} {name}.{network.DOMAIN}"
    write_atomically(host_files(layout) / name, f"{address} {names}\n")
    _look_again(layout)


def forget(layout: Layout, name: str) -> None:
    (host_files(layout) / name).unlink(missing_ok=True)
    _look_again(layout)


def _look_again(layout: Layout) -> None:
    """dnsmasq sees new files by itself, but a removed one only when it is told to read all of them again."""
    record = layout.parts / "dns" / "process.json"
    if record.exists():
        Process(**json.loads(record.read_text())["process"]).kill(signal.SIGHUP)
