"""Checks that the example component of the development guide uses existing names and works as described."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from msgspec import Meta, field

from aks_flex_node.agent.components import catalog
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.settings import setting as table
from aks_flex_node.settings.base import ConfigModel
from tests.unit.agent.builders import MACHINE, config_of, files_of

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/how-to/add-a-component.md").read_text()
SETTING, COMPONENT, CASE = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def names_of(text: str, **known: Any) -> dict[str, Any]:
    names = {"__name__": "guide", **known}
    exec(compile(text, "docs/how-to/add-a-component.md", "exec", dont_inherit=True), names)  # noqa: S102 - the guide is ours
    return names


def test_example_component_passes_example_test_from_guide() -> None:
    known = {**vars(table), "ConfigModel": ConfigModel, "Annotated": Annotated, "Meta": Meta, "field": field}
    setting = names_of(SETTING, **{name: each for name, each in known.items() if not name.startswith("__")})
    component = names_of(COMPONENT)

    def config(values: dict[str, object]) -> SimpleNamespace:
        text = values.pop("banner.text")
        return SimpleNamespace(banner=setting["Banner"](text=text), node=config_of(values).node)

    banner = SimpleNamespace(desired=component["desired"])
    case = names_of(CASE, banner=banner, config_of=config, files_of=files_of, MACHINE=MACHINE)
    case["test_the_screen_names_the_node"]()

    assert isinstance(component["COMPONENT"], Component)
    assert setting["NodeConfig"]().banner.text == ""


def test_component_guide_names_existing_files() -> None:
    agent = ROOT / "src/aks_flex_node/agent"
    named = set(re.findall(r"`((?:components|config|reconcile|jobs)/[a-z_/]+\.py)`", GUIDE)) - {
        "components/banner/__init__.py"
    }
    assert {"components/catalog.py", "reconcile/resources.py"} <= named
    assert "`../settings/models.py`" in GUIDE
    assert [name for name in named if not (agent / name).exists()] == []
    assert "vpn, system, runc, containerd" in (agent / "components/catalog.py").read_text()
    assert {"runc", "npd"} <= {component.name for component in catalog.SEQUENCE}
