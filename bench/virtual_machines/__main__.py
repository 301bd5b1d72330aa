"""Prints the figures of the tests in virtual machines as tables for docs/proof/virtual-machines.md.

    .venv/bin/pytest tests/vm --power-cuts=30 --figures=FILE
    .venv/bin/python -m bench.virtual_machines FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.virtual_machines.report import render

print(render(json.loads(Path(sys.argv[1]).read_text())), end="")
