"""Tests of `node create` and `node update`: options, files, properties and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.api.node_changes import NodeOptions
from aks_flex_node.errors import CommandUsageError, ConfigError
from aks_flex_rp.cli.node_write_commands import apply_options, kubernetes_auth_from
from aks_flex_rp.cli.property_files import read_properties

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("use_azure_auth", "azure_auth", "wanted"),
    [
        (None, None, None),
        (True, None, {"useAzureAuth": True}),
        (False, None, {"method": "bootstrapToken"}),
        (None, "exec", {"useAzureAuth": True, "method": "exec"}),
        (True, "certificate", {"useAzureAuth": True, "method": "certificate"}),
        (False, "exec", {"useAzureAuth": False, "method": "exec"}),
    ],
)
def test_auth_options_map_to_kubernetes_auth(
    use_azure_auth: bool | None, azure_auth: str | None, wanted: dict[str, object] | None
) -> None:
    assert kubernetes_auth_from(use_azure_auth, azure_auth) == wanted


@pytest.mark.parametrize(
    ("options", "name", "text"),
    [
        (NodeOptions(labels=["plain"]), "label-invalid", "'plain' is not a label."),
        (NodeOptions(taints=["plain"]), "taint-invalid", "'plain' is not a taint."),
        (NodeOptions(auth_method="password"), "auth-method-invalid", "Unknown authentication method 'password'."),
        (
            NodeOptions(client_id="a", principal_id="b"),
            "auth-options-mismatch",
            "A node whose method is none does not use --client-id and --principal-id.",
        ),
    ],
)
def test_invalid_node_options_are_usage_errors(options: NodeOptions, name: str, text: str) -> None:
    with pytest.raises(CommandUsageError) as refused:
        apply_options({}, options)

    assert (refused.value.name, refused.value.message) == (name, text)


def test_node_file_may_contain_arm_envelope(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"

    file.write_text("properties: {status: {}, versions: {runc: 1.3.0}}")
    assert read_properties(file) == {"versions": {"runc": "1.3.0"}}
    file.write_text("versions: {runc: 1.3.0}")
    assert read_properties(file) == {"versions": {"runc": "1.3.0"}}
    assert read_properties(None) is None


@pytest.mark.parametrize(
    ("text", "path"), [("properties: [1]", "properties"), ("nodeConfig: {labels: [a]}", "nodeConfig.labels")]
)
def test_node_file_with_wrong_types_is_refused_with_path(tmp_path: Path, text: str, path: str) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=f"{path} has the wrong type") as refused:
        read_properties(file)
    assert refused.value.name == "node-file-invalid"
