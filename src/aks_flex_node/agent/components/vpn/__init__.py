"""The VPN client's unit, and the directory that holds its configuration, which `agent.vpn` fills."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.templates import render_template
from aks_flex_node.agent.reconcile import observer, planner
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, File, RuntimePath, Spec, make_service
from aks_flex_node.host.actions import EditFile, Remove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.reconcile.ledger import OwnedResources
    from aks_flex_node.agent.reconcile.observer import Facts
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host

NAME = "aks-flex-node-vpn.service"
UNIT = f"/etc/systemd/system/{NAME}"
LINK = "flexvpn0"
PROGRAM = "/usr/sbin/openvpn"
HOSTS = "/etc/hosts"
HOSTS_MARK = "# aks-flex-node-vpn"  # how a line in it ends that is ours
MANAGEMENT = "/run/aks-flex-node-vpn/management"


def vpn_dir(config: NodeConfig) -> str:
    return f"{config.paths.data_dir}/vpn"


def client_file(config: NodeConfig) -> str:
    return f"{vpn_dir(config)}/client.conf"


def record_file(config: NodeConfig) -> str:
    """What was made in Azure, and how far we are. It outlives the rest, because Azure is told last that we leave."""
    return f"{config.paths.data_dir}/vpn.json"


def desired(config: NodeConfig, machine: Machine) -> Spec:  # noqa: ARG001
    if not config.azure.vpn.enabled:
        # The tunnel ends. What it was made of stays until the node leaves: whoever finds that the cluster is out of
        # reach without it goes back to a configuration that has it.
        return Spec((RuntimePath(vpn_dir(config)),))
    values = {"program": PROGRAM, "client": client_file(config)}
    unit = File(
        UNIT, render_template(__name__, NAME, **{key: value.replace("%", "%%") for key, value in values.items()})
    )
    return Spec(
        (
            Directory(vpn_dir(config), 0o700, ours=True),
            unit,
            make_service(NAME, (unit,), needs=client_file(config), wait=False),
        )
    )


def observe(host: Host, spec: Spec, owned: OwnedResources) -> Facts:
    facts = observer.observe(host, spec, owned)
    return replace(facts, contents={**facts.contents, HOSTS: host.read(HOSTS)})


def removal(facts: Facts) -> Iterator[Action]:
    yield from planner.removal(facts)
    yield from _forget_names(facts)


def _forget_names(facts: Facts) -> Iterator[Action]:
    """Lines that bear our mark go, whether or not anybody remembers that we wrote them."""
    text = facts.contents.get(HOSTS) or b""
    content = without_managed_lines(text)
    if content != text:
        yield EditFile(HOSTS, content) if content else Remove(HOSTS)


def without_managed_lines(text: bytes) -> bytes:
    """The content of /etc/hosts as somebody else left it."""
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.rstrip().endswith(HOSTS_MARK.encode()))


COMPONENT = Component("vpn", "VPN client", desired, observe, removal=removal)
