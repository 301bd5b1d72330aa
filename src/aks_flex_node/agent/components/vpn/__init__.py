"""The VPN component: the client's unit and the directory of its configuration, which `agent.vpn` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.components.templates import render_template
from aks_flex_node.agent.reconcile import observer, planner
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, File, RuntimePath, Spec, make_service
from aks_flex_node.host.actions import Action, EditFile, Remove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.reconcile.observer import Facts
    from aks_flex_node.settings.models import NodeConfig

NAME = "aks-flex-node-vpn.service"
UNIT = f"/etc/systemd/system/{NAME}"
LINK = "flexvpn0"
PROGRAM = "/usr/sbin/openvpn"
HOSTS = "/etc/hosts"
HOSTS_MARK = "# aks-flex-node-vpn"  # suffix of lines in /etc/hosts written by the agent
MANAGEMENT = "/run/aks-flex-node-vpn/management"


def vpn_dir(config: NodeConfig) -> str:
    return f"{config.paths.data_dir}/vpn"


def client_file(config: NodeConfig) -> str:
    return f"{vpn_dir(config)}/client.conf"


def record_file(config: NodeConfig) -> str:
    """Returns the path of the record of Azure resources. Removed last, after the cleanup in Azure."""
    return f"{config.paths.data_dir}/vpn.json"


def desired(config: NodeConfig, machine: Machine) -> Spec:  # noqa: ARG001
    if not config.azure.vpn.enabled:
        # Only the service is removed. The files are kept until unbootstrap, so that a rollback to a configuration
        # with the VPN works even if the cluster is unreachable without it.
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


def removal(facts: Facts) -> Iterator[Action]:
    yield from planner.removal(facts)
    # Also if the ledger does not record the lines.
    text = facts.contents.get(HOSTS) or b""
    content = without_managed_lines(text)
    if content != text:
        yield EditFile(HOSTS, content) if content else Remove(HOSTS)


def without_managed_lines(text: bytes) -> bytes:
    """Returns the content of /etc/hosts without the agent's lines."""
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.rstrip().endswith(HOSTS_MARK.encode()))


COMPONENT = Component("vpn", "VPN client", desired, observer.observing(HOSTS), removal=removal)
