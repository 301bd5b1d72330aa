"""Hatchling build hook for the distributions whose package is in the shared src/ directory.

Adds the package to the wheel, and pins the project's other distributions to the version of this checkout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path(__file__).resolve().parents[1] / "src"


class SharedSourcesHook(BuildHookInterface[Any]):
    """Adds a package of src/ to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling with `standard` or `editable`. An editable wheel refers to src/ instead of a copy."""
        own = self.metadata.version
        build_data["dependencies"] += [f"{name}=={own}" for name in self.config["same-version"]]
        if version == "standard":
            package = self.config["package"]
            build_data["force_include"][str(SOURCES / package)] = package
