"""Tests of containerd, runc and the download URLs of programs."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.components import containerd
from aks_flex_node.agent.components.artifact_urls import artifact
from aks_flex_node.agent.components.kubelet import kubelet_settings
from aks_flex_node.agent.components.templates import proxy_environment
from aks_flex_node.host.actions import MakeDirectory, Remove, RestartUnit
from aks_flex_node.settings.models import Proxy
from tests.unit.agent.builders import (
    MACHINE,
    config_of,
    desired,
    empty_host,
    files_of,
    folders_of,
    ready_engine,
    text_of,
)

if TYPE_CHECKING:
    from aks_flex_node.agent.machine import Machine
    from tests.unit.agent.config.builders import Settings

CONFIG = "/etc/containerd/config.toml"
UNIT = "/etc/systemd/system/containerd.service"
CRI = "io.containerd.grpc.v1.cri"


def toml(text: str) -> dict[str, Any]:
    reader = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # installed with pytest
    found: dict[str, Any] = reader.loads(text)
    return found


def parsed(values: Settings, machine: Machine = MACHINE) -> dict[str, Any]:
    return toml(text_of(containerd.desired(config_of(values), machine), CONFIG))


def test_containerd_1_config_uses_version_2_syntax() -> None:
    made = parsed({"containerd.version": "1.7.29"})
    cri = made["plugins"][CRI]
    assert made["version"] == 2
    assert cri["sandbox_image"] == "mcr.microsoft.com/oss/kubernetes/pause:3.9"
    assert cri["cni"] == {"bin_dir": "/opt/cni/bin", "conf_dir": "/etc/cni/net.d"}
    assert cri["registry"] == {"config_path": "/etc/containerd/certs.d"}
    assert cri["containerd"]["runtimes"]["runc"]["options"] == {
        "BinaryName": "/usr/local/sbin/runc",
        "SystemdCgroup": True,
    }


@pytest.mark.parametrize(
    ("version", "cni"),
    [
        ("2.0.5", {"bin_dir": "/opt/cni/bin"}),
        ("2.1.0", {"bin_dirs": ["/opt/cni/bin"]}),
        ("2.4.2", {"bin_dirs": ["/opt/cni/bin"]}),
        ("v2.10.1", {"bin_dirs": ["/opt/cni/bin"]}),
        ("2.1.0-rc.1", {"bin_dirs": ["/opt/cni/bin"]}),
    ],
)
def test_containerd_2_config_uses_version_3_syntax(version: str, cni: Settings) -> None:
    made = parsed({"containerd.version": version})
    runtime, images = (made["plugins"][f"io.containerd.cri.v1.{name}"] for name in ("runtime", "images"))
    assert made["version"] == 3
    assert runtime["cni"] == {**cni, "conf_dir": "/etc/cni/net.d"}
    assert images["pinned_images"] == {"sandbox": "mcr.microsoft.com/oss/kubernetes/pause:3.9"}
    assert images["registry"] == {"config_path": "/etc/containerd/certs.d"}
    assert runtime["containerd"]["default_runtime_name"] == "runc"


def test_containerd_config_uses_the_configured_directories() -> None:
    made = parsed({"paths.containerdDir": "/data/images", "containerd.metricsAddress": ""})
    assert (made["root"], made["state"], made["metrics"]["address"]) == ("/data/images", "/run/containerd", "")
    assert made["plugins"]["io.containerd.internal.v1.opt"]["path"] == "/data/images/opt"


@pytest.mark.parametrize("version", ["1.7.29", "2.4.2"])
@pytest.mark.parametrize("can_raise_limits", [True, False])
def test_containerd_restricts_oom_score_when_limits_cannot_be_raised(version: str, can_raise_limits: bool) -> None:
    spec = desired(containerd, {"containerd.version": version}, can_raise_limits=can_raise_limits)
    assert f"restrict_oom_score_adj = {'false' if can_raise_limits else 'true'}" in text_of(spec, CONFIG)
    assert ("LimitNOFILE=1048576" in text_of(spec, UNIT)) is can_raise_limits


@pytest.mark.parametrize("version", ["1.7.29", "2.0.5", "2.4.2"])
@pytest.mark.parametrize("driver", ["auto", "systemd", "cgroupfs"])
@pytest.mark.parametrize("systemd", [True, False])
def test_containerd_and_kubelet_use_the_same_cgroup_driver(version: str, driver: str, systemd: bool) -> None:
    config = config_of({"containerd.version": version, "node.kubelet.cgroupDriver": driver})
    machine = replace(MACHINE, systemd=systemd)
    text = text_of(containerd.desired(config, machine), CONFIG)
    assert ("SystemdCgroup = true" in text) is (kubelet_settings(config, machine)["cgroupDriver"] == "systemd")


def test_containerd_hosts_file_lists_mirrors_in_order() -> None:
    mirrors = {"mcr.microsoft.com": ["https://a.example", "http://b.example:5000"], "_default": ["https://c.example"]}
    spec = desired(containerd, {"registryMirrors": mirrors})
    made = toml(text_of(spec, "/etc/containerd/certs.d/mcr.microsoft.com/hosts.toml"))
    assert list(made["host"]) == ["https://a.example", "http://b.example:5000"]
    assert made["host"]["https://a.example"] == {"capabilities": ["pull", "resolve"]}
    assert "server" not in made, "containerd knows the address of a registry, also behind _default and docker.io"
    assert "/etc/containerd/certs.d/_default" in folders_of(spec)


def test_containerd_proxy_settings_are_in_a_secret_mode_0600_file() -> None:
    values: Settings = {
        "proxy.http": "http://me:a%20$b`c@proxy:3128",
        "proxy.https": "https://proxy:3129",
        "proxy.noProxy": ["10.0.0.0/8", ".example"],
    }
    spec = desired(containerd, values)
    file = files_of(spec)["/etc/containerd/proxy.env"]
    assert (file.mode, file.secret) == (0o600, True)
    assert file.content.decode().splitlines()[1:] == [
        r'HTTP_PROXY="http://me:a%20\$b\`c@proxy:3128"',
        'HTTPS_PROXY="https://proxy:3129"',
        'NO_PROXY="10.0.0.0/8,.example"',
    ]
    assert "EnvironmentFile=/etc/containerd/proxy.env\n" in text_of(spec, UNIT)
    assert "EnvironmentFile" not in text_of(desired(containerd), UNIT)


def test_hosts_without_proxy_need_a_proxy() -> None:
    assert proxy_environment(Proxy(no_proxy=("a",))) == ""


@pytest.mark.parametrize(
    ("url", "first"),
    [
        ("https://h/v1/containerd-1-linux-amd64.tar.gz", "https://h/v1/containerd-1-linux-amd64.tar.gz.sha256sum"),
        ("https://h/v1/runc.amd64", "https://h/v1/runc.sha256sum"),
        ("https://h/v1/cni-plugins-linux-amd64-v1.tgz", "https://h/v1/cni-plugins-linux-amd64-v1.tgz.sha256"),
        ("https://h/v1/kubelet", "https://h/v1/kubelet.sha256"),
        ("https://h/v1/node-problem-detector-v1.tar.gz", "https://h/v1/node-problem-detector-v1.tar.gz.sha512"),
    ],
)
def test_checksum_url_matches_the_publishers_layout(url: str, first: str) -> None:
    mirrored = f"https://mirror.example/{url.rpartition('/')[2]}?sv=1&sig=x/y"
    assert artifact("c", "1", mirrored, (), {}, url).checksums[0] == first


def test_containerd_restarts_at_once_when_its_program_is_installed_again() -> None:
    """The program of the running service is replaced by the same action, so another run must not be needed."""
    host = empty_host()
    engine = ready_engine(host)
    engine.apply(containerd.COMPONENT)
    program = next(iter(containerd.desired(engine.config, engine.machine).programs))
    manifest = f"{program.path}/.manifest.json"
    host.apply(Remove(manifest))
    host.apply(MakeDirectory(manifest))

    done = engine.apply(containerd.COMPONENT)

    assert done[-1] == RestartUnit("containerd.service", wait=False)
    assert not engine.plan(containerd.COMPONENT).actions
