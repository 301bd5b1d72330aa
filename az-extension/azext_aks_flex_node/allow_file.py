"""Reads the list of machines of an enrolment from a CSV file. The service validates the values."""

from __future__ import annotations

import csv
from pathlib import Path

from azure.cli.core.azclierror import InvalidArgumentValueError

from azext_aks_flex_node.secret_input import UNREADABLE, file_error

COLUMNS = {each.lower(): each for each in ("serialNumber", "systemUuid", "macAddress")}


def read_allow_file(file: str) -> list[dict[str, str]]:
    """Returns the machines of a CSV file with a header row. Other columns are ignored."""
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8-sig")
    except UNREADABLE as error:
        raise file_error(file, "--allow-file", error) from None
    reader = csv.reader(text.splitlines())
    names = [COLUMNS.get(cell.strip().lower(), "") for cell in next(reader, [])]
    if not any(names):
        raise _invalid(file, 1, f"the header row names none of {', '.join(COLUMNS.values())}")
    found = []
    for row in reader:
        cells = [(name, cell.strip()) for name, cell in zip(names, row, strict=False) if name and cell.strip()]
        if any(cell.strip() for cell in row) and not cells:
            raise _invalid(file, reader.line_num, "it has no fact of a machine")
        found += [{name: cell} for name, cell in cells]
    return found


def _invalid(file: str, line: int, why: str) -> InvalidArgumentValueError:
    return InvalidArgumentValueError(f"{file}, line {line}: {why}.", "Correct the line. Nothing was changed.")
