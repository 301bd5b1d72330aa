"""Writes the table of settings as JSON, which the command lines and the az extension carry: `python -m
scripts.settings_data`. With `--check`, says whether the tracked file is that of the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from aks_flex_node.settings.api import settings_data

FILE = Path(__file__).parents[1] / "src/aks_flex_node/api/settings.json"


def main() -> None:
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in settings_data())
    text = f"[\n{rows}\n]\n"
    if "--check" not in sys.argv:
        FILE.write_text(text)
    elif not FILE.exists() or FILE.read_text() != text:
        sys.exit("src/aks_flex_node/api/settings.json is not of this table. Run `python -m scripts.settings_data`.")


if __name__ == "__main__":
    main()
