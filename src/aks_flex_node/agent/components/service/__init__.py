"""The component of the daemon's systemd service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node import __version__
from aks_flex_node.agent.components.artifact_urls import plain_version
from aks_flex_node.agent.components.service import release
from aks_flex_node.agent.components.templates import render_template
from aks_flex_node.agent.machine import UNIT_FILE, Machine
from aks_flex_node.agent.paths import COMPLETION_UNIT, CURRENT_CONFIG
from aks_flex_node.agent.reconcile import planner
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import File, Spec, make_service
from aks_flex_node.host.actions import Action, EnableUnit, ReloadUnits
from aks_flex_node.settings.models import NodeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.reconcile.observer import Facts

STATE_DIR = "/var/lib/aks-flex-node"  # fixed, independent of `paths.dataDir`
UNIT_NAME = UNIT_FILE.rpartition("/")[2]
RESTART_STEPS_SYSTEMD_VERSION = 254  # older versions log a warning about RestartSteps at every reload
RESTART_WITH_BACKOFF = "RestartSec=1\nRestartSteps=8\nRestartMaxDelaySec=120"
RESTART_AT_FIXED_INTERVAL = "RestartSec=5"


def desired(config: NodeConfig, machine: Machine) -> Spec:
    unit = File(UNIT_FILE, render_unit(config, machine))
    version = release.configured_version(config) or plain_version(__version__)
    return Spec((unit, make_service(UNIT_NAME, (unit,), f"agent {version}")))


def render_unit(config: NodeConfig, machine: Machine) -> bytes:
    return render_template(__name__, UNIT_NAME, **unit_values(config, machine))


def completion_unit(machine: Machine) -> bytes:
    """Returns the unit that completes an unbootstrap, with the program that the unbootstrap does not remove."""
    return render_template(__name__, COMPLETION_UNIT.rpartition("/")[2], program=machine.program.replace("%", "%%"))


def packaged_unit(program: str) -> str:
    """Returns the unit that a package installs, so that systemd knows the service before the machine is a node.

    It does not start without a configuration. A join writes the unit of the node to /etc/systemd/system, which takes
    precedence.
    """
    text = render_unit(NodeConfig(), Machine(program=program, can_raise_limits=False)).decode()
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("# ")]
    head = lines.index("StartLimitIntervalSec=0\n")
    return "".join([*lines[:head], f"ConditionPathExists={CURRENT_CONFIG}\n", *lines[head:]])


def unit_values(config: NodeConfig, machine: Machine) -> dict[str, str]:
    configured = release.configured_version(config)
    program = release.launcher_path(config) if configured else machine.program
    # The + prefix runs it without the sandbox, because it switches a link that the daemon must not write.
    choose = f"ExecStartPre=-+{program} choose\n" if configured else ""
    supports_steps = machine.systemd_version >= RESTART_STEPS_SYSTEMD_VERSION
    values = {
        "home": machine.program,
        "choose": choose,
        "program": program,
        "restart_delay": RESTART_WITH_BACKOFF if supports_steps else RESTART_AT_FIXED_INTERVAL,
        "score": "OOMScoreAdjust=-500\n" if machine.can_raise_limits else "",
        "writable_paths": " ".join(writable_paths(config)),
    }
    return {name: value.replace("%", "%%") for name, value in values.items()}


def writable_paths(config: NodeConfig) -> list[str]:
    """Returns the daemon's writable paths; the `-` prefix makes systemd ignore missing ones."""
    metrics = (config.agent.metrics_file or "").rpartition("/")[0]
    paths = {STATE_DIR, config.paths.data_dir, config.paths.log_dir, metrics} - {""}
    return [f"-{path}" for path in sorted(paths)]


def plan(spec: Spec, facts: Facts) -> Iterator[Action]:
    """Adds a daemon reload after enabling the unit, because newer systemd versions then report units as changed."""
    actions = tuple(planner.plan(spec, facts))
    for action in actions:
        yield action
        if isinstance(action, EnableUnit) and facts.live and ReloadUnits() not in actions:
            yield ReloadUnits()


RELEASE = release.COMPONENT
COMPONENT = Component("service", "the agent's own service", desired, plan=plan)
