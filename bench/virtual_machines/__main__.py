"""Prints the tables of a file of figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.virtual_machines import render

print(render(json.loads(Path(sys.argv[1]).read_text())), end="")
