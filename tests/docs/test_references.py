"""Checks that the generated reference pages have an entry for everything that the code defines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from scripts.reference.__main__ import PAGES
from scripts.reference.commands import apps, option

from aks_flex_node.agent.config.loader import load_text, missing_for_join
from aks_flex_node.api.kubernetes_rules import RESERVED_KUBELET_OPTIONS
from aks_flex_node.error_catalog import load_catalog
from aks_flex_node.settings.table import keys
from aks_flex_rp.settings import ServiceSettings
from tests.unit.agent.config.builders import CA, TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
METRICS = ("joins_total", "config_bundles_total", "notifications_total", "nodes", "requests_total", "held_polls")


def entries_of_commands() -> Iterator[str]:
    for name, command in apps().items():
        yield from entries_of_command(command, name)


def entries_of_command(command: Any, name: str) -> Iterator[str]:
    if command.hidden:
        return
    yield f" {name}\n"
    yield from (parameter.opts[0] for parameter in command.params if option(parameter))
    for word, subcommand in getattr(command, "commands", {}).items():
        yield from entries_of_command(subcommand, f"{name} {word}")


def entries_of_az() -> Iterator[str]:
    sources = "".join(file.read_text() for file in (ROOT / "az-extension").rglob("*.py"))
    for name in re.findall(r'@register_command\(\s*"aks flex-node ([^"]+)"', sources):
        yield f"## {name}\n"


def entries_of_names() -> Iterator[str]:
    document = yaml.safe_load((ROOT / "src/aks_flex_node/conditions.yaml").read_text())
    yield from (f"| `{name}` |" for kind in ("conditions", "events", "audit") for name in document[kind])
    yield from (f"### {name}\n" for kind in ("reasons", "states", "results") for name in document[kind])
    yield from (f"| `aks_flex_rp_{name}` |" for name in METRICS)
    yield "| `aks_flex_node_provider_state` |"


def required_entries() -> dict[str, set[str]]:
    errors = load_catalog("aks_flex_node") | load_catalog("aks_flex_rp")
    return {
        "az.md": set(entries_of_az()),
        "cli.md": set(entries_of_commands()),
        "configuration.md": {
            *(f"| `{key.path.rpartition('.')[2]}` | {key.type} |" for key in keys()),
            *(f"`{option}`" for options in RESERVED_KUBELET_OPTIONS.values() for option in options.split()),
        },
        "errors.md": {f"#### {name}\n" for name in errors},
        "names.md": set(entries_of_names()),
        "provider-settings.md": {
            *(f"`{field.alias or name}" for name, field in ServiceSettings.model_fields.items()),
            "| `limits.readsPerSecond` | number | `25` |",
        },
    }


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_has_every_required_entry(reference: dict[str, str], name: str) -> None:
    required = required_entries()[name]

    assert len(required) > 10
    assert sorted(entry for entry in required if entry not in reference[name]) == []


def test_example_in_the_configuration_reference_is_valid(reference: dict[str, str], tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", reference["configuration.md"], re.DOTALL)
    (tmp_path / "bootstrap-token").write_text(TOKEN)
    (tmp_path / "ca.crt").write_text(CA)

    loaded = load_text(example.replace("/etc/aks-flex-node", str(tmp_path)), "config.yaml", {}, {})

    assert [problem.path for problem in missing_for_join(loaded.config)] == []
