"""Hatchling's hook for the distributions whose package is in src/, beside that of aks-flex-node.

Takes the package into the wheel, and pins our own distributions in its requirements to the version of this checkout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path(__file__).resolve().parents[1] / "src"


class SharedSourcesHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling with `standard` or `editable`; an editable wheel names src/ instead of copying it."""
        own = self.metadata.version
        build_data["dependencies"] += [f"{name}=={own}" for name in self.config["same-version"]]
        if version == "standard":
            package = self.config["package"]
            build_data["force_include"][str(SOURCES / package)] = package
