"""Tests of the detected changes of a configuration, and of their cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.components.artifact_urls import version_key
from aks_flex_node.agent.jobs.update.admission import compare_configs
from tests.unit.agent.builders import config_of

if TYPE_CHECKING:
    from tests.unit.agent.config.builders import Settings


@pytest.mark.parametrize(
    ("values", "words", "disturbs", "drains"),
    [
        ({}, [], False, False),
        ({"node.labels": {"a": "b"}, "node.maxPods": 5}, [], False, False),
        ({"kubernetes.version": "1.35.4"}, ["kubernetes 1.34.4 -> 1.35.4"], True, True),
        ({"containerd.version": "2.5.0"}, ["containerd 2.4.2 -> 2.5.0"], True, True),
        ({"runc.version": "1.6.0"}, ["runc 1.5.2 -> 1.6.0"], True, True),
        ({"cni.version": "1.10.0"}, ["cni 1.9.1 -> 1.10.0"], True, False),
        ({"npd.version": "1.35.0"}, ["npd 1.34.0 -> 1.35.0"], False, False),
        ({"npd.enabled": False}, ["npd 1.34.0 -> none"], False, False),
        ({"runc.sha256": {"runc.amd64": "0" * 64}}, ["runc 1.5.2 -> 1.5.2"], True, True),
        ({"runc.version": "1.6.0", "updatePolicy.drain": False}, ["runc 1.5.2 -> 1.6.0"], True, False),
    ],
    ids=str,
)
def test_config_diff_lists_upgrades_and_whether_they_disrupt_or_drain(
    values: Settings, words: list[str], disturbs: bool, drains: bool
) -> None:
    changes = compare_configs(config_of(), config_of(values))
    assert [str(one) for one in changes.upgrades] == words
    assert (changes.disrupts_pods, changes.needs_drain, changes.downgrades) == (disturbs, drains, ())


def test_downgrade_of_any_component_is_detected() -> None:
    older = compare_configs(config_of(), config_of({"kubernetes.version": "1.35.0", "runc.version": "1.4.0"}))
    assert [one.component for one in older.downgrades] == ["runc"]


def test_disabling_npd_is_not_a_downgrade() -> None:
    without = config_of({"npd.enabled": False})
    assert compare_configs(config_of(), without).downgrades == compare_configs(without, config_of()).downgrades == ()


@pytest.mark.parametrize(
    ("values", "moves"),
    [
        ({}, False),
        ({"node.maxPods": 5}, False),
        ({"node.kubelet.serverURL": "https://elsewhere.example:443"}, True),
        ({"proxy.https": "http://proxy.example:3128"}, True),
    ],
    ids=str,
)
def test_changed_api_server_endpoint_is_detected(values: Settings, moves: bool) -> None:
    assert compare_configs(config_of(), config_of(values)).endpoint_changed is moves


def test_versions_are_ordered_semantically() -> None:
    mixed = ["2.0.0", "2.0.0-rc.10", "1.10.0", "2.0.1", "2.0.0-beta.2", "1.9.9", "2.0.0-rc.1"]
    ascending = ["1.9.9", "1.10.0", "2.0.0-beta.2", "2.0.0-rc.1", "2.0.0-rc.10", "2.0.0", "2.0.1"]
    assert sorted(mixed, key=version_key) == ascending
    assert version_key("1.34.4+build.7") == version_key("1.34.4")
