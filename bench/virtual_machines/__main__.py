"""Prints the figures of the tests in virtual machines as tables for docs/proof/virtual-machines.md.

The argument is the file that `.venv/bin/pytest tests/vm --power-cuts=30 --figures=FILE` writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.virtual_machines.report import render

print(render(json.loads(Path(sys.argv[1]).read_text())), end="")
