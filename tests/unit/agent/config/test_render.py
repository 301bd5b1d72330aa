"""Tests of texts generated from the models: template, reference, schema, and output of `config show`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from aks_flex_node.agent.config.json_schema import json_schema
from aks_flex_node.agent.config.loader import missing_for_join
from aks_flex_node.agent.config.render import PLACEHOLDERS, config_template, setting_rows
from aks_flex_node.settings.table import key_tree, keys
from tests.unit.agent.config.builders import CA, TOKEN, load_plain, load_settings, problems_of

ROOT = Path(__file__).parents[4]


def filled(tmp_path: Path) -> str:
    (tmp_path / "token").write_text(TOKEN)
    return config_template(
        {
            "azure.bootstrapToken.tokenFile": str(tmp_path / "token"),
            "node.kubelet.serverURL": "https://api.example:443",
            "node.kubelet.caCertData": CA,
            "kubernetes.version": "1.36.3",
        }
    )


def test_filled_in_config_template_is_complete_for_a_join(tmp_path: Path) -> None:
    loaded = load_plain(filled(tmp_path), "config.yaml")

    assert missing_for_join(loaded.config) == []
    assert {path for path in loaded.origins if path in PLACEHOLDERS} == set(PLACEHOLDERS)


def test_config_template_requires_its_placeholders_to_be_filled_in() -> None:
    told = {problem.path for problem in problems_of(config_template())}
    assert told | {"azure.bootstrapToken.tokenFile"} == set(PLACEHOLDERS)  # a join reports whether the file is needed


def test_every_line_of_the_config_template_can_be_uncommented(tmp_path: Path) -> None:
    text = re.sub(r"^#( *\w+:)", r"\1", filled(tmp_path), flags=re.MULTILINE)

    loaded = load_plain(text, "config.yaml")

    defaults = load_plain(filled(tmp_path), "config.yaml").config
    assert loaded.config == defaults
    assert "containerd.url" in loaded.origins


def test_config_template_contains_every_setting() -> None:
    text = config_template()

    for key in keys():
        assert re.search(rf"^#? *{key.path.rpartition('.')[2]}:", text, re.MULTILINE), key.path
        assert key.description in text


def test_json_schema_has_every_section_and_forbids_unknown_keys() -> None:
    made = json_schema()

    assert set(made["properties"]) == {*key_tree().members, "$schema"}
    assert made["additionalProperties"] is False
    assert made["$defs"]["Kubelet"]["properties"]["serverURL"]
    assert made["$defs"]["BootstrapToken"]["properties"]["token"]["anyOf"][0]["writeOnly"] is True
    assert all(each["description"] for each in made["$defs"]["Kubelet"]["properties"].values())
    assert json.dumps(made)


def test_every_setting_is_listed_with_value_and_origin() -> None:
    loaded = load_settings({"node.maxPods": 5, "node.labels": {"a": "b"}}, {"node.labels.c": "d"})

    shown = {row.key: row for row in setting_rows(loaded)}

    assert list(shown) == [key.path for key in keys()]
    assert (shown["node.maxPods"].value, shown["node.maxPods"].origin) == (5, "test.json:1")
    assert shown["node.labels"].value == {"a": "b", "c": "d"}
    assert shown["node.labels"].origin == "test.json:1, flag --set node.labels.c"
    assert (shown["cni.bridge"].value, shown["cni.bridge"].origin) == (True, "default")
    assert [row.key for row in setting_rows(loaded, given_only=True)] == ["node.labels", "node.maxPods"]


def test_every_setting_has_a_description_and_a_unique_variable() -> None:
    variables = [key.variable for key in keys()]

    assert len(set(variables)) == len(variables)
    assert "AKS_FLEX_NODE_NODE__MAX_PODS" in variables
    assert "AKS_FLEX_NODE_AZURE__BOOTSTRAP_TOKEN__TOKEN_FILE" in variables
    assert "AKS_FLEX_NODE_CONFIG" not in variables
    for key in keys():
        assert key.description.endswith((".", "…")), key.path
