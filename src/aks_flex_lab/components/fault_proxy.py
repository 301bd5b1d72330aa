"""The fault proxy: toxiproxy, inserted before a TCP service of the cloud by redirecting new connections to it.

The toxics are those of toxiproxy: latency, bandwidth, timeout, reset_peer, slow_close, slicer, limit_data.
"""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network
from aks_flex_lab.errors import ComponentError, UsageError, did_you_mean
from aks_flex_lab.processes import run
from aks_flex_lab.supervisor import LabComponent, tcp_probe

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.kernel.namespaces import NetworkNamespace

CONTROL_PORT = 8474
# Toxics of toxiproxy with their attributes, in milliseconds, KB/s and bytes.
TOXICS = {
    "latency": ("latency", "jitter"),
    "bandwidth": ("rate",),
    "slow_close": ("delay",),
    "timeout": ("timeout",),
    "reset_peer": ("timeout",),
    "slicer": ("average_size", "size_variation", "delay"),
    "limit_data": ("bytes",),
}


@dataclass(frozen=True)
class ProxiedService:
    """A service before which the proxy can be inserted."""

    name: str
    addresses: tuple[str, ...]
    port: int
    proxy_port: int


PROXIED_SERVICES = (
    ProxiedService("api", (network.API, network.API_SERVICE), 443, 10443),
    ProxiedService("registry", (network.REGISTRY,), 443, 10444),
    ProxiedService("mirror", (network.MIRROR,), 443, 10445),
    ProxiedService("mirror-http", (network.MIRROR,), 80, 10446),
    ProxiedService("vpn", (network.VPN,), 443, 10447),
    ProxiedService("azure", (network.AZURE,), 443, 10448),
)


def fault_proxy_component(program: Path, cloud: NetworkNamespace) -> LabComponent:
    argv = (program, "-host=127.0.0.1", f"-port={CONTROL_PORT}")
    return LabComponent(
        "toxiproxy", argv, f"http://127.0.0.1:{CONTROL_PORT}", tcp_probe(cloud, "127.0.0.1", CONTROL_PORT), cloud
    )


def find_service(name: str) -> ProxiedService:
    for known in PROXIED_SERVICES:
        if known.name == name:
            return known
    hint = did_you_mean(name, [known.name for known in PROXIED_SERVICES])
    raise UsageError("fault-target-unknown", f"The fault proxy has no service {name!r}.", hint)


@dataclass(frozen=True)
class FaultProxy:
    """Controls the fault proxy and the redirection of connections to it."""

    cloud: NetworkNamespace

    def ensure(self) -> None:
        """Registers all services with a new proxy. A proxy that has them keeps its toxics."""
        proxies = [
            {
                "name": known.name,
                "listen": f"0.0.0.0:{known.proxy_port}",
                "upstream": f"{known.addresses[0]}:{known.port}",
                "enabled": True,
            }
            for known in PROXIED_SERVICES
        ]
        there = self._call("GET", "/proxies")
        for proxy in proxies:
            if proxy["name"] not in there:
                self._call("POST", "/proxies", proxy)

    def add(self, name: str, kind: str, attributes: dict[str, float], stream: str = "downstream") -> str:
        """Adds a toxic to a service and returns its name."""
        known = find_service(name)
        if kind not in TOXICS:
            raise UsageError("fault-unknown", f"{kind!r} is not a kind of fault.", did_you_mean(kind, TOXICS))
        if wrong := sorted(set(attributes) - set(TOXICS[kind])):
            raise UsageError(
                "fault-invalid",
                f"The fault {kind} has no attribute {', '.join(wrong)}.",
                f"Its attributes are: {', '.join(TOXICS[kind])}.",
            )
        self.redirect(known)
        body = {"type": kind, "stream": stream, "attributes": attributes}
        return str(self._call("POST", f"/proxies/{name}/toxics", body)["name"])

    def set_enabled(self, name: str, *, on: bool) -> None:
        """Makes the proxy accept or refuse all connections to a service."""
        self.redirect(find_service(name))
        self._call("POST", f"/proxies/{name}", {"enabled": on})

    def clear(self, name: str) -> None:
        """Removes all faults, and the redirection to the proxy."""
        known = find_service(name)
        for toxic in self._call("GET", f"/proxies/{name}")["toxics"]:
            self._call("DELETE", f"/proxies/{name}/toxics/{toxic['name']}")
        for table, rule in _rules(known):
            if self._has_rule(table, rule):
                self._iptables("-t", table, "-D", *rule)
        # Closes the connections through the proxy. Clients reconnect directly to the service.
        self._call("POST", f"/proxies/{name}", {"enabled": False})
        self._call("POST", f"/proxies/{name}", {"enabled": True})

    def list(self) -> list[dict[str, Any]]:
        proxies = self._call("GET", "/proxies")
        return [
            {
                "service": known.name,
                "inserted": all(self._has_rule(table, rule) for table, rule in _rules(known)),
                "enabled": proxies[known.name]["enabled"],
                "toxics": proxies[known.name]["toxics"],
            }
            for known in PROXIED_SERVICES
            if known.name in proxies
        ]

    def redirect(self, known: ProxiedService) -> None:
        for table, rule in _rules(known):
            if not self._has_rule(table, rule):
                self._iptables("-t", table, "-I", *rule)

    def _has_rule(self, table: str, rule: tuple[str, ...]) -> bool:
        return run(*self.cloud.command("iptables", "-w", "-t", table, "-C", *rule), check=False).ok

    def _iptables(self, *arguments: str) -> None:
        run(*self.cloud.command("iptables", "-w", *arguments))

    def _call(self, method: str, path: str, body: object = None) -> Any:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", CONTROL_PORT, timeout=5)) as connection:
                connection.sock = self.cloud.connect("127.0.0.1", CONTROL_PORT)
                connection.request(method, path, json.dumps(body) if body is not None else None)
                answer = connection.getresponse()
                text = answer.read()
        except OSError as error:
            raise ComponentError(
                "fault-proxy-unavailable", f"The fault proxy does not respond: {error}.", "Run `aks-flex-lab up`."
            ) from error
        if answer.status >= 400:
            raise UsageError(
                "fault-failed",
                f"The fault proxy rejected the request: {_reason(text)}.",
                "Run `aks-flex-lab fault clear`, then retry.",
            )
        return json.loads(text) if text else None


def _rules(known: ProxiedService) -> list[tuple[str, tuple[str, ...]]]:
    """Returns the firewall rules that redirect new connections from the edge to the proxy and reset open ones."""
    rules: list[tuple[str, tuple[str, ...]]] = []
    for address in known.addresses:
        match = ("-i", "eth0", "-d", address, "-p", "tcp", "--dport", str(known.port))
        rules.append(("nat", ("PREROUTING", *match, "-j", "REDIRECT", "--to-ports", str(known.proxy_port))))
        rules.append(("filter", ("INPUT", *match, "-j", "REJECT", "--reject-with", "tcp-reset")))
    return rules


def _reason(text: bytes) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        return text.decode(errors="replace").strip()
    return (
        str(document.get("error") or document.get("title") or document)
        if isinstance(document, dict)
        else str(document)
    )
