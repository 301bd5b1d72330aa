"""Tests of `node create` and `node update`: options, files, properties and errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.api.node_changes import NodeOptions, OptionError, apply_options
from aks_flex_node.errors import ConfigError
from aks_flex_rp.cli import usage_error
from aks_flex_rp.cli.property_files import read_properties

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("options", "name", "text"),
    [
        (NodeOptions(labels=["plain"]), "label-invalid", "--labels: 'plain' is not a label."),
        (NodeOptions(taints=["plain"]), "taint-invalid", "--taints: 'plain' is not a taint."),
        (
            NodeOptions(auth_method="password"),
            "auth-method-invalid",
            "--auth-method: 'password' is no authentication method.",
        ),
        (
            NodeOptions(client_id="a", principal_id="b"),
            "auth-options-mismatch",
            "A node whose method is none does not use --client-id and --principal-id.",
        ),
    ],
)
def test_invalid_node_options_are_usage_errors(options: NodeOptions, name: str, text: str) -> None:
    with pytest.raises(OptionError) as refused:
        apply_options({}, options)

    error = usage_error(refused.value)
    assert (error.name, error.message) == (name, text)


def test_node_file_may_contain_arm_envelope(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"

    file.write_text("properties: {status: {}, versions: {runc: 1.3.0}}")
    assert read_properties(file, NodeOptions()) == {"versions": {"runc": "1.3.0"}}
    file.write_text("versions: {runc: 1.3.0}")
    assert read_properties(file, NodeOptions()) == {"versions": {"runc": "1.3.0"}, "continuousMonitoring": True}
    assert read_properties(file, NodeOptions(pool="edge")) == {"versions": {"runc": "1.3.0"}}
    assert read_properties(None, NodeOptions()) == {"continuousMonitoring": True}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("properties: [1]", "properties has the wrong type"),
        ("nodeConfig: {labels: [a]}", "nodeConfig.labels has the wrong type"),
        ("nodeConfig:\n  maxPods: 1\n  maxPods: 2", "line 3 repeats 'maxPods'"),
        ('{"versions": {"runc": "1.3.0"}, "versions": {}}', "line 1 repeats 'versions'"),
        ("properties: {}\nnodeconfig: {}", "nodeconfig is unknown beside properties"),
        ("nodeConfig:\n  maxPods: [1", "line 2 is neither JSON nor YAML"),
        ("\x00", "it is neither JSON nor YAML"),
    ],
)
def test_wrong_node_file_is_refused_with_path_or_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=re.escape(why)) as refused:
        read_properties(file, NodeOptions())
    assert refused.value.name == "node-file-invalid"
