"""The containerd component: program, configuration, registry mirrors, unit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.model import ArtifactFile
from aks_flex_node.agent.components.artifact_urls import minor_version, release
from aks_flex_node.agent.components.templates import proxy_environment
from aks_flex_node.agent.components.templates import render_template as template
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import (
    MANAGED_MARK,
    Directory,
    File,
    ProgramTree,
    RuntimePath,
    Spec,
    Symlink,
    make_service,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.settings.models import NodeConfig


def hosts_toml(mirrors: Iterable[str]) -> bytes:
    """Renders hosts.toml with the mirrors in order. containerd falls back to the registry itself."""
    lines = [f"# {MANAGED_MARK}"]
    for mirror in mirrors:
        lines += ["", f"[host.{json.dumps(mirror)}]", '  capabilities = ["pull", "resolve"]']
    return ("\n".join(lines) + "\n").encode()


CONFIG = "/etc/containerd/config.toml"
REGISTRIES = "/etc/containerd/certs.d"
UNIT = "/etc/systemd/system/containerd.service"
PROXIES = "/etc/containerd/proxy.env"
STATE = "/run/containerd"
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
OLDER_PROGRAMS = ("containerd-shim", "containerd-shim-runc-v1")  # up to 1.7
# Omitted where the machine cannot raise limits, because systemd would fail to start the unit.
LIMITS = "LimitNPROC=infinity\nLimitCORE=infinity\nLimitNOFILE=1048576\nOOMScoreAdjust=-999\n"


def desired(config: NodeConfig, machine: Machine) -> Spec:
    version, paths = config.containerd.version, config.paths
    programs = PROGRAMS if (minor_version(version) or (0, 0)) >= (2, 0) else PROGRAMS + OLDER_PROGRAMS
    directory = f"{paths.install_dir}/containerd/{version}"
    files = (ArtifactFile(f"bin/{name}", f"bin/{name}") for name in programs)
    artifact = release("containerd", config.containerd, machine.arch, "vva", *files)
    links = tuple(Symlink(f"{paths.bin_dir}/{name}", f"{directory}/bin/{name}") for name in programs)
    inputs: tuple[File | Symlink, ...] = (
        File(CONFIG, config_toml(config, machine)),
        File(UNIT, template(__name__, "containerd.service", **unit_values(config, machine))),
        *proxies(config),
        *links,
    )
    # containerd reads these at each pull, so a change does not require a restart.
    registries = tuple(
        File(f"{REGISTRIES}/{registry}/hosts.toml", hosts_toml(mirrors))
        for registry, mirrors in sorted(config.registry_mirrors.items())
    )
    return Spec(
        (
            Directory(f"{paths.install_dir}/containerd", ours=True),
            Directory(paths.containerd_dir, 0o700, ours=True),
            RuntimePath(STATE),
            RuntimePath("/run/nri"),
            Directory("/etc/containerd"),
            # Created here, because containerd would create it before the ledger records it.
            Directory(paths.cni.conf_dir),
            Directory(REGISTRIES),
            *(Directory(f"{REGISTRIES}/{registry}") for registry in sorted(config.registry_mirrors)),
            ProgramTree(directory, "containerd", version, (artifact,)),
            *registries,
            *inputs,
            replace(
                make_service("containerd.service", inputs, f"runc {config.runc.version}", wait=False),
                cri_check=(f"{config.paths.bin_dir}/ctr", "plugins", "list"),
                data_dir=config.paths.containerd_dir,
            ),
        )
    )


def config_toml(config: NodeConfig, machine: Machine) -> bytes:
    """Renders containerd's configuration in the syntax of its major version."""
    made = minor_version(config.containerd.version) or (0, 0)
    plugins = json.dumps(config.paths.cni.bin_dir)
    values = {
        "root": json.dumps(config.paths.containerd_dir),
        "state": json.dumps(STATE),
        "opt": json.dumps(f"{config.paths.containerd_dir}/opt"),
        "metrics": json.dumps(config.containerd.metrics_address),
        "pause": json.dumps(config.containerd.pause_image),
        "restrict": "false" if machine.can_raise_limits else "true",
        "cni_bin": f"bin_dirs = [{plugins}]" if made >= (2, 1) else f"bin_dir = {plugins}",
        "cni_conf": json.dumps(config.paths.cni.conf_dir),
        "runc": json.dumps(f"{config.paths.sbin_dir}/runc"),
        "systemd": "true" if machine.cgroup_driver(config) == "systemd" else "false",
        "registries": json.dumps(REGISTRIES),
    }
    return template(__name__, "config-2.toml" if made >= (2, 0) else "config-1.toml", **values)


def unit_values(config: NodeConfig, machine: Machine) -> dict[str, str]:
    return {
        "program": f"{config.paths.bin_dir}/containerd",
        "limits": LIMITS if machine.can_raise_limits else "",
        "environment": f"EnvironmentFile={PROXIES}\n" if proxies(config) else "",
    }


def proxies(config: NodeConfig) -> tuple[File, ...]:
    """Returns the environment file with proxies, which is secret because URLs may contain a password."""
    lines = proxy_environment(config.proxy)
    return (File(PROXIES, f"# {MANAGED_MARK}\n{lines}".encode(), 0o600, secret=True),) if lines else ()


COMPONENT = Component("containerd", "containerd", desired)
