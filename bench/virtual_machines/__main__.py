"""Prints the figures of the tests in virtual machines as tables for docs/measurements.md.

The argument is the file that `.venv/bin/pytest tests/vm --power-cuts=30 --figures=FILE` writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.virtual_machines.report import render

if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
    sys.exit("usage: python -m bench.virtual_machines FILE; `make test-vm` writes dist/virtual-machines.json")
print(render(json.loads(Path(sys.argv[1]).read_text())), end="")
