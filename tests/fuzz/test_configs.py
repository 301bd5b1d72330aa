"""Invalid configurations: each loads, or all its problems are reported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aks_flex_node.agent.config.loader import LoadedConfig, load_text
from aks_flex_node.agent.config.remote import parse_bundle
from aks_flex_node.agent.config.render import config_template
from aks_flex_node.agent.config.sources import nest
from aks_flex_node.errors import ConfigError
from aks_flex_node.settings.table import keys
from tests.fuzz.attempts import tried
from tests.fuzz.mutations import damaged, json_values
from tests.unit.agent.config.builders import CA, TOKEN

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

SETTINGS = {
    "azure.bootstrapToken.token": TOKEN,
    "node.kubelet.serverURL": "https://api.example:443",
    "node.kubelet.caCertData": CA,
    "node.labels": {"site": "hall-1"},
    "node.taints": [{"key": "edge", "value": "yes", "effect": "NoSchedule"}],
    "kubernetes.version": "1.34.4",
}
SOUND = json.dumps({"config": nest(dict(SETTINGS)), "configVersion": "1700000000"}, indent=1).encode()
PATHS = [key.path for key in keys()]


def loaded(text: str, name: str) -> LoadedConfig | None:
    """Returns the loaded configuration; None when it is rejected with a message that contains no secret."""
    found = tried(lambda: load_text(text, name, {}, {}), ConfigError)
    if isinstance(found, ConfigError):
        assert found.name in {"config-syntax", "config-invalid"}
        assert TOKEN not in str(found)
        return None
    assert load_text(found.text(), "again.json", {}, {}).config == found.config
    return found


def some_settings() -> SearchStrategy[dict[str, Any]]:
    return st.dictionaries(
        st.sampled_from(PATHS), json_values() | st.sampled_from(list(SETTINGS.values())), max_size=6
    )


def test_valid_config_loads() -> None:
    assert loaded(SOUND.decode(), "config.json") is not None


@given(damaged(SOUND))
def test_damaged_config_loads_or_is_refused(content: bytes) -> None:
    text = content.decode(errors="replace")

    loaded(text, "config.json")
    loaded(text, "config.yaml")  # JSON is YAML, and damaged JSON often is also YAML


@given(damaged(config_template({"kubernetes.version": "1.34.4"}).encode(), most=6))
def test_damaged_config_template_loads_or_is_refused(content: bytes) -> None:
    loaded(content.decode(errors="replace"), "config.yaml")


@given(some_settings())
def test_config_with_arbitrary_setting_values_loads_or_is_refused(settings: dict[str, Any]) -> None:
    loaded(json.dumps(nest(dict(settings))), "config.json")


@given(st.text(max_size=200))
def test_arbitrary_text_loads_as_config_or_is_refused(text: str) -> None:
    loaded(text, "config.yaml")
    loaded(text, "config.json")


@given(damaged(SOUND) | st.binary(max_size=200))
def test_config_url_response_is_a_valid_bundle_or_is_refused(content: bytes) -> None:
    bundle = tried(lambda: parse_bundle(content, "https://provider.example"), ConfigError)
    if isinstance(bundle, ConfigError):
        assert bundle.name == "config-bundle-invalid"
        return
    assert bundle.version == "" or bundle.version.isdigit()
    loaded(bundle.text, "bundle.json")


@pytest.mark.parametrize("name", ["config.json", "config.yaml"])
def test_config_number_with_thousands_of_digits_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"number that is too long|values that YAML does not allow"):
        load_text(f'{{"node": {{"maxPods": {"9" * 5000}}}}}', name, {}, {})


def test_yaml_alias_bomb_is_refused_with_a_short_message() -> None:
    lines = [
        f"    {chr(98 + level)}: &{chr(98 + level)} [{', '.join(['*' + chr(97 + level)] * 9)}]" for level in range(12)
    ]
    bomb = "\n".join(["node:", "  labels:", "    a: &a [x]", *lines])

    with pytest.raises(ConfigError) as caught:
        load_text(bomb, "config.yaml", {}, {})

    assert len(str(caught.value)) < 10_000
