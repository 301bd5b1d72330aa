"""Writes the tables of settings and of the options of roll-outs as JSON, which the command lines and the az extension
carry: `python -m scripts.settings_data`. With `--check`, says whether the tracked files are those of the tables.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from aks_flex_node.settings.api import settings_data
from aks_flex_rp.rollouts.spec import option_data

API = Path(__file__).parents[1] / "src/aks_flex_node/api"
TABLES = {"settings.json": settings_data(), "rollout_options.json": option_data()}


def main() -> None:
    for name, table in TABLES.items():
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in table)
        file, text = API / name, f"[\n{rows}\n]\n"
        if "--check" not in sys.argv:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            sys.exit(f"src/aks_flex_node/api/{name} is not of its table. Run `python -m scripts.settings_data`.")


if __name__ == "__main__":
    main()
