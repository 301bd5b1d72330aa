"""The confinement of the daemon and the provider, as rated by systemd, is what docs/security.md states."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.components.service import packaged_unit

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
UNITS: dict[str, Callable[[], str]] = {
    "daemon": lambda: packaged_unit("/usr/bin/true"),
    "provider": (ROOT / "packaging/systemd/aks-flex-rp.service").read_text,
}


@pytest.mark.parametrize("name", UNITS)
def test_unit_is_confined_as_documented(name: str, tmp_path: Path) -> None:
    unit = tmp_path / f"{name}.service"
    unit.write_text(UNITS[name]())
    rated = _exposure(unit)
    stated = re.search(
        r"rates the daemon ([\d.]+) and the provider\s+([\d.]+)", (ROOT / "docs/security.md").read_text()
    )

    assert stated
    assert rated == float(stated[1 if name == "daemon" else 2])


def test_rating_depends_on_the_settings_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "open.service"
    unit.write_text("[Service]\nExecStart=/usr/bin/true\n")

    assert _exposure(unit) > 9


def _exposure(unit: Path) -> float:
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found, said
    return float(found[1])
