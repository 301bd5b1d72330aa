"""Tests of the snapshot script in a Python without our packages."""

from __future__ import annotations

import sys

from aks_flex_lab.processes import run
from aks_flex_lab.snapshots import model


def test_snapshot_script_loads_in_isolated_python() -> None:
    look = model.collector_script().replace(
        "module.main()", "print(sorted(module.collect.__globals__['COMMANDS'])[0])"
    )

    said = run(sys.executable, "-I", "-S", "-", input=look)

    assert said.out == "ipset\n"
    assert said.err == ""
