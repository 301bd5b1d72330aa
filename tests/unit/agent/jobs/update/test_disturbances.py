"""What a change of each setting disturbs, as the table of settings says, is what the agent does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest

from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.jobs.update.admission import check_paths, check_same_node, compare_configs
from aks_flex_node.agent.machine import read_machine
from aks_flex_node.settings.base import FieldType
from aks_flex_node.settings.setting import CONTAINERD, DRAIN, JOIN, KUBELET, PODS, Disturbance
from aks_flex_node.settings.table import ConfigKey, by_path, keys, value_at
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.test_generated_files import NODES, config_with, node_config, problems_with, sample_of

if TYPE_CHECKING:
    from aks_flex_node.agent.reconcile.resources import ProgramTree, Spec
    from aks_flex_node.settings.models import NodeConfig

HASH = "0" * 64
# What an update does when it replaces a program that pods depend on, or restarts a service.
KINDS: dict[str, Disturbance] = {
    **dict.fromkeys(("kubernetes", "containerd", "runc"), DRAIN),
    "cni": PODS,
    "containerd.service": CONTAINERD,
    "kubelet.service": KUBELET,
}
STRONGEST_FIRST = (JOIN, DRAIN, PODS, CONTAINERD, KUBELET, "nothing")


def changed_value(key: ConfigKey, config: NodeConfig) -> Any:
    """Returns another value of a setting."""
    now = value_at(config, key)
    if key.path.endswith("sha256"):
        return dict.fromkeys(
            [one.url.rpartition("/")[2] for tree in programs(config) for one in tree.artifacts], HASH
        )
    if key.kind == "boolean":
        return not now
    if key.kind == "choice":
        return next(each for each in get_args(FieldType.of(key.annotation).inner) if each != now)
    if isinstance(now, int | float):
        return next(each for each in (now + 1, now - 1) if not problems_with(key, each))
    return sample_of(key)


def specs(config: NodeConfig) -> list[Spec]:
    machine = read_machine(RecordedHost(), config, "10.244.3.0/24")
    return [component.desired(config, machine) for component in SEQUENCE]


def programs(config: NodeConfig) -> list[ProgramTree]:
    return [tree for spec in specs(config) for tree in spec.programs]


def inputs(config: NodeConfig) -> dict[str, Any]:
    """Returns the inputs of each service, and version and digests of each program."""
    found: dict[str, Any] = {name: digest for spec in specs(config) for name, digest in spec.fingerprints.items()}
    for tree in programs(config):
        found[tree.component] = (
            *found.get(tree.component, ()),
            tree.version,
            *(one.digest for one in tree.artifacts),
        )
    return found


def disturbance(old: NodeConfig, new: NodeConfig) -> Disturbance:
    names = [read_machine(RecordedHost(), config).node_name(config) for config in (old, new)]
    if check_paths(old, new) or check_same_node(old, new, *names):
        return JOIN
    before, after = inputs(old), inputs(new)
    found = {KINDS.get(name, "nothing") for name in before if before[name] != after.get(name)}
    return strongest(found)


def strongest(found: set[Disturbance]) -> Disturbance:
    return next((each for each in STRONGEST_FIRST if each in found), "nothing")


@pytest.mark.parametrize("key", list(keys()), ids=lambda key: key.path)
def test_change_disturbs_what_the_table_says(key: ConfigKey) -> None:
    source = by_path()[key.setting.content or key.path]
    found: set[Disturbance] = set()
    for node in NODES:
        old = node_config(node)
        new = config_with(node, source, changed_value(source, old))
        if new is None:
            continue
        assert value_at(old, source) != value_at(new, source)
        found.add(disturbance(old, new))
        changes = compare_configs(old, new)
        assert changes.needs_drain is (source.setting.disturbs == DRAIN)
        assert changes.disrupts_pods is (source.setting.disturbs in {DRAIN, PODS})
    assert strongest(found) == key.setting.disturbs
