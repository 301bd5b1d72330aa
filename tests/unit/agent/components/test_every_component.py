"""Tests of all components: they are pure and consistent, and the sequence contains them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.components.kubelet import DEFAULT_DIRECTORY
from aks_flex_node.agent.paths import STATE_DIR
from aks_flex_node.agent.reconcile.resources import MANAGED_MARK, File, Spec
from tests.unit.agent.builders import MACHINE, config_of, files_of

if TYPE_CHECKING:
    from aks_flex_node.agent.reconcile.component import Component
    from tests.unit.agent.config.builders import Settings

COMPONENTS = (agent.COMPONENT, *SEQUENCE)
CUSTOM: Settings = {
    "paths.dataDir": "/data/flex/state",
    "paths.logDir": "/data/flex-log",
    "paths.installDir": "/data/programs",
    "paths.binDir": "/data/links/bin",
    "paths.sbinDir": "/data/links/sbin",
    "paths.containerdDir": "/data/images",
    "paths.kubernetes.configDir": "/data/kube",
    "paths.kubernetes.certsDir": "/data/kube-certs/here",
    "paths.kubernetes.manifestsDir": "/data/kube-manifests",
    "paths.kubernetes.volumePluginDir": "/data/kube-volumes",
    "paths.kubernetes.kubeletDir": "/data/kubelet@1+2",
    "paths.cni.binDir": "/data/net/bin",
    "paths.cni.confDir": "/data/net/conf",
    "paths.cni.libDir": "/data/net/lib",
}
DEFAULT_PLACES = (
    "/var/lib/aks-flex-node /var/log/aks-flex-node /opt/aks-flex-node /usr/local/bin /usr/local/sbin"
    " /var/lib/containerd /etc/kubernetes /var/lib/kubelet /opt/cni /etc/cni /var/lib/cni"
).split()
everyone = pytest.mark.parametrize("component", COMPONENTS, ids=[one.name for one in COMPONENTS])


@everyone
def test_component_spec_is_deterministic(component: Component) -> None:
    values: Settings = {
        "node.labels": {"b": "2", "a": "1"},
        "registryMirrors": {"z": ["https://m"], "a": []},
    }
    turned: Settings = {
        "node.labels": {"a": "1", "b": "2"},
        "registryMirrors": {"a": [], "z": ["https://m"]},
    }
    machine = replace(MACHINE, pod_cidr="10.244.3.0/24")
    assert component.desired(config_of(values), machine) == component.desired(config_of(turned), machine)


@everyone
def test_every_component_path_is_configurable(component: Component) -> None:
    spec = component.desired(config_of(CUSTOM), replace(MACHINE, pod_cidr="10.244.3.0/24"))
    texts = [one.content.decode() for one in spec.resources if isinstance(one, File)]
    # The default path of commands without a configuration, and the fixed path of kubelet sockets.
    fixed = {STATE_DIR, DEFAULT_DIRECTORY}
    for place in DEFAULT_PLACES:
        assert not [path for path in spec.paths - fixed if path == place or path.startswith(f"{place}/")]
        assert not [text for text in texts if re.search(rf"(?<![\w/]){place}\b", text)], place


@everyone
def test_component_spec_has_each_path_once(component: Component) -> None:
    spec = component.desired(config_of(), replace(MACHINE, pod_cidr="10.244.3.0/24"))
    paths = [getattr(one, "path", getattr(one, "place", "")) for one in spec.resources]
    named = [path for path in paths if path]
    assert len(named) == len(set(named))


def test_components_do_not_share_files() -> None:
    specs = [component.desired(config_of(), MACHINE) for component in COMPONENTS]
    files = [path for spec in specs for path in files_of(spec)]
    assert len(files) == len(set(files))


def units(spec: Spec) -> dict[str, str]:
    return {path: file.content.decode() for path, file in files_of(spec).items() if ".service" in path}


@everyone
def test_component_units_are_marked_and_contain_no_secrets(component: Component) -> None:
    config = config_of({"proxy.http": "http://me:hidden@proxy:3128"})
    for path, text in units(component.desired(config, MACHINE)).items():
        assert text.startswith(f"# {MANAGED_MARK}\n"), path
        assert "hidden" not in text, "everybody may ask systemd what a unit says"


@everyone
def test_component_secrets_are_mode_0600_and_marked_secret(component: Component) -> None:
    secrets = ("abcdef.0123456789abcdef", "hidden")
    spec = component.desired(config_of({"proxy.http": "http://me:hidden@proxy:3128"}), MACHINE)
    holders = [file for file in files_of(spec).values() if any(secret.encode() in file.content for secret in secrets)]
    assert all(file.mode == 0o600 and file.secret for file in holders)
