"""Allow lists of enrolments as CSV: a header row, and one machine in each row."""

from __future__ import annotations

import csv
import io

from aks_flex_node.api.enrolments import normalized_mac, normalized_serial, normalized_uuid
from aks_flex_node.errors import ConfigError

FACTS = {"serialNumber": normalized_serial, "systemUuid": normalized_uuid, "macAddress": normalized_mac}
_COLUMNS = {name.lower(): name for name in FACTS}
MAX_CELL = 128


def parse_allow_list(text: str, file: str) -> list[dict[str, str]]:
    """Returns the entries of a CSV file. Raises ConfigError that names the line of the first invalid value.

    A row may have several facts: each of them admits the machine. Other columns are ignored.
    """
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff")), strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise _invalid(file, reader.line_num, f"it is not CSV ({error})") from None
    if not rows:
        raise _invalid(file, 1, "the header row is missing")
    (first, header), *entries = rows
    names = [_COLUMNS.get(cell.strip().lower().replace("_", "").replace(" ", ""), "") for cell in header]
    if not any(names):
        raise _invalid(file, first, f"the header row names none of {', '.join(FACTS)}")
    found = [entry for line, row in entries for entry in _entries(file, line, names, row)]
    if not found:
        raise _invalid(file, first, "no row follows the header row")
    return found


def _entries(file: str, line: int, names: list[str], row: list[str]) -> list[dict[str, str]]:
    if len(row) > len(names):
        raise _invalid(file, line, f"it has {len(row)} columns, but the header row has {len(names)}")
    cells = [(name, cell.strip()) for name, cell in zip(names, row, strict=False) if name and cell.strip()]
    if not cells:
        raise _invalid(file, line, "it has no fact of a machine")
    for name, cell in cells:
        if len(cell) > MAX_CELL or not FACTS[name](cell):
            raise _invalid(file, line, f"'{cell[:80]}' is not a {name} that identifies a machine")
    return [{name: FACTS[name](cell)} for name, cell in cells]


def _invalid(file: str, line: int, why: str) -> ConfigError:
    return ConfigError(
        "allow-list-invalid",
        f"{file}, line {line}: {why}.",
        f"Use a CSV file whose first row is the header, with one or more of {', '.join(FACTS)}. Correct the line, "
        "and run the command again. Nothing was changed.",
    )
